// load_weights: files of any origin into plain and deferred models.
#include "support.h"

#include <fstream>
#include <functional>

#include <fmt/format.h>

#include "tests/support/files.h"

namespace {

struct Block : nn::Module {
  nn::Linear& up = add<nn::Linear>("up", 3, 5);
  nn::Linear& down = add<nn::Linear>("down", 5, 3);
  ls::Tensor forward(const ls::Tensor& x) const override { return down(ls::relu(up(x))); }
};

struct Net : nn::Module {
  nn::Embedding& tokens = add<nn::Embedding>("tokens", 7, 3);
  nn::ModuleList& blocks = add<nn::ModuleList>("blocks");
  nn::BatchNorm1d& norm = add<nn::BatchNorm1d>("norm", 3);
  Net() {
    for (int i = 0; i < 2; ++i) blocks.push_back(Block());
  }
  ls::Tensor forward(const ls::Tensor& x) const override { return x; }
};

Net net_of(std::uint64_t seed) {
  ls::manual_seed(seed);
  return Net();
}

// The state of another model, under names that rename gives.
ls::StateDict renamed(const ls::StateDict& state, const std::function<std::string(const std::string&)>& rename) {
  ls::StateDict result;
  for (const auto& [name, tensor] : state) result.insert(rename(name), tensor);
  return result;
}

void check_equal(const nn::Module& model, const nn::Module& want) {
  const ls::StateDict own = model.state_dict();
  for (const auto& each : want.state_dict()) CHECK_MESSAGE(same_bits(own.at(each.first), each.second), each.first);
}

void check_empty(const nn::LoadWeightsResult& result) {
  CHECK(result.missing.empty());
  CHECK(result.unexpected.empty());
  CHECK(result.other_shape.empty());
}

}  // namespace

TEST_CASE("a file's weights get into a plain and into a deferred model, in the dtype of the model") {
  const Net want = net_of(1);
  ls::save(want.state_dict(), "model.safetensors");
  Net plain = net_of(2);
  check_empty(nn::load_weights(plain, "model.safetensors"));
  check_equal(plain, want);
  nn::DeferredInit deferred(3);
  Net empty;
  deferred.end();
  check_empty(nn::load_weights(empty, "."));  // the folder
  check_equal(empty, want);
  CHECK(empty.tokens.weight.master().requires_grad());

  Net half = net_of(1);
  half.to(ls::kBFloat16);
  ls::save(half.state_dict(), "half.safetensors");
  nn::load_weights(plain, "half.safetensors");
  CHECK(plain.tokens.weight.master().dtype() == ls::kFloat32);
  CHECK(same_bits(plain.tokens.weight.master(), half.tokens.weight.master().to(ls::kFloat32)));
}

TEST_CASE("a deferred model is loaded with the memory of the model alone, whatever the file's dtype and layout") {
  constexpr std::int64_t kWidth = 2048, kBytes = 2 * kWidth * kWidth * 4;
  ls::manual_seed(0);
  const nn::Sequential want(nn::Linear(kWidth, kWidth), nn::Linear(kWidth, kWidth));
  const auto is_loaded = [&](const nn::LoadWeightsOptions& options) {
    nn::DeferredInit deferred(0);
    nn::Sequential net(nn::Linear(kWidth, kWidth), nn::Linear(kWidth, kWidth));
    deferred.end();
    const std::int64_t before = ls::allocator_stats().allocated_bytes;
    ls::reset_peak_bytes();
    nn::load_weights(net, "large.safetensors", options);
    const std::int64_t peak = ls::allocator_stats().peak_bytes - before;
    CHECK(peak < kBytes + kBytes / 10);  // pieces of 1 MiB, which are transposed and converted
    CHECK(peak >= kBytes);
    check_equal(net, want);
  };
  ls::save(want.state_dict(), "large.safetensors");
  is_loaded({});
  ls::StateDict transposed;
  for (const auto& [name, tensor] : want.state_dict())
    transposed.insert(name, tensor.dim() == 2 ? tensor.t().contiguous() : tensor);
  ls::save(transposed, "large.safetensors");
  is_loaded({.transpose = {"0", "1"}});
  ls::StateDict wide;
  for (const auto& [name, tensor] : transposed) wide.insert(name, tensor.to(ls::kFloat64));
  ls::save(wide, "large.safetensors");
  is_loaded({.transpose = {"0", "1"}});
}

