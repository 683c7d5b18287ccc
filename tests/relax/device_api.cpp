// The device of TVM 0.27 whose memory is the emulator's, which knows the exact size of each allocation.
#include <tvm/runtime/device_api.h>

#include <cstring>

namespace emulator {
extern "C" void* emulator_allocate(size_t size);
extern "C" void emulator_release(void* memory);
}  // namespace emulator

namespace {

class Emulated final : public tvm::runtime::DeviceAPI {
 public:
  void SetDevice(DLDevice) final {}
  void GetAttr(DLDevice, tvm::runtime::DeviceAttrKind kind, tvm::ffi::Any* value) final {
    if (kind == tvm::runtime::kExist) *value = 1;
  }
  void* AllocDataSpace(DLDevice, size_t size, size_t, DLDataType) final {
    return emulator::emulator_allocate(size);
  }
  void FreeDataSpace(DLDevice, void* memory) final { emulator::emulator_release(memory); }
  void* AllocWorkspace(DLDevice, size_t size, DLDataType) final { return emulator::emulator_allocate(size); }
  void FreeWorkspace(DLDevice, void* memory) final { emulator::emulator_release(memory); }
  void StreamSync(DLDevice, TVMStreamHandle) final {}

 protected:
  void CopyDataFromTo(const void* from, size_t from_offset, void* to, size_t to_offset, size_t size, DLDevice,
                      DLDevice, DLDataType, TVMStreamHandle) final {
    std::memcpy(static_cast<char*>(to) + to_offset, static_cast<const char*>(from) + from_offset, size);
  }
};

}  // namespace

extern "C" void* emulated_device() {
  static Emulated device;
  return &device;
}
