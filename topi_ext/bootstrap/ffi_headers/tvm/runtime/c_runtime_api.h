/* What TVM's Cython sources name of the C interface that libtvm.so exports, for wheels without TVM's headers. */
#ifndef TVM_VISION_PASSES_C_RUNTIME_API_H_
#define TVM_VISION_PASSES_C_RUNTIME_API_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
  int device_type;
  int device_id;
} DLDevice;

typedef struct {
  uint8_t code, bits;
  uint16_t lanes;
} DLDataType;

typedef struct {
  void* data;
  DLDevice device;
  int ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
} DLTensor;

typedef struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(struct DLManagedTensor* self);
} DLManagedTensor;

typedef union {
  int64_t v_int64;
  double v_float64;
  void* v_handle;
  const char* v_str;
  DLDataType v_type;
  DLDevice v_device;
} TVMValue;

typedef int (*TVMPackedCFunc)(TVMValue*, int*, int, void*, void*);
typedef void (*TVMPackedCFuncFinalizer)(void*);

void TVMAPISetLastError(const char*);
void TVMAPISetLastPythonError(void*);
const char* TVMGetLastError(void);

int TVMFuncGetGlobal(const char*, void**);
int TVMFuncCall(void*, TVMValue*, int*, int, TVMValue*, int*);
int TVMFuncFree(void*);
int TVMFuncCreateFromCFunc(TVMPackedCFunc, void*, TVMPackedCFuncFinalizer, void**);
int TVMCFuncSetReturn(void*, TVMValue*, int*, int);
int TVMCbArgToReturn(TVMValue*, int*);

int TVMArrayAlloc(int64_t*, int64_t, DLDataType, DLDevice, DLTensor**);
int TVMArrayFree(DLTensor*);
int TVMArrayCopyFromTo(DLTensor*, DLTensor*, void*);
int TVMArrayFromDLPack(DLManagedTensor*, DLTensor**);
int TVMArrayToDLPack(DLTensor*, DLManagedTensor**);
void TVMDLManagedTensorCallDeleter(DLManagedTensor*);

int TVMObjectFree(void*);
int TVMObjectGetTypeIndex(void*, unsigned*);

#ifdef __cplusplus
}
#endif
#endif
