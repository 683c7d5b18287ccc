/* TVM's parallel loops on OpenMP's threads, which oneDNN uses, too.
 *
 * These are two functions of TVM's interface for compiled code (c_backend_api.h). Loaded before TVM, they take
 * the place of its own, which have a second pool of threads: then those that are idle either hold a processor
 * that the other pool needs, or sleep and have to be woken for each loop. */

#include <omp.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

typedef struct {
  void *sync_handle; /* of TVM's own pool */
  int32_t num_task;
} Group;

typedef int (*Work)(int task, Group *group, void *data);

static int threads;

/* OpenMP's threads are not there in a forked process, where it would wait for them: let them end before. */
static void before_fork(void) { omp_pause_resource_all(omp_pause_soft); }

static void after_fork_in_child(void) {
  threads = 1; /* a worker of a DataLoader is one of many */
  omp_set_num_threads(1);
}

__attribute__((constructor)) static void start(void) {
  const char *given = getenv("TVM_NUM_THREADS");
  threads = given ? atoi(given) : 0;
  if (threads < 1) threads = omp_get_max_threads();
  pthread_atfork(before_fork, 0, after_fork_in_child);
}

/* Run a loop in so many tasks, or in as many as there are threads for 0. Work divides itself by the number of
 * tasks that it is told, which may be smaller. */
int TVMBackendParallelLaunch(Work work, void *data, int tasks) {
  if (tasks < 1 || tasks > threads) tasks = threads;
  if (tasks == 1 || omp_in_parallel()) {
    Group alone = {0, 1};
    return work(0, &alone, data);
  }
  int failed = 0;
#pragma omp parallel num_threads(tasks) reduction(| : failed)
  {
    Group group = {0, omp_get_num_threads()};
    failed |= work(omp_get_thread_num(), &group, data) != 0;
  }
  return failed ? -1 : 0;
}

int TVMBackendParallelBarrier(int task, Group *group) {
  if (group->num_task > 1) {
#pragma omp barrier
  }
  return 0;
}