TEST_CASE("names are renamed by pairs or a function, and an empty name leaves a tensor out") {
  const Net want = net_of(1);
  const auto foreign = [](const std::string& name) {
    if (!name.starts_with("blocks.")) return "transformer." + name;
    return "transformer.h." + name.substr(7, 1) + ".mlp_" + name.substr(9);  // transformer.h.0.mlp_up.weight
  };
  ls::StateDict state = renamed(want.state_dict(), foreign);
  state.insert("transformer.h.0.mask", ls::ones({2}));
  ls::save(state, "foreign.safetensors");
  Net net = net_of(2);
  check_empty(nn::load_weights(net, "foreign.safetensors",
                               {.rename = {{"transformer", ""}, {"h.*.mask", ""}, {"h.*.mlp_*", "blocks.*.*"}}}));
  check_equal(net, want);

  ls::save(renamed(want.state_dict(), [](const std::string& name) { return "x." + name; }), "prefix.safetensors");
  Net other = net_of(2);
  check_empty(nn::load_weights(other, "prefix.safetensors",
                               {.rename = [](const std::string& name) { return name.substr(2); }}));
  check_equal(other, want);
  CHECK(contains(error_of_load(other, "prefix.safetensors", {.rename = [](const std::string&) { return "norm.bias"; }}),
                 ".rename gives several tensors the name \"norm.bias\", "));
  CHECK(error_of([] { nn::Rename({{".", "x"}}); }) == "Rename: the pattern \".\" has no component of a name");
  CHECK(error_of([] {
          nn::Rename({{"h.*", "b.*.*"}});
        }) == "Rename: the replacement \"b.*.*\" has more '*' than its pattern \"h.*\"");
}

TEST_CASE("patterns stand for whole components at the first place where they fit") {
  const auto renames = [](const nn::Rename& rename, const std::string& name) { return rename(name); };
  CHECK(renames({{"model", ""}}, "model.fc.weight") == "fc.weight");
  CHECK(renames({{"model.", ""}}, "model.fc.weight") == "fc.weight");
  CHECK(renames({{"model", ""}}, "mymodel.fc.weight") == "mymodel.fc.weight");
  CHECK(renames({{"fc", "out"}}, "fc.fc.weight") == "out.fc.weight");
  CHECK(renames({{"fc", "out"}}, "a.fc.weight") == "a.out.weight");
  CHECK(renames({{"h.*.ln_*", "blocks.*.norm*"}}, "h.11.ln_2.bias") == "blocks.11.norm2.bias");
  CHECK(renames({{"*.weight", "kernel.*"}}, "a.b.weight") == "a.kernel.b");
  CHECK(renames({{"a.b", ""}}, "a.b") == "");
  CHECK(renames({{"a", "b"}, {"b", "c"}}, "a.x") == "c.x");
  CHECK(renames({}, "a.x") == "a.x");
}

TEST_CASE("matrices that a file has transposed") {
  const Net want = net_of(1);
  ls::StateDict state;
  for (const auto& [name, tensor] : want.state_dict())
    state.insert(name, contains(name, ".up.weight") ? tensor.t().contiguous() : tensor);
  ls::save(state, "transposed.safetensors");
  Net net = net_of(2);
  check_empty(nn::load_weights(net, "transposed.safetensors", {.transpose = {"blocks.*.up"}}));
  check_equal(net, want);
  const std::string error = error_of_load(net, "transposed.safetensors");
  CHECK_MESSAGE(contains(error, "2 of another shape: \"blocks.0.up.weight\": the model has (5, 3), the file (3, 5), "),
                error);
  CHECK_MESSAGE(contains(error,
                         "\nthe file has \"blocks.0.up.weight\", \"blocks.1.up.weight\" transposed: pass "
                         ".transpose with patterns of such names\nSquare matrices cannot be recognised: pass those of "
                         "layers of the same kind, too (Hugging Face's Conv1D: c_attn, c_proj, c_fc)"),
                error);
  const std::string reversed =
      error_of_load(net, "transposed.safetensors", {.transpose = {"blocks.*.up", "blocks.*.down"}});
  CHECK_MESSAGE(contains(reversed, "\"blocks.0.down.weight\": the model has (3, 5), the file (3, 5), to be transposed"),
                reversed);
}

