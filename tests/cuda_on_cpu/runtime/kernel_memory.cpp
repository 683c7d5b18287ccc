// What a kernel may touch, and whether its threads touch it in an order.
//
// A kernel built with sanitize="address" or "thread" reports each access here (see sanitizers.cpp).
// It may touch the buffers that its pointer arguments lie in, its shared arrays, its thread's stack and
// its own constants: nothing else, also where other memory happens to follow.
//
// With "thread", each byte remembers its last write and last read. Two accesses race if they are by
// different threads, one of them writes, not both are atomic, and nothing orders them: in a block a
// barrier does, in a warp a warp function does (whichever lanes take part), between blocks nothing does.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>

#include "state.h"

namespace emulator {

struct Stamp {
  unsigned block, phase, warp_phase;
  short thread;
  bool used, atomic;
  bool several, blocks;  // other threads of the phase, or of other blocks, did the same before
};

struct Byte {
  Stamp write, read;
};

struct Region {
  const char* begin;
  size_t size;
  std::string name;
  bool shared;
  Byte* bytes;  // only when looking for races
  bool has(const char* first, size_t count) const { return first >= begin && first + count <= begin + size; }
};

constexpr size_t kStaticShared = 48 << 10, kShared = 163 << 10;  // of compute capability 8.0
constexpr size_t kGap = 256;                                     // between shared arrays
constexpr size_t kArena = 1 << 20;

static std::vector<Region> regions;
static std::vector<char*> slots;  // shared arrays by their number in the source
static char* arena;
static size_t arena_used, static_shared;
static char* dynamic_shared;

static void add_region(const char* begin, size_t size, const std::string& name, bool shared) {
  regions.push_back({begin, size, name, shared, nullptr});
}

std::string open_memory(const Launch& l) {
  arena_used = static_shared = 0;
  slots.clear();
  for (int i = 0; i < l.num_arguments; ++i) {
    const char* begin;
    size_t size;
    if (!l.pointers[i]) continue;
    if (!find_allocation(l.pointers[i], &begin, &size)) {
      return format(
          "kernel %s: argument %d points to no memory of the device; copy it there first, and use it "
          "before it is freed",
          l.kernel, i);
    }
    bool known =
        std::any_of(regions.begin(), regions.end(), [&](const Region& r) { return r.begin == begin; });
    if (!known) add_region(begin, size, format("argument %d", i), false);
  }
  if (!arena) arena = static_cast<char*>(aligned_alloc(kGap, kArena));
  dynamic_shared = arena + kGap;
  arena_used = 2 * kGap + (l.dynamic_shared + kGap - 1) / kGap * kGap;
  if (l.dynamic_shared > kShared) {
    return format("kernel %s: %zu bytes of dynamic shared memory; a block has %zu", l.kernel,
                  l.dynamic_shared, kShared);
  }
  add_region(dynamic_shared, l.dynamic_shared, "the dynamic shared memory", true);
  return "";
}

// Each block finds junk in its shared memory. ~0 is NaN, or an index that stands out.
void open_block() {
  if (arena_used > 2 * kGap) memset(arena, 0xff, arena_used);
}

void close_memory() {
  for (Region& r : regions) free(r.bytes);
  regions.clear();
}

extern "C" void* emulator_shared(int slot, const char* name, size_t size) {
  if (slot >= int(slots.size())) slots.resize(slot + 1);
  if (!slots[slot]) {
    static_shared += size;
    if (static_shared > kStaticShared) {
      fail(format(
          "%zu bytes of static shared memory with \"%s\"; a block has %zu. Use smaller tiles, or dynamic "
          "shared memory.",
          static_shared, name, kStaticShared));
    }
    slots[slot] = arena + arena_used;
    memset(slots[slot], 0xff, size + kGap);
    arena_used += (size + 2 * kGap - 1) / kGap * kGap;
    add_region(slots[slot], size, format("shared array \"%s\"", name), true);
  }
  return slots[slot];
}

extern "C" void* emulator_dynamic_shared() { return dynamic_shared; }

// --- bounds

static std::string nearest(const char* address) {
  auto distance = [&](const Region& r) {
    return address < r.begin             ? r.begin - address
           : address >= r.begin + r.size ? address - r.begin - r.size
                                         : 0;
  };
  auto nearer = [&](const Region& a, const Region& b) { return distance(a) < distance(b); };
  const Region& r = *std::min_element(regions.begin(), regions.end(), nearer);
  bool before = address < r.begin;
  if (distance(r) > (1 << 20)) return "far from all its buffers";
  return format("%td bytes %s %s, which has %zu bytes", distance(r), before ? "before" : "past the end of",
                r.name.c_str(), r.size);
}

static Region* find_region(const char* address, size_t size) {
  for (Region& r : regions) {
    if (r.has(address, size)) return &r;
  }
  return nullptr;
}

static Region* check_bounds(const char* address, size_t size, bool writes, const void* caller) {
  static Region* last;
  if (last >= regions.data() && last < regions.data() + regions.size() && last->has(address, size))
    return last;
  if (Region* found = find_region(address, size)) return last = found;
  if (on_current_stack(address)) return nullptr;
  bool constant = address >= launch->library_begin && address + size <= launch->library_end;
  if (constant && !writes) return nullptr;
  fail(format("out of bounds: %s %zu bytes %s", writes ? "writes" : "reads", size, nearest(address).c_str()),
       caller);
}

void check_access(const void* address, size_t size, bool writes, bool aligned, const void* caller) {
  if (!current) return;
  check_bounds(static_cast<const char*>(address), size, writes, caller);
  if (aligned && reinterpret_cast<uintptr_t>(address) % size) {
    fail(format("misaligned address: %s %zu bytes at %p", writes ? "writes" : "reads", size, address),
         caller);
  }
}

// --- races

static bool unordered(const Stamp& before, const Stamp& now, bool shared) {
  if (!before.used) return false;
  if (before.blocks) return true;
  if (before.block != now.block) return !shared;
  if (before.phase != now.phase) return false;
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
  if (!r->bytes) r->bytes = static_cast<Byte*>(calloc(r->size, sizeof(Byte)));
  short thread = current->number;
  Stamp now = {block_number, phase, warp_phase[thread / 32], thread, true, access == Access::atomic,
               false,        false};
  for (const char* a = address; a < address + size; ++a) {
    Byte& byte = r->bytes[a - r->begin];
    bool atomics = now.atomic && byte.write.atomic;
    if (!atomics && unordered(byte.write, now, r->shared)) {
      report_race(*r, a, byte.write, true, access != Access::read, caller);
    }
    if (access == Access::read) {
      remember(byte.read, now, r->shared);
      continue;
    }
    if (unordered(byte.read, now, r->shared)) report_race(*r, a, byte.read, false, true, caller);
    remember(byte.write, now, r->shared);
  }
}

// --- where in the CUDA source: "file.cu:12 `text of the line`"

static std::string read_line(const std::string& path, int number) {
  std::string text;
  if (FILE* file = fopen(path.c_str(), "r")) {
    char line[512];
    for (int i = 0; i < number && fgets(line, sizeof line, file); ++i) text = line;
    fclose(file);
  }
  size_t begin = text.find_first_not_of(" \t"), end = text.find_last_not_of(" \t\n");
  return begin == std::string::npos ? "" : text.substr(begin, end - begin + 1);
}

std::string source_line(const void* caller) {
  Dl_info info;
  if (!caller || !dladdr(caller, &info)) return "";
  size_t offset = static_cast<const char*>(caller) - static_cast<const char*>(info.dli_fbase) - 1;
  std::string command = format("addr2line -i -e '%s' 0x%zx 2>/dev/null", info.dli_fname, offset);
  std::string found;
  if (FILE* lines = popen(command.c_str(), "r")) {
    char line[512];
    while (fgets(line, sizeof line, lines)) {
      std::string text = line;
      size_t colon = text.find(".cu:");
      if (found.empty() && colon != std::string::npos) {
        int number = atoi(text.c_str() + colon + 4);
        found = format(", line %d `", number) + read_line(text.substr(0, colon + 3), number) + "`";
      }
    }
    pclose(lines);
  }
  return found;
}

}  // namespace emulator
