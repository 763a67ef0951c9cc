// The errors of load_weights and load_state_dict: their lists of names, and files that are not weights.
#include "support.h"

#include <fmt/format.h>

namespace {

// The text may be longer than other errors, since it has all names.
std::string error_of_load(nn::Module& model, const std::string& path, const nn::LoadWeightsOptions& options = {}) {
  try {
    nn::load_weights(model, path, options);
  } catch (const ls::InvalidArgument& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("names are whole, renamed ones have both names, and the error says how to leave a tensor out") {
  const std::string long_name = "transformer.decoder.layers.11.cross_attention.output_projection.weight";
  nn::Linear net(3, 2);
  ls::StateDict state = net.state_dict().clone();
  state.insert("model." + long_name, ls::ones({1}));
  ls::save(state, "long.safetensors");
  CHECK(error_of_load(net, "long.safetensors", {.rename = {{"model", "net"}}}) ==
        fmt::format("load_weights: long.safetensors: 1 unexpected: \"model.{0}\" (renamed to \"net.{0}\")\n.rename = "
                    "{{{{\"model.{0}\", \"\"}}}} leaves a tensor out\n.strict = false loads the rest",
                    long_name));
  CHECK(error_of_load(net, "long.safetensors", {.rename = {{"model." + long_name, ""}}}).empty());
  CHECK(contains(error_of([&] { state.at(long_name + "s"); }), "the nearest is \"model." + long_name + "\""));
}

TEST_CASE("a long list of other shapes says how many it leaves out") {
  nn::Sequential net;
  ls::StateDict state;
  for (int i = 0; i < 23; ++i) {
    net.push_back(nn::Linear(2, 3));
    state.insert(fmt::format("{}.weight", i), ls::ones({7}));
    state.insert(fmt::format("{}.bias", i), ls::ones({3}));
  }
  ls::save(state, "many.safetensors");
  const std::string error = error_of_load(net, "many.safetensors");
  CHECK_MESSAGE(contains(error, "23 of another shape: \""), error);
  CHECK_MESSAGE(contains(error, "the file (7) and 3 more\n"), error);
}