TEST_CASE("a pattern of .transpose that describes no matrix is an error, and square matrices are named") {
  struct Conv : nn::Module {
    nn::Linear& c_attn = add<nn::Linear>("c_attn", 4, 12);
    nn::Linear& c_proj = add<nn::Linear>("c_proj", 4, 4);
  };
  ls::manual_seed(1);
  const Conv want;
  ls::StateDict state;
  for (const auto& [name, tensor] : want.state_dict())
    state.insert(name, tensor.dim() == 2 ? tensor.t().contiguous() : tensor);
  ls::save(state, "conv1d.safetensors");
  ls::manual_seed(2);
  Conv net;
  CHECK(contains(error_of_load(net, "conv1d.safetensors"),
                 "\nSquare matrices (\"c_proj.weight\") cannot be recognised: pass those of layers of the same kind"));
  const auto error = [&](const char* pattern) {
    return error_of([&] { nn::load_weights(net, "conv1d.safetensors", {.transpose = {"c_attn", pattern}}); });
  };
  CHECK(error("c_prj") ==
        "load_weights: conv1d.safetensors: .transpose: the pattern \"c_prj\" describes no matrix of the model; the "
        "nearest are \"c_proj\", \"c_attn\", \"c_proj.weight\"");
  CHECK(contains(error("c_proj.bias"), "the pattern \"c_proj.bias\" describes no matrix"));
  CHECK(contains(error(""), "the pattern \"\" describes no matrix"));
  CHECK(contains(error_of([&] {
                   net.load_state_dict(state, {.strict = false, .transpose = {"c_attn", "c_prj"}});
                 }),
                 "load_state_dict: .transpose: the pattern \"c_prj\" describes no matrix"));
  check_empty(nn::load_weights(net, "conv1d.safetensors", {.transpose = {"c_attn", "c_proj"}}));
  check_equal(net, want);
}

TEST_CASE("an index of several files, which may be in a folder") {
  const Net want = net_of(1);
  ls::StateDict first, second;
  std::string map;
  for (const auto& [name, tensor] : want.state_dict()) {
    const bool is_first = contains(name, "blocks.0");
    (is_first ? first : second).insert(name, tensor);
    map += fmt::format("{}\"{}\": \"{}.safetensors\"", map.empty() ? "" : ", ", name, is_first ? "one" : "two");
  }
  CHECK(std::system("mkdir -p shards") == 0);
  ls::save(first, "shards/one.safetensors");
  ls::save(second, "shards/two.safetensors");
  const std::string index = "shards/model.safetensors.index.json";
  const auto write = [&](const std::string& text) { std::ofstream(index) << text; };
  write("{\"metadata\": {\"total_size\": 1}, \"weight_map\": {" + map + "}}");
  for (const std::string& path : {std::string("shards"), std::string("shards/"), index}) {
    Net net = net_of(2);
    check_empty(nn::load_weights(net, path));
    check_equal(net, want);
  }
  Net net = net_of(2);
  const auto error = [&] { return error_of<ls::IoError>([&] { nn::load_weights(net, "shards"); }); };
  second.insert("not_in_the_index", ls::ones({1}));
  ls::save(second, "shards/two.safetensors");
  CHECK(
      error_of([&] { nn::load_weights(net, "shards"); }) ==
      "load_weights: " + index +
          ": 1 unexpected: \"not_in_the_index\" (not in the index)\n.rename = {{\"not_in_the_index\", \"\"}} leaves a "
          "tensor out\n.strict = false loads the rest");
  check_equal(net, net_of(2));
  Net loose = net_of(2), strict = net_of(2);
  CHECK(nn::load_weights(loose, "shards", {.strict = false}).unexpected ==
        std::vector<std::string>{"not_in_the_index"});
  check_equal(loose, want);
  check_empty(nn::load_weights(strict, "shards", {.rename = {{"not_in_the_index", ""}}}));
  check_equal(strict, want);
  write("{\"weight_map\": {\"tokens.weight\": \"one.safetensors\"}}");
  CHECK(error() == index + ": the tensor \"tokens.weight\" is not in shards/one.safetensors");
  write("{\"weight_map\": {\"tokens.weight\": \"../one.safetensors\"}}");
  CHECK(error() == index + ": weight_map: \"../one.safetensors\" is not the name of a file next to the index");
  write("{\"weight_map\": {\"tokens.weight\": 1}}");
  CHECK(error() == index + ": weight_map: \"tokens.weight\": expected a file name");
  for (const char* text : {"", "{", "[]", "{}", "{\"weight_map\": []}"}) {
    write(text);
    CHECK(error() == index + ": expected an index of safetensors files: JSON with an object \"weight_map\"");
  }
  CHECK(std::system("mkdir -p nothing") == 0);
  CHECK(error_of<ls::IoError>([&] { nn::load_weights(net, "nothing"); }) ==
        "nothing: the folder has neither model.safetensors.index.json nor model.safetensors; pass the path of a file");
  check_equal(net, net_of(2));
}

