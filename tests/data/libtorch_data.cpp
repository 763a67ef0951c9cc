// Data sets and loaders by LibTorch's names, and save and load of objects.
#include <filesystem>
#include <fstream>

#include "tests/support/testing.h"

namespace {

namespace datasets = ls::data::datasets;
namespace tf = ls::data::transforms;

// An IDX file of bytes.
void write_idx(const std::string& path, const std::vector<unsigned char>& sizes, int elements, int first) {
  std::ofstream file(path, std::ios::binary);
  std::string text{'\0', '\0', '\x08', static_cast<char>(sizes.size())};
  for (const unsigned char size : sizes) text += std::string(3, '\0') + static_cast<char>(size);
  for (int i = 0; i < elements; ++i) text += static_cast<char>((first + i) % 251);
  file << text;
}

std::string folder() {
  std::filesystem::create_directories("mnist");
  write_idx("mnist/train-images-idx3-ubyte", {7, 4, 3}, 84, 0);
  write_idx("mnist/train-labels-idx1-ubyte", {7}, 7, 0);
  write_idx("mnist/t10k-images-idx3-ubyte", {2, 4, 3}, 24, 100);
  write_idx("mnist/t10k-labels-idx1-ubyte", {2}, 2, 5);
  return "mnist";
}

std::vector<std::int64_t> labels_of(ls::data::DataLoader<>& loader) {
  std::vector<std::int64_t> labels;
  for (const auto& batch : loader)
    for (const std::int64_t label : batch.target.to_vector<std::int64_t>()) labels.push_back(label);
  return labels;
}

}  // namespace

TEST_CASE("MNIST has images with one channel, and the two parts of the data set") {
  const std::string root = folder();
  const datasets::MNIST train(root), test(root, datasets::MNIST::Mode::kTest);
  CHECK(train.size() == 7);
  CHECK(test.size() == 2);
  CHECK(train.get(2).input.shape() == ls::Shape{1, 4, 3});
  CHECK(train.get(2).input[0][0][1].item<double>() == doctest::Approx(25 / 255.0));
  CHECK(test.get(1).target.item<int>() == 6);
  const ls::data::Example batch = train.get_batch(std::vector<std::int64_t>{3, 0});
  CHECK(batch.input.shape() == ls::Shape{2, 1, 4, 3});
  CHECK(same_bits(batch.input[1], train.get(0).input));
  CHECK(contains(error_of<ls::IoError>([] { datasets::MNIST("nowhere"); }), "nowhere/train-"));
}

TEST_CASE("map transforms images, one after another, and Stack changes nothing") {
  const datasets::MNIST plain(folder());
  const auto normal = datasets::MNIST(folder()).map(tf::Normalize<>(0.5, 0.25)).map(tf::Stack<>());
  CHECK(same_bits(normal.get(4).input, (plain.get(4).input - 0.5) / 0.25));
  CHECK(same_bits(normal.get(4).target, plain.get(4).target));
  const auto twice = normal.map(tf::CenterCrop({2, 1}));
  CHECK(same_bits(twice.get(4).input, tf::CenterCrop({2, 1})(normal.get(4).input)));
  CHECK(same_bits(plain.map(tf::Stack<>()).get(1).input, plain.get(1).input));
  CHECK(same_bits(normal.get_batch(std::vector<std::int64_t>{4}).input[0], normal.get(4).input));
}

TEST_CASE("make_data_loader has a random order unless the sampler is another one") {
  const auto set = datasets::MNIST(folder()).map(tf::Stack<>());
  const auto sequential = ls::data::make_data_loader<ls::data::samplers::SequentialSampler>(set, 3);
  CHECK(labels_of(*sequential) == std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6});
  CHECK(sequential->size() == 3);
  ls::manual_seed(1);
  const auto random = ls::data::make_data_loader(set, {.batch_size = 3, .num_workers = 2});
  ls::data::DataLoader shuffled(std::make_shared<datasets::MNIST>(folder()), {.batch_size = 3, .shuffle = true});
  const std::vector<std::int64_t> order = labels_of(*random);
  CHECK(order == labels_of(shuffled));
  CHECK(order != labels_of(*sequential));
  const auto sampler = std::make_shared<ls::data::SequentialSampler>(7);
  CHECK(contains(error_of([&] { ls::data::make_data_loader(set, {.sampler = sampler}); }), "template argument"));
}

TEST_CASE("save and load take a module, an optimizer or a tensor") {
  ls::manual_seed(1);
  ls::nn::Linear saved(3, 2), loaded(3, 2);
  ls::save(saved, "net.pt");
  ls::load(loaded, "net.pt");
  CHECK(same_bits(saved.weight, loaded.weight));
  ls::optim::SGD first(saved.parameters(), {.lr = 0.5, .momentum = 0.9}),
      second(loaded.parameters(), {.momentum = 0.9});
  saved(ls::ones({1, 3})).sum().backward();
  first.step();
  ls::save(first, "optimizer.pt");
  ls::load(second, "optimizer.pt");
  CHECK(second.lr() == 0.5);
  CHECK(ls::nn::parameter_hash(second.state_dict()) == ls::nn::parameter_hash(first.state_dict()));
  ls::save(ls::ones({2}) * 3, "tensor.pt");
  ls::Tensor x;
  ls::load(x, "tensor.pt");
  CHECK(same_bits(x, ls::full({2}, 3.0)));
}
