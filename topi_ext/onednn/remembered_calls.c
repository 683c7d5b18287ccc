/* Calls of oneDNN that a thread has made before, made again without Python, which takes 50 us for each.
 *
 * Compiled code calls a packed function with the text of a problem, and tensors. Python makes the primitive and
 * the memories of a problem, and then tells `remember_call` which of them get which tensor's address. From then on
 * the call is these few steps; for any other, or if samples of the weights differ from what was packed, Python
 * is called as before. `calls.py` says what it hands over. */

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Types of arguments: those of TVM's c_runtime_api.h, and of tvm/ffi/c_api.h, whose objects have a header. */
enum { STRING = 11, TENSOR = 7, ARRAY = 13 };
enum { FFI_NONE = 0, FFI_POINTER = 7, FFI_STRING = 8, FFI_TENSOR = 70, FFI_HEADER = 24 };
enum { FIRST_BUCKETS = 64, MOST_TENSORS = 8 };
enum { SHAPES = 2, MOST_AXES = 4 }; /* what a problem leaves open is in the shapes of its operands */

typedef union {
  int64_t integer;
  double number;
  void *handle;
  const char *text;
} Value;

typedef struct {
  int32_t type;
  uint32_t padding;
  Value value;
} Any;

typedef struct { /* of dlpack.h */
  char *data;
  int32_t device[2];
  int32_t rank;
  int32_t dtype;
  int64_t *shape;
  int64_t *strides;
  uint64_t byte_offset;
} Tensor;

typedef struct {
  int32_t tensor; /* which of the arguments */
  void *memory;   /* that gets its address */
} Move;

typedef struct {
  void *primitive, *stream, *arguments;
  int32_t argument_count, move_count;
  const Move *moves;
  const uint8_t *samples; /* of the weights, `sample_step` bytes apart */
  int32_t sample_count, sample_step, weights;
} Steps;

typedef struct { /* of the first tensors; 0 where there is no such axis */
  int64_t extents[SHAPES][MOST_AXES];
} Shapes;

typedef struct Call {
  struct Call *next;
  Steps steps;
  uint64_t hash;
  Shapes shapes;
  int owners; /* the table, and Python */
  int is_forgotten;
  char text[];
} Call;

typedef struct {
  Call **buckets;
  size_t bucket_count, call_count;
} Table;

typedef int (*CallOfRelay)(void *, Value *, int *, int, Value *, int *);
typedef int (*CallOfRelax)(void *, const Any *, int32_t, Any *);

static void *call_function; /* of TVM: it calls one that Python has registered */
static int (*execute)(void *, void *, int, void *);
static int (*move)(void *, void *);

static pthread_key_t key;
static __thread Table *table;

static void release(Call *call) {
  if (__atomic_sub_fetch(&call->owners, 1, __ATOMIC_ACQ_REL) == 0) free(call);
}

static int is_forgotten(const Call *call) { return __atomic_load_n(&call->is_forgotten, __ATOMIC_ACQUIRE); }

static void clear(Table *of) {
  for (size_t at = 0; at < of->bucket_count; at++) {
    for (Call *call = of->buckets[at], *next; call; call = next) {
      next = call->next;
      release(call);
    }
  }
  free(of->buckets);
  memset(of, 0, sizeof *of);
}

static void end_of_thread(void *of) {
  clear(of);
  free(of);
}

__attribute__((constructor)) static void start(void) { pthread_key_create(&key, end_of_thread); }

static uint64_t hash_of(const char *text, const Shapes *shapes) {
  uint64_t hash = 1469598103934665603u; /* FNV-1a */
  for (int at = 0; at < SHAPES * MOST_AXES; at++)
    hash = (hash ^ (uint64_t)shapes->extents[at / MOST_AXES][at % MOST_AXES]) * 1099511628211u;
  for (; *text; text++) hash = (hash ^ (uint8_t)*text) * 1099511628211u;
  return hash;
}

/* Whether there are so many axes at most. */
static int have_shapes(const Tensor *const *tensors, int count, Shapes *shapes) {
  memset(shapes, 0, sizeof *shapes);
  for (int at = 0; at < SHAPES && at < count; at++) {
    if (tensors[at]->rank > MOST_AXES) return 0;
    for (int axis = 0; axis < tensors[at]->rank; axis++) shapes->extents[at][axis] = tensors[at]->shape[axis];
  }
  return 1;
}

static Call *found(const char *text, const Shapes *shapes) {
  if (!table || !table->bucket_count) return 0;
  uint64_t hash = hash_of(text, shapes);
  Call *call = table->buckets[hash & (table->bucket_count - 1)];
  while (call && (call->hash != hash || memcmp(&call->shapes, shapes, sizeof *shapes) || is_forgotten(call) ||
                  strcmp(call->text, text)))
    call = call->next;
  return call;
}

static size_t still_known(void) {
  size_t count = 0;
  for (size_t at = 0; at < table->bucket_count; at++) {
    for (const Call *call = table->buckets[at]; call; call = call->next) count += !is_forgotten(call);
  }
  return count;
}

