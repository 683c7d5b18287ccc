// What the parts of the emulator know of each other; kernels do not see it.
#pragma once
#include <string>
#include <vector>

#define EMULATOR_ITSELF
#include "emulator.h"

namespace emulator {

struct Fiber;

struct Thread {
  enum State { unstarted, ready, waiting, ended } state;
  Index3 index;
  int number;  // in the block: x first
  Fiber* fiber;
  long steps_left;

  // What it waits for, and what it gets.
  Wait kind;
  int line;
  unsigned mask;
  uint64_t value;
  int source_lane;
  uint64_t result;
};

// Set from Python; see emulator_set_*.
struct Settings {
  bool shuffled = false;
  uint64_t seed = 0;
  long steps_per_thread = 100'000'000;
};
extern Settings settings;

extern const Launch* launch;              // the one that runs
extern Thread* current;                   // the thread that runs, null in the scheduler
extern unsigned block_number;             // of the running block in its grid
extern unsigned phase;                    // barriers that the running block has passed
extern std::vector<unsigned> warp_phase;  // the same for each of its warps

// Give up the launch from within a thread: say what is wrong, where, and what to do.
[[noreturn]] void fail(const std::string& what, const void* caller = nullptr);
bool on_current_stack(const void* address);

// device_memory.cpp
bool find_allocation(const void* pointer, const char** begin, size_t* size);

// kernel_memory.cpp
std::string open_memory(const Launch& launch);  // answers what is wrong with the arguments
void open_block();
void close_memory();

std::string format(const char* text, ...) __attribute__((format(printf, 1, 2)));
std::string source_line(const void* caller);

}  // namespace emulator
