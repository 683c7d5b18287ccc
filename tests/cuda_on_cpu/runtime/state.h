// What the parts of the emulator know of each other; kernels do not see it.
#pragma once
#include <stdlib.h>

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

  // The named barrier that it has passed last, and how often.
  int team;
  unsigned team_phase;
};

inline bool is_barrier(Wait kind) { return kind >= Wait::barrier && kind <= Wait::barrier_or; }
inline bool is_of_warp(Wait kind) { return kind > Wait::named_barrier; }

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

int team_of(int thread);  // 0: none

// Give up the launch from within a thread: say what is wrong, where, and what to do.
[[noreturn]] void fail(const std::string& what, const void* caller = nullptr);

// fibers.cpp
void run_until_it_waits(Thread& thread);
void leave_fiber();                 // from within a thread, until the scheduler runs it again
[[noreturn]] void abandon_fiber();  // for good
void forget_fibers();               // of a launch that failed: their threads never end
bool on_current_stack(const void* address);

// reports.cpp
std::string refusal(const Launch& launch);  // empty if a GPU takes the launch
std::string report_stuck(const std::vector<Thread>& threads);

// device_memory.cpp
bool find_allocation(const void* pointer, const char** begin, size_t* size);

struct Accesses;

// kernel_memory.cpp: a buffer or shared array that the running kernel may touch
struct Region {
  const char* begin;
  size_t size;
  std::string name;
  bool shared;
  Accesses* accesses;  // of each byte, only when looking for races
  bool has(const char* first, size_t count) const { return first >= begin && first + count <= begin + size; }
};

// Answers where the access lies, or null for the thread's own memory and constants.
Region* check_bounds(const char* address, size_t size, bool writes, const void* caller);
std::string open_memory(const Launch& launch);  // answers what is wrong with the arguments
void open_block();
void close_memory();
void check_access(const void* address, size_t size, bool writes, bool aligned, const void* caller);

// races.cpp
void check_race(const void* address, size_t size, Access access, const void* caller);

std::string format(const char* text, ...) __attribute__((format(printf, 1, 2)));
std::string source_line(const void* caller);

}  // namespace emulator
