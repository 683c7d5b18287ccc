/* What each access of a kernel that tests/sanitizer instruments calls before it is made.

   An access outside the extent of its buffer is noted and, so that the test can go on to report it, moved to the
   buffer's first element. Under AddressSanitizer its shadow memory is asked too: that knows of memory that was
   freed, and of tensors that are larger than their memory. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int __asan_region_is_poisoned(const void *begin, size_t size) __attribute__((weak));
void __asan_report_load_n(const void *address, size_t size) __attribute__((weak));

static struct access { int64_t site, index, extent; } first;
static int64_t outside, checked;

int64_t sanitizer_checked(void) { return checked; }

int64_t sanitizer_take(struct access *found) {
  int64_t number = outside;
  *found = first, outside = 0;
  return number;
}

static int64_t access_at(const char *data, int64_t index, int64_t low, int64_t high, int64_t extent, int64_t bytes,
                         int64_t site) {
  __atomic_fetch_add(&checked, 1, __ATOMIC_RELAXED);
  if (index < -low || index >= extent - high) {
    if (!__atomic_fetch_add(&outside, 1, __ATOMIC_RELAXED)) first = (struct access){site, index < -low ? index + low : index + high, extent};
    return -low;
  }
  size_t size = (high - low + 1) * bytes;
  const char *begin = data + (index + low) * bytes;
  if (__asan_region_is_poisoned && __asan_region_is_poisoned(begin, size)) __asan_report_load_n(begin, size);
  return index;
}

/* A name for each type of pointers: LLVM takes a function to have one type. */
#define OF_TYPE(type)                                                                                        \
  int64_t sanitizer_access_##type(const char *data, int64_t index, int64_t low, int64_t high, int64_t extent, \
                                  int64_t bytes, int64_t site) {                                             \
    return access_at(data, index, low, high, extent, bytes, site);                                           \
  }
TYPES
