// Says why a launch is refused, and what the threads of a block that cannot go on are waiting for.
#include <algorithm>

#include "state.h"

namespace emulator {

std::string refusal(const Launch& l) {
  const dim3 &g = l.grid, &b = l.block;
  size_t block_size = size_t(b.x) * b.y * b.z;
  size_t bounds = l.launch_bounds ? l.launch_bounds : 1024;
  std::string why;
  if (!g.x || !g.y || !g.z || !block_size) {
    why = "a grid or block without threads; do not launch for an empty shape";
  } else if (g.x > 2147483647u || g.y > 65535 || g.z > 65535) {
    why = "gridDim.y and gridDim.z end at 65535; use blockIdx.x for the long axis";
  } else if (b.x > 1024 || b.y > 1024 || b.z > 64 || block_size > 1024) {
    why = "a block has at most 1024 threads, at most 64 of them along z";
  } else if (block_size > bounds) {
    why = format("more threads than its __launch_bounds__(%d)", l.launch_bounds);
  } else {
    return "";
  }
  return format("kernel %s: a GPU refuses to launch grid (%u,%u,%u), block (%u,%u,%u): ", l.kernel, g.x, g.y,
                g.z, b.x, b.y, b.z) +
         why;
}

static std::string threads_that(const std::vector<int>& numbers) {
  std::string text = numbers.size() == 1 ? "thread " : "threads ";
  for (size_t i = 0; i < numbers.size();) {
    size_t j = i;
    while (j + 1 < numbers.size() && numbers[j + 1] == numbers[j] + 1) ++j;
    if (i) text += ",";
    if (i > 60) return text + "...";
    text += format(j > i ? "%d-%d" : "%d", numbers[i], numbers[j]);
    i = j + 1;
  }
  return text;
}

std::string report_stuck(const std::vector<Thread>& threads) {
  static const char* names[] = {
      "",           "__syncthreads", "__syncthreads_count", "__syncthreads_and", "__syncthreads_or",
      "a named barrier", "__syncwarp", "a vote", "a shuffle", "__activemask"};
  struct Group {
    std::string doing;
    std::vector<int> numbers;
  };
  std::vector<Group> groups;
  bool at_warp = false;
  for (const Thread& t : threads) {
    std::string doing = "ended";
    if (t.state == Thread::waiting) {
      doing = format("wait at %s of line %d", names[int(t.kind)], t.line);
      if (is_of_warp(t.kind)) doing += format(" with mask 0x%08x", t.mask), at_warp = true;
    }
    auto group = std::find_if(groups.begin(), groups.end(), [&](const Group& g) { return g.doing == doing; });
    if (group == groups.end()) group = groups.insert(group, Group{doing, {}});
    group->numbers.push_back(t.number);
  }
  std::string text = format("divergent %s in kernel %s, block (%u,%u,%u), at barrier %u of the block: ",
                            at_warp ? "warp function" : "barrier", launch->kernel, blockIdx.x, blockIdx.y,
                            blockIdx.z, phase);
  for (size_t i = 0; i < groups.size(); ++i) {
    text += (i ? "; " : "") + threads_that(groups[i].numbers) + " " + groups[i].doing;
  }
  return text +
         (at_warp
              ? ". Every lane named in the mask must call the same warp function: take it out of the branch, "
                "or name only the lanes that get there (__activemask() inside the branch)."
              : ". Every thread of a block must reach the same barrier: take it out of the branch. Where "
                "TVM's thread-sync pass put it there, set the attribute \"hand_threaded\" inside the "
                "thread extents.");
}

}  // namespace emulator
