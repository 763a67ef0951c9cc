#include "support/result.h"

#include <fmt/format.h>

#include <fstream>

#include "tools/report/json.h"

namespace samples {
namespace {

namespace par = lockstep::parallel;
using report::Json;
using report::to_double;
using report::to_json;

Json by_phase(const PhaseBytes& bytes) {
  Json object = Json::object();
  for (std::size_t p = 0; p < bytes.size(); ++p) object[par::name(static_cast<par::Phase>(p))] = bytes[p];
  return object;
}

PhaseBytes by_phase(const Json& object) {
  PhaseBytes bytes = {};
  for (std::size_t p = 0; p < bytes.size(); ++p)
    bytes[p] = object.at(par::name(static_cast<par::Phase>(p))).get<std::int64_t>();
  return bytes;
}

}  // namespace

double Moved::per_step(par::Phase phase) const {
  return steps > 0 ? static_cast<double>(in_steps[static_cast<std::size_t>(phase)]) / static_cast<double>(steps) : 0;
}

void write_result(const std::string& path, const Result& r) {
  const Json json = {{"mode", r.mode},
                     {"steps_per_second", to_json(r.steps_per_second)},
                     {"train_loss", to_json(r.train.loss)},
                     {"train_accuracy", to_json(r.train.accuracy)},
                     {"test_loss", to_json(r.test.loss)},
                     {"test_accuracy", to_json(r.test.accuracy)},
                     {"parameter_hash", r.hash},
                     {"steps", r.moved.steps},
                     {"memory",
                      {{"parameters", r.memory.parameters},
                       {"gradients", r.memory.gradients},
                       {"optimizer", r.memory.optimizer},
                       {"unit buffers", r.memory.units}}},
                     {"bytes_in_steps", by_phase(r.moved.in_steps)},
                     {"bytes_at_start", by_phase(r.moved.at_start)},
                     {"bytes_by_axis", r.moved.by_axis},
                     {"idle", to_json(r.idle)}};
  std::ofstream file(path, std::ios::trunc);
  file << json.dump(2) << std::endl;
  if (!file) throw lockstep::IoError(fmt::format("{}: cannot be written", path));
}

Result read_result(const std::string& path) {
  try {
    std::ifstream file(path);
    const Json json = Json::parse(file), memory = json.at("memory");
    return {.mode = json.at("mode"),
            .steps_per_second = to_double(json.at("steps_per_second")),
            .train = {.loss = to_double(json.at("train_loss")), .accuracy = to_double(json.at("train_accuracy"))},
            .test = {.loss = to_double(json.at("test_loss")), .accuracy = to_double(json.at("test_accuracy"))},
            .moved = {.at_start = by_phase(json.at("bytes_at_start")),
                      .in_steps = by_phase(json.at("bytes_in_steps")),
                      .steps = json.at("steps"),
                      .by_axis = json.at("bytes_by_axis")},
            .memory = {.parameters = memory.at("parameters"),
                       .gradients = memory.at("gradients"),
                       .optimizer = memory.at("optimizer"),
                       .units = memory.at("unit buffers")},
            .idle = to_double(json.at("idle")),
            .hash = json.at("parameter_hash")};
  } catch (const nlohmann::json::exception& error) {
    throw lockstep::IoError(fmt::format("{}: not a result of this program: {}", path, error.what()));
  }
}

}  // namespace samples
