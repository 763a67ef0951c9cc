// Runs of lockstep-explain as a user makes them, and their golden outputs.
#pragma once

#include <doctest/doctest.h>
#include <sys/wait.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/files.h"

namespace explained {

struct Finished {
  int code = -1;
  std::string output;  // stdout and stderr together
};

// `arguments` are words of a shell.
inline Finished explain(const std::string& arguments) {
  const std::string program = std::filesystem::path(LOCKSTEP_RUN).replace_filename("lockstep-explain").string();
  Finished out;
  std::FILE* const pipe = popen((program + " " + arguments + " 2>&1").c_str(), "r");
  REQUIRE(pipe);
  char buffer[4096];
  while (const std::size_t size = std::fread(buffer, 1, sizeof(buffer), pipe)) out.output.append(buffer, size);
  const int status = pclose(pipe);
  out.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return out;
}

// With LOCKSTEP_UPDATE_GOLDEN=1, writes the output instead of comparing it.
inline void expect_golden(const std::string& name, const std::string& output) {
  const std::string path = std::string(LOCKSTEP_GOLDEN_DIR) + "/explain/" + name + ".txt";
  if (std::getenv("LOCKSTEP_UPDATE_GOLDEN")) {
    std::ofstream(path, std::ios::binary) << output;
    return;
  }
  CHECK(output == content_of_file(path));
}

}  // namespace explained
