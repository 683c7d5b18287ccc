// From TVM's call of a kernel, which passes its arguments and then the launch dimensions, to the emulator.
#pragma once

extern "C" {
extern void (*__TVMAPISetLastError)(const char*);  // TVM sets it when it loads the library
extern const char __ehdr_start, _end;              // the linker's: where the library begins and ends
}

union emulated_value {  // TVMValue
  int64_t integer;
  double real;
  void* pointer;
};

template <class T>
EMULATED_UNCHECKED T emulated_argument(const emulated_value& value) {
  if constexpr (std::is_pointer<T>::value)
    return static_cast<T>(value.pointer);
  else if constexpr (std::is_integral<T>::value)
    return T(value.integer);
  else
    return T(value.real);
}

template <class... Parameters, size_t... I>
void emulated_call(void (*kernel)(Parameters...), const emulated_value* values, std::index_sequence<I...>) {
  kernel(emulated_argument<Parameters>(values[I])...);
}

// `tags` is the attribute tir.kernel_launch_params, one letter each: 012 for the grid, 345 for the block, s
// for dynamic shared memory.
template <class... Parameters>
int emulated_launch(const char* name, void (*kernel)(Parameters...), void (*run_thread)(const void*),
                    int launch_bounds, const char* tags, const emulated_value* values) {
  constexpr int count = sizeof...(Parameters);
  constexpr bool is_pointer[] = {std::is_pointer<Parameters>::value..., false};
  void* pointers[count + 1];
  for (int i = 0; i < count; ++i) pointers[i] = is_pointer[i] ? values[i].pointer : nullptr;
  // of compute capabilities 8.0 and 9.0
  constexpr size_t shared_limit = (__CUDA_ARCH__ >= 900 ? 227 : 163) << 10;
  emulator::Launch launch = {name,   launch_bounds, {1, 1, 1}, {1, 1, 1},     0,    shared_limit, run_thread,
                             values, pointers,      count,     &__ehdr_start, &_end};
  dim3 &grid = launch.grid, &block = launch.block;
  unsigned* extents[] = {&grid.x, &grid.y, &grid.z, &block.x, &block.y, &block.z};
  for (int i = 0; tags[i]; ++i) {
    int64_t value = values[count + i].integer;
    if (tags[i] == 's')
      launch.dynamic_shared = value;
    else
      *extents[tags[i] - '0'] = value >= 0 && value < UINT_MAX ? value : UINT_MAX;
  }
  const char* wrong = emulator::emulator_launch(&launch);
  if (wrong) __TVMAPISetLastError(wrong);
  return wrong ? -1 : 0;
}

template <class... Parameters>
constexpr auto emulated_indices(void (*)(Parameters...)) {
  return std::index_sequence_for<Parameters...>();
}

// A value of tvm-ffi, which says its type first.
struct emulated_any {
  int64_t type;
  emulated_value value;
};

constexpr int MAX_VALUES = 256;  // arguments of a kernel and its launch dimensions

// A packed function with the kernel's name: the kernel itself has the mangled one. Another one is for TVMs that
// call by tvm-ffi.
#define EMULATED_KERNEL(name, launch_bounds, tags)                                                   \
  static void run_thread_of_##name(const void* values) {                                             \
    emulated_call(&name, static_cast<const emulated_value*>(values), emulated_indices(&name));       \
  }                                                                                                  \
  int launch_##name(emulated_value* values, int*, int, emulated_value*, int*, void*) __asm__(#name); \
  int launch_##name(emulated_value* values, int*, int, emulated_value*, int*, void*) {               \
    return emulated_launch(#name, &name, &run_thread_of_##name, launch_bounds, tags, values);        \
  }                                                                                                  \
  int call_##name(void*, const emulated_any*, int, emulated_any*) __asm__("__tvm_ffi_" #name);        \
  int call_##name(void*, const emulated_any* given, int count, emulated_any*) {                      \
    static emulated_value values[MAX_VALUES];                                                        \
    for (int i = 0; i < count && i < MAX_VALUES; ++i) values[i] = given[i].value;                    \
    return launch_##name(values, nullptr, count, nullptr, nullptr, nullptr);                         \
  }
