// What a compiled kernel and the emulator say to each other.
//
// The emulator is one shared library, built once; every CUDA source becomes another one linked to it.
#pragma once
#include <stddef.h>
#include <stdint.h>

struct Index3 {
  unsigned x, y, z;
};
typedef Index3 dim3;

// CUDA's built-in variables: the emulator sets them whenever it changes threads. To a kernel, which is one
// thread's code, they are constant.
#ifdef EMULATOR_ITSELF
#define EMULATOR_CONST
#else
#define EMULATOR_CONST const
#endif
extern "C" EMULATOR_CONST Index3 threadIdx, blockIdx, blockDim, gridDim;
constexpr int warpSize = 32;

namespace emulator {

struct Launch {
  const char* kernel;
  int launch_bounds;  // 0: none given
  dim3 grid, block;
  size_t dynamic_shared, shared_limit;
  void (*run_thread)(const void* arguments);
  const void* arguments;
  void* const* pointers;  // the pointers among the arguments, null for the others
  int num_arguments;
  const char *library_begin, *library_end;  // constants of the compiled source: readable too
};

enum class Wait {
  none,
  barrier,
  barrier_count,
  barrier_and,
  barrier_or,
  named_barrier,
  syncwarp,
  vote,
  shuffle,
  activemask
};
enum class Access { read, write, atomic };

extern "C" {
// Run a grid to its end. Answers null, or what went wrong.
const char* emulator_launch(const Launch* launch);

// From a kernel's thread:
int emulator_barrier(Wait kind, int predicate, int line);
void emulator_named_barrier(int id, int threads, int line);
uint64_t emulator_warp(Wait kind, unsigned mask, uint64_t value, int source_lane, int line);
void* emulator_shared(int slot, const char* name, size_t size);
void* emulator_dynamic_shared();
void emulator_atomic_address(const void* address, size_t size);  // in kernels built with "address"
void emulator_atomic_thread(const void* address, size_t size);   // with "thread"
}

}  // namespace emulator
