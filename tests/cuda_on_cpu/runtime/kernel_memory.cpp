// What a kernel may touch.
//
// A kernel built with sanitize="address" or "thread" reports each access here (see sanitizers.cpp).
// It may touch the buffers that its pointer arguments lie in, its shared arrays, its thread's stack and
// its own constants: nothing else, also where other memory happens to follow.
#include <stdlib.h>
#include <string.h>

#include <algorithm>

#include "state.h"

namespace emulator {

constexpr size_t kStaticShared = 48 << 10;
constexpr size_t kGap = 256;  // between shared arrays
constexpr size_t kDynamicShared = 1 << 10;  // where it begins: a GPU keeps as much for itself, so it is aligned
constexpr size_t kArena = 1 << 20;

static std::vector<Region> regions;
static Region* last_found;
static std::vector<char*> slots;  // shared arrays by their number in the source
static char* arena;
static size_t arena_used, static_shared;
static char* dynamic_shared;

static void add_region(const char* begin, size_t size, const std::string& name, bool shared) {
  last_found = nullptr;
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
  if (!arena) arena = static_cast<char*>(aligned_alloc(kDynamicShared, kArena));
  dynamic_shared = arena + kDynamicShared;
  arena_used = kDynamicShared + kGap + (l.dynamic_shared + kGap - 1) / kGap * kGap;
  if (l.dynamic_shared > l.shared_limit) {
    return format("kernel %s: %zu bytes of dynamic shared memory; a block has %zu", l.kernel,
                  l.dynamic_shared, l.shared_limit);
  }
  add_region(dynamic_shared, l.dynamic_shared, "the dynamic shared memory", true);
  return "";
}

// Each block finds junk in its shared memory. ~0 is NaN, or an index that stands out.
void open_block() {
  if (arena_used > 2 * kGap) memset(arena, 0xff, arena_used);
}

void close_memory() {
  for (Region& r : regions) free(r.accesses);
  regions.clear();
  last_found = nullptr;
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
    return address < r.begin ? r.begin - address : std::max<ptrdiff_t>(0, address - r.begin - r.size);
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

Region* check_bounds(const char* address, size_t size, bool writes, const void* caller) {
  if (last_found && last_found->has(address, size)) return last_found;
  if (Region* found = find_region(address, size)) return last_found = found;
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

}  // namespace emulator