TEST_CASE("an error has all names that do not match, and what to do") {
  const Net want = net_of(1);
  Net net = net_of(2);
  ls::save(renamed(want.state_dict(), [](const std::string& name) { return "model." + name; }), "prefix.safetensors");
  const std::string prefixed = error_of_load(net, "prefix.safetensors");
  CHECK_MESSAGE(
      prefixed.starts_with("load_weights: prefix.safetensors: 13 missing: \"tokens.weight\", \"blocks.0.up.weight\""),
      prefixed);
  CHECK_MESSAGE(contains(prefixed, "; 14 unexpected: \"model."), prefixed);
  CHECK_MESSAGE(prefixed.ends_with("\nthe file's names begin with \"model\": pass .rename = {{\"model\", \"\"}}"),
                prefixed);
  CHECK(!contains(prefixed, "strict"));

  nn::Sequential wrapper;
  wrapper.push_back(net_of(2));
  ls::save(want.state_dict(), "plain.safetensors");
  CHECK(error_of_load(wrapper, "plain.safetensors")
            .ends_with(
                "\nthe model's names begin with \"0\", the file's do not: pass .rename = [](const std::string& name) "
                "{ return \"0.\" + name; }"));

  ls::save(
      renamed(want.state_dict(), [](const std::string& name) { return name == "norm.weight" ? "norm.wieght" : name; }),
      "misspelt.safetensors");
  CHECK(
      error_of_load(net, "misspelt.safetensors") ==
      "load_weights: misspelt.safetensors: 1 missing: \"norm.weight\"; 1 unexpected: \"norm.wieght\"\n\"norm.weight\" "
      "is similar to the file's \"norm.wieght\"\n.strict = false loads the rest");
  check_equal(net, net_of(2));
}

TEST_CASE("without .strict, what fits is loaded, and the result has the rest") {
  const Net want = net_of(1);
  ls::StateDict state;
  for (const auto& [name, tensor] : want.state_dict()) {
    if (name != "tokens.weight") state.insert(name, name == "norm.bias" ? ls::ones({4}) : tensor);
  }
  state.insert("head.weight", ls::ones({2}));
  ls::save(state, "part.safetensors");
  Net plain = net_of(2);
  const nn::LoadWeightsResult result = nn::load_weights(plain, "part.safetensors", {.strict = false});
  CHECK(result.missing == std::vector<std::string>{"tokens.weight"});
  CHECK(result.unexpected == std::vector<std::string>{"head.weight"});
  CHECK(result.other_shape == std::vector<std::string>{"norm.bias"});
  CHECK(same_bits(plain.tokens.weight.master(), net_of(2).tokens.weight.master()));
  CHECK(same_bits(plain.state_dict().at("blocks.1.up.weight"), want.state_dict().at("blocks.1.up.weight")));
  nn::DeferredInit deferred(2);
  Net empty;
  deferred.end();
  nn::load_weights(empty, "part.safetensors", {.strict = false});
  check_equal(empty, plain);  // those that the file lacks have their initial values
}

TEST_CASE("a tied tensor under one name, a counter that is missing, shapes of one element") {
  struct Tied : nn::Module {
    nn::Linear& first = add<nn::Linear>("first", 4, 4);
    nn::Linear& second = add<nn::Linear>("second", 4, 4);
    nn::Parameter scale = add_parameter("scale", ls::ones({}));
    nn::BatchNorm1d& norm = add<nn::BatchNorm1d>("norm", 4);
    Tied() { second.weight = first.weight; }
  };
  ls::manual_seed(1);
  const Tied want;
  ls::StateDict state;
  for (const auto& [name, tensor] : want.state_dict()) {
    if (name == "first.weight" || contains(name, "num_batches_tracked")) continue;
    state.insert(name, name == "scale" ? ls::full({1}, 2.5) : tensor);
  }
  ls::save(state, "tied.safetensors");
  ls::manual_seed(2);
  Tied net;
  check_empty(nn::load_weights(net, "tied.safetensors"));
  CHECK(same_bits(net.first.weight.master(), want.first.weight.master()));
  CHECK(net.scale.master().item<double>() == 2.5);
}

