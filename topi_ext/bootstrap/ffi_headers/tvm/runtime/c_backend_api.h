/* See c_runtime_api.h. */
#ifndef TVM_VISION_PASSES_C_BACKEND_API_H_
#define TVM_VISION_PASSES_C_BACKEND_API_H_

extern "C" int TVMBackendRegisterEnvCAPI(const char* name, void* function);

#endif
