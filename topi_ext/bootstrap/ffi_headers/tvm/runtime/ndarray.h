/* See c_runtime_api.h. */
#ifndef TVM_VISION_PASSES_NDARRAY_H_
#define TVM_VISION_PASSES_NDARRAY_H_

#include "c_runtime_api.h"

namespace tvm {
namespace runtime {

/* What every object of TVM begins with; in an NDArray the tensor follows. */
struct ObjectHeader {
  uint32_t type_index;
  int32_t references;
  void (*deleter)(void*);
};

inline void* TVMArrayHandleToObjectHandle(DLTensor* tensor) {
  return tensor ? reinterpret_cast<ObjectHeader*>(tensor) - 1 : nullptr;
}

}  // namespace runtime
}  // namespace tvm
#endif