/* Take the forgotten calls out, and have at least twice as many buckets as others. */
static int make_room(void) {
  size_t count = FIRST_BUCKETS, known = still_known();
  while (count < 2 * known) count *= 2;
  Call **buckets = calloc(count, sizeof *buckets);
  if (!buckets) return 0;
  table->call_count = known;
  for (size_t at = 0; at < table->bucket_count; at++) {
    for (Call *call = table->buckets[at], *next; call; call = next) {
      next = call->next;
      if (is_forgotten(call)) {
        release(call);
        continue;
      }
      Call **bucket = &buckets[call->hash & (count - 1)];
      call->next = *bucket;
      *bucket = call;
    }
  }
  free(table->buckets);
  table->buckets = buckets;
  table->bucket_count = count;
  return 1;
}

static char *address_of(const Tensor *tensor) { return tensor->data + tensor->byte_offset; }

static int has_new_weights(const Steps *steps, const Tensor *const *tensors) {
  if (!steps->samples) return 0;
  const uint8_t *weights = (const uint8_t *)address_of(tensors[steps->weights]);
  for (int at = 0; at < steps->sample_count; at++) {
    if (weights[(int64_t)at * steps->sample_step] != steps->samples[at]) return 1;
  }
  return 0;
}

/* Make a call if it is remembered. */
static int is_made(const char *text, const Tensor *const *tensors, int count) {
  Shapes shapes;
  Call *call = have_shapes(tensors, count, &shapes) ? found(text, &shapes) : 0;
  if (!call || has_new_weights(&call->steps, tensors)) return 0;
  const Steps *steps = &call->steps;
  for (int at = 0; at < steps->move_count; at++) {
    if (move(steps->moves[at].memory, address_of(tensors[steps->moves[at].tensor]))) return 0;
  }
  return !execute(steps->primitive, steps->stream, steps->argument_count, steps->arguments);
}

/* TVMFuncCall or TVMFFIFunctionCall, before any call. */
void use_tvm(void *function) { call_function = function; }

/* dnnl_primitive_execute and dnnl_memory_set_data_handle, before any call is remembered. */
void use_onednn(void *of_execute, void *of_move) {
  execute = (int (*)(void *, void *, int, void *))of_execute;
  move = (int (*)(void *, void *))of_move;
}

/* What the table of this thread then has for such calls; of Python, until it is forgotten. */
Call *remember_call(const char *text, const Shapes *shapes, const Steps *steps) {
  if (!table) {
    table = calloc(1, sizeof *table);
    if (!table) return 0;
    pthread_setspecific(key, table);
  }
  if (table->call_count >= table->bucket_count && !make_room()) return 0;
  size_t size = strlen(text) + 1;
  Call *call = calloc(1, sizeof *call + size);
  if (!call) return 0;
  memcpy(call->text, text, size);
  call->steps = *steps;
  call->shapes = *shapes;
  call->hash = hash_of(text, shapes);
  call->owners = 2;
  Call **bucket = &table->buckets[call->hash & (table->bucket_count - 1)];
  call->next = *bucket;
  *bucket = call;
  table->call_count++;
  return call;
}

void forget_all_of_thread(void) {
  if (table) clear(table);
}

/* In any thread, but not while the call's own thread makes it. */
void forget(Call *call) {
  __atomic_store_n(&call->is_forgotten, 1, __ATOMIC_RELEASE);
  release(call);
}

/* A packed function of a TVM with Relay; `python` is the one to call where nothing is remembered. */
int call_again_in_relay(Value *values, int *types, int count, void *result, void *python) {
  (void)result; /* these functions return nothing */
  const Tensor *tensors[MOST_TENSORS];
  int given = count > 1 && count <= 1 + MOST_TENSORS && types[0] == STRING ? count - 1 : 0;
  for (int at = 0; at < given; at++) {
    int type = types[1 + at];
    if (type != TENSOR && type != ARRAY) given = 0;
    tensors[at] = values[1 + at].handle;
  }
  if (given && is_made(values[0].text, tensors, given)) return 0;
  Value ignored;
  int type;
  return ((CallOfRelay)call_function)(python, values, types, count, &ignored, &type);
}

/* The same for a TVM with Relax. */
int call_again_in_relax(void *python, const Any *values, int32_t count, Any *result) {
  const Tensor *tensors[MOST_TENSORS];
  int given = count > 1 && count <= 1 + MOST_TENSORS && values[0].type == FFI_STRING ? count - 1 : 0;
  for (int at = 0; at < given; at++) {
    int32_t type = values[1 + at].type;
    if (type != FFI_POINTER && type != FFI_TENSOR) given = 0;
    const char *place = values[1 + at].value.handle;
    tensors[at] = (const Tensor *)(type == FFI_TENSOR ? place + FFI_HEADER : place);
  }
  if (!given || !is_made(values[0].value.text, tensors, given))
    return ((CallOfRelax)call_function)(python, values, count, result);
  *result = (Any){FFI_NONE, 0, {0}};
  return 0;
}
