// Each byte remembers its last write and last read in the launch. Two accesses race if they are by different
// threads, one of them writes, not both are atomic, and nothing orders them: in a block a barrier does, among
// threads that use the same named barrier that does, in a warp a warp function does (whichever lanes take
// part), between blocks nothing does.
#include <stdlib.h>

#include "state.h"

namespace emulator {

struct Stamp {
  unsigned block, phase, warp_phase;
  short thread;
  bool used, atomic;
  unsigned team_phase;
  bool several, blocks;  // other threads of the phase, or of other blocks, did the same before
};

struct Accesses {
  Stamp write, read;
};

static bool unordered(const Stamp& before, const Stamp& now, bool shared) {
  if (!before.used) return false;
  if (before.blocks) return true;
  if (before.block != now.block) return !shared;
  if (before.phase != now.phase) return false;
  // The other thread has passed this thread's barrier since, or this one would still wait.
  bool same_team = current->team && team_of(before.thread) == current->team;
  if (same_team && before.team_phase != now.team_phase) return false;
  if (before.thread == now.thread && !before.several) return false;
  return before.thread / 32 != now.thread / 32 || before.several || before.warp_phase == now.warp_phase;
}

[[noreturn]] static void report_race(const Region& r, const char* address, const Stamp& other, bool wrote,
                                     bool writes, const void* caller) {
  const dim3& b = launch->block;
  unsigned t = other.thread;
  std::string who = format("thread (%u,%u,%u)", t % b.x, t / b.x % b.y, t / b.x / b.y);
  if (other.block != block_number) who += format(" of block number %u", other.block);
  fail(
      format("race: %s byte %td of %s, which %s %s with nothing between them that orders the two. ",
             writes ? "writes" : "reads", address - r.begin, r.name.c_str(), who.c_str(),
             wrote ? "writes" : "reads") +
          (other.block != block_number ? "Blocks run in any order: use an atomic function or a second kernel."
                                       : "Put a __syncthreads() between them, or use an atomic function."),
      caller);
}

static void remember(Stamp& last, const Stamp& now, bool shared) {
  bool several = unordered(last, now, shared);
  bool blocks = !shared && last.used && (last.blocks || last.block != now.block);
  last = now;
  last.several = several;
  last.blocks = blocks;
}

void check_race(const void* where, size_t size, Access access, const void* caller) {
  if (!current) return;
  const char* address = static_cast<const char*>(where);
  Region* r = check_bounds(address, size, access != Access::read, caller);
  if (!r) return;
  if (!r->accesses) r->accesses = static_cast<Accesses*>(calloc(r->size, sizeof(Accesses)));
  short thread = current->number;
  Stamp now = {block_number, phase, warp_phase[thread / 32], thread, true, access == Access::atomic};
  now.team_phase = current->team_phase;
  for (const char* a = address; a < address + size; ++a) {
    Accesses& last = r->accesses[a - r->begin];
    bool atomics = now.atomic && last.write.atomic;
    if (!atomics && unordered(last.write, now, r->shared)) {
      report_race(*r, a, last.write, true, access != Access::read, caller);
    }
    if (access == Access::read) {
      remember(last.read, now, r->shared);
      continue;
    }
    if (unordered(last.read, now, r->shared)) report_race(*r, a, last.read, false, true, caller);
    remember(last.write, now, r->shared);
  }
}

}  // namespace emulator
