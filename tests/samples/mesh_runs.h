// Small runs of char_gpt on meshes of ranks.
#pragma once

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "tests/samples/support.h"
#include "tests/support/explained.h"

namespace {

nlohmann::json result(const std::string& out) { return nlohmann::json::parse(read_file(out + "/result.json")); }

std::vector<std::string> small(const std::string& out, const std::vector<std::string>& more) {
  std::ofstream("text.txt") << read_file(std::string(LOCKSTEP_SAMPLE_DATA_DIR) + "/shakespeare.txt").substr(0, 8000);
  std::vector<std::string> arguments = {
      "--file",    "text.txt", "--layers", "2",  "--heads",         "4", "--width",    "16", "--context", "16",
      "--dropout", "0.1",      "--batch",  "16", "--micro-batches", "4", "--generate", "5",  "--out",     out};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

// Compares the part of --explain that describes the mesh, which has no times.
void expect_mesh(const std::string& name, const std::string& output) {
  const std::size_t begin = output.find("Mesh of "), end = output.find("\nStep ", begin);
  REQUIRE_MESSAGE(end != std::string::npos, output);
  explained::expect_golden("ranks_" + name, output.substr(begin, end + 1 - begin));
}

// Trains for one epoch.
std::string hash_of(std::vector<std::string> arguments) {
  arguments.insert(arguments.end(), {"--epochs", "1", "--quiet"});
  const Finished finished = run("char_gpt", small(fresh("mesh"), arguments));
  CAPTURE(finished.output);
  REQUIRE(finished.code == 0);
  return result("mesh")["parameter_hash"];
}

std::string error_of(const std::vector<std::string>& arguments) {
  const Finished finished = run("char_gpt", small("errors", arguments));
  CHECK(finished.code != 0);
  CHECK(lines(finished.output).size() <= 3);
  return finished.output;
}

}  // namespace
