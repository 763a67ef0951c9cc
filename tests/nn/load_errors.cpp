// The errors of load_weights and load_state_dict: their lists of names, and files that are not weights.
#include "support.h"

#include <fstream>

#include <fmt/format.h>

namespace {

void write(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

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

TEST_CASE("a pattern of .rename that fits no name is in the error for names that do not match") {
  nn::Linear net(3, 2);
  const nn::Linear want(3, 2);
  const ls::StateDict state = {{"model.weight", want.weight.master().detach()},
                               {"model.bias", want.bias.master().detach()}};
  ls::save(state, "prefix.safetensors");
  const std::string error = error_of_load(net, "prefix.safetensors", {.rename = {{"modle", ""}}});
  CHECK_MESSAGE(contains(error,
                         "\n.rename: the pattern \"modle\" fits no name of the file; the nearest are \"model\", "
                         "\"model.bias\", \"model.weight\"\n"),
                error);
  CHECK(contains(error_of([&] {
                   net.load_state_dict(state, {.rename = {{"model", "a"}, {"a.x", "b"}}});
                 }),
                 "\n.rename: the pattern \"a.x\" fits no name of the dict"));
  CHECK(!contains(error_of_load(net, "prefix.safetensors", {.rename = {{"weight", "w"}}}), "fits no name"));
  CHECK(!same_bits(net.weight.master(), want.weight.master()));
  nn::load_weights(net, "prefix.safetensors", {.rename = {{"transformer", ""}, {"model", ""}}});
  CHECK(same_bits(net.weight.master(), want.weight.master()));
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

TEST_CASE("a Git LFS pointer, a folder of pickles, and one file of several") {
  nn::Linear net(3, 2);
  const auto error = [&](const std::string& path) {
    return error_of<ls::IoError>([&] { nn::load_weights(net, path); });
  };
  write("lfs.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 123\n");
  CHECK(error("lfs.safetensors") ==
        "lfs.safetensors: this is a Git LFS pointer, not the file; fetch the file: git lfs pull");
  for (const char* name : {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
    CHECK(std::system("rm -rf pickles && mkdir pickles") == 0);
    write(std::string("pickles/") + name, "PK\3\4");
    CHECK(error("pickles") ==
          fmt::format("pickles/{}: the weights in this folder are PyTorch pickles; convert each (the script is also in "
                      "share/lockstep):\npython3 scripts/convert_checkpoint.py IN.bin OUT.safetensors",
                      name));
  }
  CHECK(std::system("rm -rf several && mkdir several") == 0);
  const std::string part = "several/model-00001-of-00002.safetensors";
  ls::save({{"weight", net.weight.master().detach()}}, part);
  CHECK(!contains(error_of([&] { nn::load_weights(net, part); }), "index"));
  write("several/model.safetensors.index.json", "{}");
  CHECK(error_of([&] { nn::load_weights(net, part); }) ==
        "load_weights: " + part +
            ": 1 missing: \"bias\"\nthe file has a part of the model; pass the index: "
            "several/model.safetensors.index.json");
}

TEST_CASE("of a folder with a whole file and an index, the whole file is read") {
  const nn::Linear want(3, 2), other(3, 2);
  CHECK(std::system("rm -rf both && mkdir both") == 0);
  ls::save(other.state_dict(), "both/model-00001-of-00001.safetensors");
  write("both/model.safetensors.index.json",
        "{\"weight_map\": {\"weight\": \"model-00001-of-00001.safetensors\", \"bias\": "
        "\"model-00001-of-00001.safetensors\"}}");
  nn::Linear net(3, 2);
  nn::load_weights(net, "both");
  CHECK(same_bits(net.weight.master(), other.weight.master()));
  ls::save(want.state_dict(), "both/model.safetensors");
  nn::load_weights(net, "both");
  CHECK(same_bits(net.weight.master(), want.weight.master()));
  CHECK(same_bits(ls::open("both").at("weight"), want.weight.master()));
}
