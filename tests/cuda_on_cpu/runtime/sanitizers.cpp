// The functions that g++ calls from a sanitised kernel.
//
// -fsanitize=kernel-address and -fsanitize=thread only insert calls, and leave it to whoever links them
// what is done there: for their own runtimes the Python process would have to be started under them.
// This runtime knows more (which buffers belong to the kernel, which barriers order two accesses) and
// reports to the launch instead of ending the process.
#include <string.h>

#include "state.h"

namespace emulator {

#define CALLER __builtin_return_address(0)

#define SIZE(n)                                                                              \
  void __asan_load##n##_noabort(const void* p) { check_access(p, n, false, true, CALLER); }  \
  void __asan_store##n##_noabort(const void* p) { check_access(p, n, true, true, CALLER); }  \
  void __tsan_read##n(const void* p) { check_race(p, n, Access::read, CALLER); }             \
  void __tsan_write##n(const void* p) { check_race(p, n, Access::write, CALLER); }           \
  void __tsan_unaligned_read##n(const void* p) { check_race(p, n, Access::read, CALLER); }   \
  void __tsan_unaligned_write##n(const void* p) { check_race(p, n, Access::write, CALLER); } \
  void __tsan_volatile_read##n(const void* p) { check_race(p, n, Access::read, CALLER); }    \
  void __tsan_volatile_write##n(const void* p) { check_race(p, n, Access::write, CALLER); }

extern "C" {
SIZE(1)
SIZE(2)
SIZE(4) SIZE(8) SIZE(16)

    void __asan_loadN_noabort(const void* p, size_t n) {
  check_access(p, n, false, false, CALLER);
}
void __asan_storeN_noabort(const void* p, size_t n) { check_access(p, n, true, false, CALLER); }
void __asan_handle_no_return() {}
void __tsan_read_range(const void* p, size_t n) { check_race(p, n, Access::read, CALLER); }
void __tsan_write_range(const void* p, size_t n) { check_race(p, n, Access::write, CALLER); }
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit(void*) {}

// An atomic function of CUDA, whose own load and store are not instrumented.
void emulator_atomic_address(const void* p, size_t n) { check_access(p, n, true, true, CALLER); }
void emulator_atomic_thread(const void* p, size_t n) { check_race(p, n, Access::atomic, CALLER); }

// Built into every kernel (-fsanitize=bounds,integer-divide-by-zero).
struct UbsanType {
  uint16_t kind, info;
  char name[1];
};
struct UbsanOutOfBounds {
  const char* file;
  unsigned line, column;
  const UbsanType *array, *index;
};
void __ubsan_handle_out_of_bounds(const UbsanOutOfBounds* data, size_t index) {
  fail(format("out of bounds: index %zd of %s", ptrdiff_t(index), data->array->name), CALLER);
}
void __ubsan_handle_divrem_overflow(const void*, size_t, size_t) {
  fail("integer division by zero (or of the least number by -1), which gives junk on a GPU", CALLER);
}
}

}  // namespace emulator
