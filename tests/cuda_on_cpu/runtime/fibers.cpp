// Threads of a block as fibers.
//
// A switch is _setjmp and _longjmp: unlike swapcontext they make no system call, which is what sorting with a
// million barriers needs. ucontext only makes a fiber's first frame. A fiber whose thread has ended takes the
// next one, so a kernel without barriers needs but one.
#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <memory>

#include "state.h"

namespace emulator {

constexpr size_t kStackSize = 1 << 20, kGuard = 64 << 10;

struct Fiber {
  char* stack;
  ucontext_t first;
  jmp_buf context;
  bool fresh = true;
};

static std::vector<std::unique_ptr<Fiber>> all_fibers;
static std::vector<Fiber*> idle_fibers;
static jmp_buf scheduler;

static void fiber_main() {
  for (;;) {
    launch->run_thread(launch->arguments);
    Fiber* mine = current->fiber;
    current->state = Thread::ended;
    current->fiber = nullptr;
    idle_fibers.push_back(mine);
    if (!_setjmp(mine->context)) _longjmp(scheduler, 1);
  }
}

static char* new_stack() {
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* memory = mmap(nullptr, kStackSize, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (memory == MAP_FAILED) abort();
  mprotect(memory, kGuard, PROT_NONE);
  return static_cast<char*>(memory);
}

static Fiber* idle_fiber() {
  if (idle_fibers.empty()) {
    all_fibers.push_back(std::make_unique<Fiber>());
    all_fibers.back()->stack = new_stack();
    idle_fibers.push_back(all_fibers.back().get());
  }
  Fiber* fiber = idle_fibers.back();
  idle_fibers.pop_back();
  if (fiber->fresh) {
    getcontext(&fiber->first);
    fiber->first.uc_stack.ss_sp = fiber->stack;
    fiber->first.uc_stack.ss_size = kStackSize;
    fiber->first.uc_link = nullptr;
    makecontext(&fiber->first, fiber_main, 0);
  }
  return fiber;
}

bool on_current_stack(const void* address) {
  const char* stack = current->fiber->stack;
  return address >= stack && address < stack + kStackSize;
}

void run_until_it_waits(Thread& thread) {
  if (thread.state == Thread::unstarted) thread.fiber = idle_fiber();
  thread.state = Thread::ready;
  current = &thread;
  threadIdx = thread.index;
  if (!_setjmp(scheduler)) {
    Fiber* fiber = thread.fiber;
    if (!fiber->fresh) _longjmp(fiber->context, 1);
    fiber->fresh = false;
    setcontext(&fiber->first);
  }
  current = nullptr;
}

void leave_fiber() {
  if (!_setjmp(current->fiber->context)) _longjmp(scheduler, 1);
}

void abandon_fiber() { _longjmp(scheduler, 1); }

void forget_fibers() {
  idle_fibers.clear();
  for (auto& fiber : all_fibers) {
    fiber->fresh = true;
    idle_fibers.push_back(fiber.get());
  }
}

}  // namespace emulator
