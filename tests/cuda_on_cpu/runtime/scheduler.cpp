// Runs a grid: block after block, each thread of a block a fiber that runs until it has to wait.
//
// When no thread of the block can run, whatever all of its threads have reached is let go: first warp
// functions whose lanes are all there, then the barrier. If nothing can be let go, the kernel would hang
// or worse on a GPU, and the launch ends with a report.
#include <stdarg.h>
#include <stdio.h>

#include <algorithm>
#include <numeric>

#include "state.h"

Index3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulator {

constexpr int kWarp = 32;
constexpr long kStepsOfAWait = 1000;  // so that an endless loop of barriers ends, too

Settings settings;
const Launch* launch;
Thread* current;
unsigned block_number, phase;
std::vector<unsigned> warp_phase;

static std::vector<Thread> threads;
static std::vector<int> order;
static std::string failure;
static uint64_t random_state;

static uint64_t random_number() {  // splitmix64
  uint64_t z = (random_state += 0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

template <class Numbers>
static void shuffle(Numbers& numbers) {
  for (size_t i = numbers.size(); i > 1; --i) std::swap(numbers[i - 1], numbers[random_number() % i]);
}

// Back to the scheduler, until it lets this thread go on.
static void wait() {
  current->state = Thread::waiting;
  current->steps_left -= kStepsOfAWait;
  leave_fiber();
}

void fail(const std::string& what, const void* caller) {
  Index3 b = blockIdx, t = threadIdx;
  failure =
      format("kernel %s, block (%u,%u,%u), thread (%u,%u,%u)", launch->kernel, b.x, b.y, b.z, t.x, t.y, t.z);
  failure += source_line(caller) + ": " + what;
  abandon_fiber();
}

// --- what threads wait for

extern "C" int emulator_barrier(Wait kind, int predicate, int line) {
  current->kind = kind;
  current->line = line;
  current->value = predicate != 0;
  wait();
  return current->result;
}

extern "C" uint64_t emulator_warp(Wait kind, unsigned mask, uint64_t value, int source_lane, int line) {
  int lane = current->number % kWarp;
  if (!(mask >> lane & 1)) {
    fail(
        format("lane %d calls a warp function of line %d with mask 0x%08x, which leaves it out; name every "
               "lane that calls it",
               lane, line, mask));
  }
  current->kind = kind;
  current->line = line;
  current->mask = mask;
  current->value = value;
  current->source_lane = source_lane;
  wait();
  return current->result;
}

// PTX's `bar.sync id, threads`: as many threads as it says, whole warps, wait for each other.
extern "C" void emulator_named_barrier(int id, int threads, int line) {
  current->kind = Wait::named_barrier;
  current->line = line;
  current->mask = id;
  current->value = threads;
  wait();
}

static bool release_named_barrier(const Thread& asked) {
  auto waits = [&](const Thread& t) {
    return t.state == Thread::waiting && t.kind == Wait::named_barrier && t.mask == asked.mask;
  };
  if (!waits(asked) || std::count_if(threads.begin(), threads.end(), waits) < long(asked.value)) return false;
  int id = asked.mask;
  for (Thread& t : threads) {
    if (t.state != Thread::waiting || t.kind != Wait::named_barrier || int(t.mask) != id) continue;
    ++t.team_phase;
    t.team = id;
    t.state = Thread::ready;
  }
  return true;
}

int team_of(int thread) { return threads[thread].team; }

static bool release_named_barriers() {
  bool released = false;
  for (const Thread& t : threads) released |= release_named_barrier(t);
  return released;
}

static bool release_barrier() {
  const Thread& first = threads[0];
  size_t count = 0;
  for (const Thread& t : threads) {
    if (t.state != Thread::waiting || t.kind != first.kind || t.line != first.line) return false;
    count += t.value;
  }
  if (!is_barrier(first.kind)) return false;
  ++phase;
  bool all = count == threads.size();
  for (Thread& t : threads) {
    t.result = t.kind == Wait::barrier_count ? count : t.kind == Wait::barrier_and ? all : count > 0;
    t.state = Thread::ready;
  }
  return true;
}

// The lanes of a warp that can go on together with this one, or none.
static unsigned complete_group(Thread* warp, int lanes, int lane) {
  const Thread& asked = warp[lane];
  unsigned same = 0;
  for (int i = 0; i < lanes; ++i) {
    const Thread& t = warp[i];
    bool here = t.state == Thread::waiting && t.kind == asked.kind && t.line == asked.line;
    if (here && t.mask == asked.mask) same |= 1u << i;
  }
  unsigned existing = lanes == kWarp ? ~0u : (1u << lanes) - 1;
  return asked.kind == Wait::activemask || (asked.mask & existing) == same ? same : 0;
}

static bool release_warp(unsigned number, bool activemask) {
  Thread* warp = &threads[number * kWarp];
  int lanes = std::min<int>(kWarp, threads.size() - number * kWarp);
  bool released = false;
  for (int lane = 0; lane < lanes; ++lane) {
    const Thread& asked = warp[lane];
    bool suits = asked.state == Thread::waiting && is_of_warp(asked.kind);
    if (!suits || (asked.kind == Wait::activemask) != activemask) continue;
    unsigned group = complete_group(warp, lanes, lane), ballot = 0;
    for (int i = 0; i < lanes; ++i) ballot |= unsigned(group >> i & 1 && warp[i].value) << i;
    for (int i = 0; i < lanes; ++i) {
      if (!(group >> i & 1)) continue;
      Thread& t = warp[i];
      bool defined = t.source_lane >= 0 && group >> t.source_lane & 1;
      uint64_t shuffled = defined ? warp[t.source_lane].value : ~uint64_t(0);  // junk, as a GPU may give
      t.result = t.kind == Wait::shuffle ? shuffled : t.kind == Wait::activemask ? group : ballot;
      t.state = Thread::ready;
      released = true;
    }
  }
  if (released) ++warp_phase[number];
  return released;
}

// Lanes converge as far as they can before __activemask() says who is there.
static bool release_warps() {
  bool released = false;
  for (unsigned w = 0; w < warp_phase.size(); ++w)
    released |= release_warp(w, false) || release_warp(w, true);
  return released;
}

// --- blocks and grids

static bool run_block() {
  for (Thread& t : threads) {
    t.state = Thread::unstarted;
    t.steps_left = settings.steps_per_thread;
    t.team = t.team_phase = 0;
  }
  phase = 0;
  warp_phase.assign((threads.size() + kWarp - 1) / kWarp, 0);
  open_block();
  for (;;) {
    if (settings.shuffled) shuffle(order);
    bool all_ended = true;
    for (int i : order) {
      Thread& t = threads[i];
      if (t.state == Thread::unstarted || t.state == Thread::ready) run_until_it_waits(t);
      if (!failure.empty()) return false;
      all_ended = all_ended && t.state == Thread::ended;
    }
    if (all_ended) return true;
    if (release_warps() || release_named_barriers() || release_barrier()) continue;
    failure = report_stuck(threads);
    return false;
  }
}

static void arrange_threads(const dim3& block) {
  threads.assign(size_t(block.x) * block.y * block.z, Thread());
  order.resize(threads.size());
  std::iota(order.begin(), order.end(), 0);
  for (unsigned i = 0; i < threads.size(); ++i) {
    threads[i].number = i;
    threads[i].index = {i % block.x, i / block.x % block.y, i / block.x / block.y};
  }
}

static void run_grid(const Launch& l) {
  std::vector<unsigned> blocks;
  size_t count = size_t(l.grid.x) * l.grid.y * l.grid.z;
  if (settings.shuffled) {
    blocks.resize(count);
    std::iota(blocks.begin(), blocks.end(), 0u);
    shuffle(blocks);
  }
  for (size_t i = 0; i < count; ++i) {
    unsigned b = block_number = settings.shuffled ? blocks[i] : i;
    blockIdx = {b % l.grid.x, b / l.grid.x % l.grid.y, b / l.grid.x / l.grid.y};
    if (!run_block()) return forget_fibers();
  }
}

extern "C" const char* emulator_launch(const Launch* asked) {
  failure = refusal(*asked);
  if (failure.empty()) failure = open_memory(*asked);
  if (failure.empty()) {
    launch = asked;
    gridDim = asked->grid;
    blockDim = asked->block;
    random_state = settings.seed;
    arrange_threads(asked->block);
    run_grid(*asked);
    launch = nullptr;
    current = nullptr;
  }
  close_memory();
  if (failure.empty()) return nullptr;
  failure = "emulated CUDA device: " + failure;
  return failure.c_str();
}

extern "C" void emulator_set_order(int shuffled, uint64_t seed) {
  settings.shuffled = shuffled;
  settings.seed = seed;
}

extern "C" void emulator_set_steps_per_thread(long steps) { settings.steps_per_thread = steps; }

// Called in every basic block of a kernel (-fsanitize-coverage=trace-pc).
extern "C" void __sanitizer_cov_trace_pc() {
  if (current && --current->steps_left < 0) {
    fail(format("not at its end after %ld steps. If it is no endless loop, raise steps_per_thread.",
                settings.steps_per_thread),
         __builtin_return_address(0));
  }
}

std::string format(const char* text, ...) {
  char buffer[1024];
  va_list values;
  va_start(values, text);
  vsnprintf(buffer, sizeof buffer, text, values);
  va_end(values);
  return buffer;
}

}  // namespace emulator
