// The memory of the emulated device: host memory whose exact sizes are known.
//
// TVM asks for device memory through the virtual functions of its CUDADeviceAPI object. While the
// emulation lasts that object has the functions of the CPU's, except for allocations, which come from
// here: they are filled with junk as new device memory may be, workspaces get no rounding to pages, and
// every size is known to the bounds check. Since the object itself stays, it does not matter whether TVM
// has already cached it. Afterwards it has its own functions back, except that it still knows how to free
// what was allocated here: arrays may outlive the emulation.
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include <map>

#include "state.h"

namespace emulator {

struct DLDevice {
  int type, id;
};
struct DLDataType {
  uint8_t code, bits;
  uint16_t lanes;
};
struct DeviceAPI {
  void** functions;
};

constexpr int kVirtualFunctions = 48;  // more than it has; the next tables are copied along, unused
constexpr size_t kAlignment = 256;     // what cudaMalloc promises

static std::map<const char*, size_t> allocations;
static DeviceAPI* device;
static void** functions_of_cuda;
static void *emulated[kVirtualFunctions + 2], *guarded[kVirtualFunctions + 2];
static void (*free_on_gpu[2])(DeviceAPI*, DLDevice, void*);

static void* allocate(size_t size) {
  void* memory = nullptr;
  if (posix_memalign(&memory, kAlignment, size + kAlignment)) abort();
  memset(memory, 0xff, size);
  allocations[static_cast<char*>(memory)] = size;
  return memory;
}

static bool release(void* memory) {
  if (!allocations.erase(static_cast<char*>(memory))) return false;
  free(memory);
  return true;
}

// For a device of another TVM, which calls these by itself.
extern "C" void* emulator_allocate(size_t size) { return allocate(size); }
extern "C" void emulator_release(void* memory) { release(memory); }

static void* alloc_data(DeviceAPI*, DLDevice, size_t size, size_t, DLDataType) { return allocate(size); }
static void* alloc_workspace(DeviceAPI*, DLDevice, size_t size, DLDataType) { return allocate(size); }
static void free_data(DeviceAPI* api, DLDevice device, void* memory) {
  if (!release(memory)) free_on_gpu[0](api, device, memory);
}
static void free_workspace(DeviceAPI* api, DLDevice device, void* memory) {
  if (!release(memory)) free_on_gpu[1](api, device, memory);
}

// Where a virtual function lies is read from the symbol that its entry points to.
static int find_function(void** functions, const char* symbol) {
  for (int i = 0; i < kVirtualFunctions; ++i) {
    Dl_info info;
    if (functions[i] && dladdr(functions[i], &info) && info.dli_sname && strstr(info.dli_sname, symbol))
      return i;
  }
  return -1;
}

// Answers null, or why this TVM cannot be given an emulated device.
extern "C" const char* emulator_prepare(DeviceAPI* cuda, DeviceAPI* cpu) {
  struct {
    const char* symbol;
    void *emulated, *guarded;
  } replaced[] = {
      {"AllocDataSpaceE8DLDevicemm", (void*)alloc_data, nullptr},
      {"AllocWorkspaceE8DLDevicem", (void*)alloc_workspace, nullptr},
      {"FreeDataSpaceE8DLDevicePv", (void*)free_data, (void*)free_data},
      {"FreeWorkspaceE8DLDevicePv", (void*)free_workspace, (void*)free_workspace},
  };
  device = cuda;
  functions_of_cuda = cuda->functions;
  memcpy(emulated, cpu->functions - 2, sizeof emulated);  // two words of type information come first
  memcpy(guarded, cuda->functions - 2, sizeof guarded);
  for (auto& r : replaced) {
    int in_cpu = find_function(cpu->functions, r.symbol), in_cuda = find_function(cuda->functions, r.symbol);
    if (in_cpu < 0 || in_cpu != in_cuda) return "its library does not name the functions of its device API";
    emulated[2 + in_cpu] = r.emulated;
    if (!r.guarded) continue;
    guarded[2 + in_cuda] = r.guarded;
    memcpy(&free_on_gpu[r.emulated == (void*)free_workspace], &functions_of_cuda[in_cuda], sizeof(void*));
  }
  return nullptr;
}

extern "C" void emulator_enter() { device->functions = emulated + 2; }
extern "C" void emulator_leave() { device->functions = guarded + 2; }

bool find_allocation(const void* pointer, const char** begin, size_t* size) {
  auto after = allocations.upper_bound(static_cast<const char*>(pointer));
  if (after == allocations.begin()) return false;
  auto found = std::prev(after);
  *begin = found->first;
  *size = found->second;
  return pointer <= *begin + *size;
}

}  // namespace emulator
