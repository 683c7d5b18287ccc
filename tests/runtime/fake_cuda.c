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
static CUgraphNode last_node, waited[1024];
static size_t number_waited;
static int node_type;
static size_t number_of_parameters, *parameter_sizes;
static void **parameters;
static __thread int contexts;

const char *fake_notes(void) { return notes; }
void fake_reset(void (*on_launch)(void)) {
  notes[0] = 0, replay = on_launch, invalidate = 0, capturing = NULL, number_waited = 0;
}
void fake_invalidate_next_capture(void) { invalidate = 1; }

/* Of all nodes from now on. */
void fake_kernel(int type, size_t count, void **values, size_t *sizes) {
  node_type = type, number_of_parameters = count, parameters = values, parameter_sizes = sizes;
}

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

/* The work before an event takes as long as the test wants. */
static int is_done;
void fake_work_is_done(int done) { is_done = done; }
CUresult cuEventQuery(CUevent event) { return is_done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY; }

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
  REFUSE_IF(count > sizeof waited / sizeof *waited, CUDA_ERROR_OUT_OF_MEMORY);
  number_waited = count;
  for (size_t i = 0; i < count; i++) {
    REFUSE_IF(!nodes[i] || nodes[i] > last_node, CUDA_ERROR_INVALID_VALUE);
    note(":%d", (int)(uintptr_t)nodes[i]);
    waited[i] = nodes[i];
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
  REFUSE_IF(!graph || graph > last_graph, CUDA_ERROR_INVALID_VALUE);
  return CUDA_SUCCESS;
}

/* Nodes are kernels, and wait for what the last one that was captured waits for. */
CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type) { return *type = node_type, CUDA_SUCCESS; }

CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *nodes, size_t *count) {
  REFUSE_IF(nodes && !*count, CUDA_ERROR_INVALID_VALUE);
  if (nodes) memcpy(nodes, waited, sizeof *nodes * number_waited);
  return *count = number_waited, CUDA_SUCCESS;
}

CUresult cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *of) {
  memset(of, 0, sizeof *of);
  return of->func = (CUfunction)0xF, of->gridDimX = 7, of->kernelParams = parameters, CUDA_SUCCESS;
}

CUresult cuFuncGetParamInfo(CUfunction function, size_t place, size_t *offset, size_t *size) {
  if (function != (CUfunction)0xF || place >= number_of_parameters) return CUDA_ERROR_INVALID_VALUE;
  return *offset = 0, *size = parameter_sizes[place], CUDA_SUCCESS;
}

CUresult cuGraphExecKernelNodeSetParams(CUgraphExec executable, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *of) {
  NEEDS_CONTEXT;
  REFUSE_IF(!executable || of->gridDimX != 7, CUDA_ERROR_INVALID_VALUE);
  note("node:%d", (int)(uintptr_t)node);
  for (size_t i = 0; i < number_of_parameters; i++)
    note(":%lx", parameter_sizes[i] == 8 ? *(long *)of->kernelParams[i] : *(int *)of->kernelParams[i]);
  return note(" "), CUDA_SUCCESS;
}

CUresult cuGraphExecDestroy(CUgraphExec executable) { return note("destroy "), CUDA_SUCCESS; }

CUresult cuGetErrorString(CUresult error, const char **meaning) {
  return *meaning = "as the fake driver wants it", CUDA_SUCCESS;
}
