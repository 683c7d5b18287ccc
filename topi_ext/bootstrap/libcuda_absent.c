/* What TVM takes from the NVIDIA driver, for machines that have no driver.
 *
 * Every call answers CUDA_ERROR_NO_DEVICE, so TVM imports, compiles for any target and
 * runs on the CPU, and says by itself that there is no device where one is asked for. */

enum { CUDA_ERROR_NO_DEVICE = 100 };

#define NO_DEVICE(name) \
  int name(void) { return CUDA_ERROR_NO_DEVICE; }

NO_DEVICE(cuDeviceGetName)
NO_DEVICE(cuFuncSetAttribute)
NO_DEVICE(cuGetErrorName)
NO_DEVICE(cuGetErrorString)
NO_DEVICE(cuLaunchKernel)
NO_DEVICE(cuLaunchKernelEx)
NO_DEVICE(cuMemsetD32_v2)
NO_DEVICE(cuModuleGetFunction)
NO_DEVICE(cuModuleGetGlobal_v2)
NO_DEVICE(cuModuleLoadData)
NO_DEVICE(cuModuleUnload)
NO_DEVICE(cuTensorMapEncodeIm2col)
NO_DEVICE(cuTensorMapEncodeTiled)
