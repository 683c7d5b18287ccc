// Where in the CUDA source an instruction comes from: ", line 12 `its text`", or nothing.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "state.h"

namespace emulator {

static std::string read_line(const std::string& path, int number) {
  std::string text;
  if (FILE* file = fopen(path.c_str(), "r")) {
    char line[512];
    for (int i = 0; i < number && fgets(line, sizeof line, file); ++i) text = line;
    fclose(file);
  }
  size_t begin = text.find_first_not_of(" \t"), end = text.find_last_not_of(" \t\n");
  return begin == std::string::npos ? "" : text.substr(begin, end - begin + 1);
}

std::string source_line(const void* caller) {
  Dl_info info;
  if (!caller || !dladdr(caller, &info)) return "";
  size_t offset = static_cast<const char*>(caller) - static_cast<const char*>(info.dli_fbase) - 1;
  std::string command = format("addr2line -i -e '%s' 0x%zx 2>/dev/null", info.dli_fname, offset);
  std::string found;
  if (FILE* lines = popen(command.c_str(), "r")) {
    char line[512];
    while (fgets(line, sizeof line, lines)) {
      std::string text = line;
      size_t colon = text.find(".cu:");
      if (found.empty() && colon != std::string::npos) {
        int number = atoi(text.c_str() + colon + 4);
        found = format(", line %d `", number) + read_line(text.substr(0, colon + 3), number) + "`";
      }
    }
    pclose(lines);
  }
  return found;
}

}  // namespace emulator