TEST_CASE("a file with several names of a tied tensor needs equal values") {
  struct Tied : nn::Module {
    nn::Embedding& tokens = add<nn::Embedding>("tokens", 1500, 1000);
    nn::Linear& head = add<nn::Linear>("head", 1000, 1500, nn::LinearOptions{.bias = false});
    Tied() { head.weight = tokens.weight; }
  };
  ls::manual_seed(1);
  const Tied want;
  const ls::Tensor tokens = want.tokens.weight->detach(), other = tokens.clone();
  const auto load = [&](const char* path, const nn::LoadWeightsOptions& options) {
    nn::DeferredInit deferred(2);
    Tied net;
    deferred.end();
    const std::string error = error_of([&] { check_empty(nn::load_weights(net, path, options)); });
    if (error.empty()) check_equal(net, want);
    CHECK(nn::is_deferred(net.tokens.weight.master()) == !error.empty());
    return error;
  };
  ls::save({{"tokens.weight", tokens}, {"head.weight", other}}, "equal.safetensors");
  CHECK(load("equal.safetensors", {}).empty());
  ls::save({{"tokens.weight", tokens}, {"head.weight", tokens.t().contiguous()}}, "reversed.safetensors");
  CHECK(load("reversed.safetensors", {.transpose = {"head"}}).empty());
  other[1499][999].fill_(7);  // beyond the first elements that are read
  ls::save({{"tokens.weight", tokens}, {"head.weight", other.t().contiguous()}}, "reversed.safetensors");
  CHECK(contains(load("reversed.safetensors", {.transpose = {"head"}}), "are one tensor of the model"));
  ls::save({{"tokens.weight", tokens}, {"head.weight", other}}, "differs.safetensors");
  const ls::StateDict dict = ls::load("differs.safetensors");
  CHECK(load("differs.safetensors", {}) ==
        fmt::format("load_weights: differs.safetensors: \"tokens.weight\" and \"head.weight\" are one tensor of the "
                    "model, but differ in the file\nLeave one of them out: .rename = {{{{\"head.weight\", \"\"}}}}"));
  CHECK(load("differs.safetensors", {.rename = {{"head.weight", ""}}}).empty());
  Tied net;
  CHECK(contains(error_of([&] { net.load_state_dict(dict, {.strict = false}); }),
                 "\"tokens.weight\" and \"head.weight\" are one tensor of the model, but differ in the dict"));
  check_empty(net.load_state_dict(ls::load("equal.safetensors")));
  check_equal(net, want);
}

TEST_CASE(
    "a damaged file changes nothing, and a tensor of a dtype that Lockstep does not have is named when it is needed") {
  const Net want = net_of(1);
  ls::save(want.state_dict(), "good.safetensors");
  std::string bytes = content_of_file("good.safetensors");
  bytes.back() ^= 1;
  std::ofstream("damaged.safetensors", std::ios::binary) << bytes;
  Net net = net_of(2);
  CHECK(contains(error_of<ls::IoError>([&] { nn::load_weights(net, "damaged.safetensors"); }), "the file is damaged"));
  check_equal(net, net_of(2));
  CHECK(contains(error_of<ls::IoError>([&] { nn::load_weights(net, "absent.safetensors"); }), "absent.safetensors"));

  // "norm.weight", the last tensor that is needed, in an integer type of the same size.
  bytes = content_of_file("good.safetensors");
  const std::size_t at = bytes.find("F32", bytes.find("\"norm.weight\""));
  bytes.replace(at, 3, "U32");
  std::ofstream("unsigned.safetensors", std::ios::binary) << bytes;
  CHECK(contains(error_of<ls::IoError>([&] { nn::load_weights(net, "unsigned.safetensors"); }),
                 "unsigned.safetensors: tensor \"norm.weight\": dtype U32 is not supported"));
  check_equal(net, net_of(2));
}

