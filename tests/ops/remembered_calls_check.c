/* Remembers, makes and forgets calls in several threads, with stand-ins for TVM and oneDNN; under sanitizers. */

#include <assert.h>
#include <stdio.h>

#include "../../topi_ext/onednn/remembered_calls.c"

enum { CALLS = 300, THREADS = 4 };

static __thread long executed, in_python;

static int python_call(void *function, Value *values, int *types, int count, Value *result, int *type) {
  assert(function == (void *)&in_python && count == 3 && types[0] == STRING && values && result && type);
  in_python++;
  return 0;
}

static int execute_one(void *primitive, void *stream, int count, void *arguments) {
  assert(stream == &executed && count == 2 && *(void **)arguments);
  executed += *(long *)primitive;
  return 0;
}

static int move_one(void *memory, void *address) {
  *(void **)memory = address;
  return 0;
}

static void *in_a_thread(void *ignored) {
  (void)ignored;
  char text[CALLS][32];
  long one = 1;
  uint8_t weights[5] = {1, 2, 3, 4, 5}, samples[3] = {1, 3, 5};
  int64_t shape[1] = {7}, of_weight[2] = {7, 5};
  Shapes shapes = {{{7}, {7, 5}}};
  void *moved = 0;
  Move moves[1] = {{0, &moved}};
  Steps steps = {&one, &executed, &moved, 2, 1, moves, samples, 3, 2, 1};
  Tensor data = {.data = (char *)&one, .rank = 1, .shape = shape, .byte_offset = 4};
  Tensor weight = {.data = (char *)weights, .rank = 2, .shape = of_weight};
  Value values[3] = {{.text = 0}, {.handle = &data}, {.handle = &weight}};
  int types[3] = {STRING, TENSOR, ARRAY};
  Call *calls[CALLS];
  for (int round = 0; round < 3; round++) {
    for (int at = 0; at < CALLS; at++) {
      snprintf(text[at], sizeof text[at], "problem %d", at);
      values->text = text[at];
      long before = in_python;
      assert(!call_again_in_relay(values, types, 3, 0, &in_python) && in_python == before + 1);
      assert((calls[at] = remember_call(text[at], &shapes, &steps)));
      assert(!call_again_in_relay(values, types, 3, 0, &in_python) && in_python == before + 1);
      assert(moved == (char *)&one + 4);
    }
    assert(table->call_count <= table->bucket_count && table->bucket_count <= 4 * CALLS);
    weights[2]++; /* one that is a sample */
    long before = in_python;
    assert(!call_again_in_relay(values, types, 3, 0, &in_python) && in_python == before + 1);
    weights[2]--;
    shape[0]++; /* another length */
    assert(!call_again_in_relay(values, types, 3, 0, &in_python) && in_python == before + 2);
    shape[0]--;
    of_weight[1]++; /* and of the second tensor */
    assert(!call_again_in_relay(values, types, 3, 0, &in_python) && in_python == before + 3);
    of_weight[1]--;
    if (round == 1) forget_all_of_thread();
    for (int at = 0; at < CALLS; at++) forget(calls[at]);
  }
  assert(executed == 3 * CALLS);
  Call *last = remember_call("the thread ends with this", &shapes, &steps);
  values->text = "the thread ends with this";
  assert(!call_again_in_relay(values, types, 3, 0, &in_python) && executed == 3 * CALLS + 1);
  return last;
}

static int ffi_call(void *function, const Any *values, int32_t count, Any *result) {
  assert(function == (void *)&in_python && count == 3 && values[0].type == FFI_STRING && result);
  in_python++;
  return 0;
}

static void in_relax(void) {
  struct {
    char header[FFI_HEADER];
    Tensor tensor;
  } object;
  long one = 1, before = executed;
  int64_t shape[1] = {3};
  Shapes shapes = {{{3}, {3}}};
  void *moved[2] = {0};
  Move moves[2] = {{1, &moved[0]}, {0, &moved[1]}};
  Steps steps = {&one, &executed, moved, 2, 2, moves, 0, 0, 0, 0};
  Tensor data = {.data = (char *)&one, .rank = 1, .shape = shape};
  object.tensor = data;
  object.tensor.data = (char *)&before;
  Any values[3] = {{FFI_STRING, 0, {.text = "a problem"}}, {FFI_POINTER, 0, {.handle = &data}}};
  values[2] = (Any){FFI_TENSOR, 0, {.handle = &object}};
  Any result = {5, 0, {.integer = 5}};
  in_python = 0;
  assert(!call_again_in_relax(&in_python, values, 3, &result) && in_python == 1);
  Call *call = remember_call("a problem", &shapes, &steps);
  assert(!call_again_in_relax(&in_python, values, 3, &result) && in_python == 1 && executed == before + 1);
  assert(result.type == FFI_NONE && moved[0] == &before && moved[1] == &one);
  values[1].type = FFI_NONE; /* no tensor */
  assert(!call_again_in_relax(&in_python, values, 3, &result) && in_python == 2);
  forget(call);
  values[1].type = FFI_POINTER;
  assert(!call_again_in_relax(&in_python, values, 3, &result) && in_python == 3);
}

int main(void) {
  pthread_t threads[THREADS];
  use_tvm((void *)python_call);
  use_onednn((void *)execute_one, (void *)move_one);
  for (int at = 0; at < THREADS; at++) assert(!pthread_create(&threads[at], 0, in_a_thread, 0));
  for (int at = 0; at < THREADS; at++) {
    void *last;
    assert(!pthread_join(threads[at], &last));
    forget(last); /* from another thread, after the end of its own */
  }
  use_tvm((void *)ffi_call);
  in_relax();
  forget_all_of_thread();
  puts("done");
  return 0;
}
