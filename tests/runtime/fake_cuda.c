/* The functions of libcuda that tvm_passes.runtime calls, as cuda.h declares them, without a device.

   They write down what they are asked, refuse what the driver would refuse, and "launch" a graph by calling
   back. A context has to be current in the calling thread, as for the driver. */

#include <cuda.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static char notes[1 << 16];
static void (*replay)(void);
static int invalidate;
static uintptr_t made = 0x1000;
static CUstream capturing, last_stream;
static CUgraph last_graph;
static CUgraphExec last_executable;
static CUgraphNode last_node;
static __thread int contexts;

const char *fake_notes(void) { return notes; }
void fake_reset(void (*on_launch)(void)) { notes[0] = 0, replay = on_launch, invalidate = 0, capturing = NULL; }
void fake_invalidate_next_capture(void) { invalidate = 1; }

static void note(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  size_t length = strlen(notes);
  vsnprintf(notes + length, sizeof notes - length, format, arguments);
  va_end(arguments);
}

#define REFUSE_IF(condition, error) \
  if (condition) return note(#error " "), error
#define NEEDS_CONTEXT REFUSE_IF(!contexts, CUDA_ERROR_INVALID_CONTEXT)

CUresult cuDeviceGet(CUdevice *device, int ordinal) { return *device = ordinal, CUDA_SUCCESS; }

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
  return *context = (CUcontext)(uintptr_t)(0xC0 + device), CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext context) {
  REFUSE_IF(!context, CUDA_ERROR_INVALID_CONTEXT);
  return contexts++, CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext *context) {
  NEEDS_CONTEXT;
  return contexts--, *context = (CUcontext)0xC0, CUDA_SUCCESS;
}

CUresult cuMemGetInfo(size_t *free, size_t *total) {
  NEEDS_CONTEXT;
  return *free = *total = (size_t)3 << 30, CUDA_SUCCESS;
}

CUresult cuMemcpyAsync(CUdeviceptr into, CUdeviceptr from, size_t bytes, CUstream stream) {
  NEEDS_CONTEXT;
  return memcpy((void *)into, (const void *)from, bytes), CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent *event, unsigned int flags) {
  NEEDS_CONTEXT;
  REFUSE_IF(flags != CU_EVENT_DISABLE_TIMING, CUDA_ERROR_INVALID_VALUE);
  return *event = (CUevent)made++, CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
  NEEDS_CONTEXT;
  REFUSE_IF(!event, CUDA_ERROR_INVALID_HANDLE);
  return note("record:%d ", (int)(uintptr_t)stream), CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent event) { return CUDA_SUCCESS; }

CUresult cuStreamCreate(CUstream *stream, unsigned int flags) {
  NEEDS_CONTEXT;
  REFUSE_IF(flags != CU_STREAM_NON_BLOCKING, CUDA_ERROR_INVALID_VALUE);
  return *stream = last_stream = (CUstream)made++, CUDA_SUCCESS;
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
  NEEDS_CONTEXT;
  REFUSE_IF(!event || flags, CUDA_ERROR_INVALID_VALUE);
  return note("hold:%d ", (int)(uintptr_t)stream), CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream stream) {
  NEEDS_CONTEXT;
  return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream stream) {
  REFUSE_IF(stream != last_stream, CUDA_ERROR_INVALID_HANDLE);
  return last_stream = NULL, CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode) {
  NEEDS_CONTEXT;
  REFUSE_IF(stream != last_stream || !stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  REFUSE_IF(mode != CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CUDA_ERROR_INVALID_VALUE);
  return capturing = stream, last_node = NULL, note("begin "), CUDA_SUCCESS;
}

CUresult cuStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode *nodes, size_t count, unsigned int flags) {
  REFUSE_IF(!stream || stream != capturing, CUDA_ERROR_ILLEGAL_STATE);
  REFUSE_IF(flags != CU_STREAM_SET_CAPTURE_DEPENDENCIES, CUDA_ERROR_INVALID_VALUE);
  note("after");
  for (size_t i = 0; i < count; i++) {
    REFUSE_IF(!nodes[i] || nodes[i] > last_node, CUDA_ERROR_INVALID_VALUE);
    note(":%d", (int)(uintptr_t)nodes[i]);
  }
  return note(" "), CUDA_SUCCESS;
}

/* As if a kernel had been captured since the dependencies were set; nodes count from 1. */
CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                                const CUgraphNode **nodes, size_t *count) {
  REFUSE_IF(!stream || stream != capturing, CUDA_ERROR_ILLEGAL_STATE);
  last_node = (CUgraphNode)((uintptr_t)last_node + 1);
  return *status = CU_STREAM_CAPTURE_STATUS_ACTIVE, *nodes = &last_node, *count = 1, CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
  NEEDS_CONTEXT;
  REFUSE_IF(!stream || stream != capturing, CUDA_ERROR_ILLEGAL_STATE);
  capturing = NULL, *graph = NULL;
  REFUSE_IF(invalidate, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  return *graph = last_graph = (CUgraph)made++, note("end "), CUDA_SUCCESS;
}

CUresult cuGraphInstantiate(CUgraphExec *executable, CUgraph graph, unsigned long long flags) {
  NEEDS_CONTEXT;
  REFUSE_IF(!graph || graph != last_graph || flags, CUDA_ERROR_INVALID_VALUE);
  return *executable = last_executable = (CUgraphExec)made++, CUDA_SUCCESS;
}

CUresult cuGraphLaunch(CUgraphExec executable, CUstream stream) {
  NEEDS_CONTEXT;
  REFUSE_IF(!executable || executable > last_executable, CUDA_ERROR_INVALID_VALUE);
  replay();
  return note("launch:%d ", (int)(uintptr_t)stream), CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph graph) {
  REFUSE_IF(!graph || graph != last_graph, CUDA_ERROR_INVALID_VALUE);
  return last_graph = NULL, CUDA_SUCCESS;
}

CUresult cuGraphExecDestroy(CUgraphExec executable) { return note("destroy "), CUDA_SUCCESS; }

CUresult cuGetErrorString(CUresult error, const char **meaning) {
  return *meaning = "as the fake driver wants it", CUDA_SUCCESS;
}