TEST_CASE("open maps files: the memory is that of the tensors that are changed, and changes stay in this process") {
  constexpr std::int64_t kWidth = 512, kBytes = kWidth * kWidth * 4;
  ls::manual_seed(1);
  const nn::Sequential want(nn::Linear(kWidth, kWidth), nn::Linear(kWidth, kWidth));
  ls::save(want.state_dict(), "mapped.safetensors");
  const std::string bytes = content_of_file("mapped.safetensors");
  ls::manual_seed(2);
  nn::Sequential copied(nn::Linear(kWidth, kWidth), nn::Linear(kWidth, kWidth));
  nn::DeferredInit deferred(2);
  nn::Sequential assigned(nn::Linear(kWidth, kWidth), nn::Linear(kWidth, kWidth));
  deferred.end();
  {
    const std::int64_t before = ls::allocator_stats().allocated_bytes;
    ls::reset_peak_bytes();
    const ls::StateDict dict = ls::open("mapped.safetensors");
    check_empty(copied.load_state_dict(dict));
    check_empty(assigned.load_state_dict(dict, {.assign = true}));
    CHECK(ls::allocator_stats().peak_bytes - before < kBytes / 20);
    CHECK(assigned.parameters()[0].master().raw_data() == dict.at("0.weight").raw_data());
  }
  check_equal(copied, want);
  check_equal(assigned, want);  // whose memory outlives the dict and, below, the file
  ls::save({}, "mapped.safetensors");
  check_equal(assigned, want);
  std::ofstream("mapped.safetensors", std::ios::binary) << bytes;
  const ls::Tensor weight = ls::open("mapped.safetensors").at("0.weight");
  weight.fill_(3);
  CHECK(weight[0][0].item<double>() == 3);
  CHECK(content_of_file("mapped.safetensors") == bytes);
}

TEST_CASE("open reads what load reads: all dtypes, no elements, no alignment, a folder with an index") {
  ls::StateDict dict;
  for (const ls::DType dtype :
       {ls::kFloat32, ls::kFloat64, ls::kFloat16, ls::kBFloat16, ls::kInt64, ls::kInt32, ls::kUInt8, ls::kBool})
    dict.insert(ls::name(dtype), ls::arange(6).reshape({2, 3}).to(dtype));
  dict.insert("empty", ls::zeros({0, 3}));
  dict.insert("scalar", ls::full({}, 2.5));
  CHECK(std::system("mkdir -p mapped") == 0);
  ls::save(dict, "mapped/one.safetensors");
  std::string bytes = content_of_file("mapped/one.safetensors");
  bytes[0] = static_cast<char>(bytes[0] + 1);  // one more byte of padding: no tensor of several bytes is aligned
  const std::size_t header = static_cast<std::uint8_t>(bytes[0]) + 256 * static_cast<std::uint8_t>(bytes[1]) - 1;
  bytes.insert(8 + header, " ");
  std::ofstream("mapped/odd.safetensors", std::ios::binary) << bytes;
  std::ofstream("mapped/model.safetensors.index.json")
      << R"({"weight_map": {"f32": "one.safetensors", "scalar": "odd.safetensors"}})";
  const auto check = [](const ls::StateDict& own, const ls::StateDict& want) {
    CHECK(own.size() == want.size());
    for (const auto& each : want) CHECK_MESSAGE(same_bits(own.at(each.first), each.second), each.first);
  };
  check(ls::open("mapped/one.safetensors"), dict);
  check(ls::open("mapped/odd.safetensors"), dict);
  check(ls::open("mapped"), {{"f32", dict.at("f32")}, {"scalar", dict.at("scalar")}});

  bytes = content_of_file("mapped/one.safetensors");
  bytes.back() = 2;  // of the bool
  std::ofstream("mapped/bool.safetensors", std::ios::binary) << bytes;
  CHECK(contains(error_of<ls::IoError>([] { ls::open("mapped/bool.safetensors"); }), "a bool is 0 or 1"));
  CHECK(contains(error_of<ls::IoError>([] { ls::open("absent.safetensors"); }), "absent.safetensors: cannot open"));
  bytes.resize(bytes.size() - 1);
  std::ofstream("mapped/short.safetensors", std::ios::binary) << bytes;
  CHECK(contains(error_of<ls::IoError>([] { ls::open("mapped/short.safetensors"); }), "the file is truncated"));
}
