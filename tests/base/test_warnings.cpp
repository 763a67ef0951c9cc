// Warnings: their destination, and how often they appear.
#include <unistd.h>

#include <cstdio>
#include <stdexcept>

#include "tests/support/testing.h"

namespace {

// Returns the text that `function` writes to the descriptors of stdout and stderr.
template <class F>
std::string output_of(F function) {
  std::FILE* const file = std::tmpfile();
  REQUIRE(file);
  std::fflush(stdout);
  const int out = dup(STDOUT_FILENO), err = dup(STDERR_FILENO);
  for (const int standard : {STDOUT_FILENO, STDERR_FILENO}) dup2(fileno(file), standard);
  function();
  std::fflush(stdout);
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  close(out);
  close(err);
  std::rewind(file);
  std::string text(4096, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file));
  std::fclose(file);
  return text;
}

}  // namespace

TEST_CASE("without a handler a warning goes to stderr, once for a training loop") {
  ls::on_warning({});  // forgets the warnings of earlier cases
  const std::string text = output_of([] {
    const ls::Tensor x = ls::ones({4, 1}), y = ls::ones({4});
    for (int step = 0; step < 100; ++step) ls::nn::MSELoss()(x, y);
  });
  CHECK(text ==
        "warning: mse_loss: shapes differ: x is (4, 1) f32 cpu, target is (4) f32 cpu; both broadcast to (4, 4), which "
        "is rarely meant\nReshape one of them, for example target.unsqueeze(1)\n");
}

TEST_CASE("the program's handler replaces stderr, and an empty one restores it") {
  std::string heard;
  const std::string text = output_of([&] {
    ls::on_warning([&](const std::string& message) { heard += message + "|"; });
    ls::warn("a place", "first");
    ls::on_warning({});
    ls::warn("a place", "first");
  });
  CHECK(heard == "first|");
  CHECK(text == "warning: first\n");
}

TEST_CASE("each message of a call site is issued once, and of many different ones the first few") {
  std::vector<std::string> heard;
  ls::on_warning([&](const std::string& message) { heard.push_back(message); });
  for (int repetition = 0; repetition < 2; ++repetition) {
    for (int length = 0; length < 100; ++length) ls::warn("a loss", "length " + std::to_string(length));
    ls::warn("another loss", "length 0");
    ls::warn("a peer", "from port " + std::to_string(repetition), 1);
  }
  ls::on_warning({});
  REQUIRE(heard.size() == 10);
  CHECK(heard[0] == "length 0");
  CHECK(heard[6] == "length 6");
  CHECK(heard[7] == "length 7\nFurther warnings of this kind are not shown");
  CHECK(heard[8] == "length 0");
  CHECK(heard[9] == "from port 0\nFurther warnings of this kind are not shown");
}

TEST_CASE("a handler may turn warnings into errors") {
  ls::on_warning([](const std::string& message) { throw std::runtime_error(message); });
  CHECK_THROWS_WITH_AS(ls::warn("a place", "strict"), "strict", std::runtime_error);
  ls::on_warning({});
}

TEST_CASE("grad() of the result of an operation warns that backward never sets one") {
  std::vector<std::string> heard;
  ls::on_warning([&](const std::string& message) { heard.push_back(message); });
  const ls::Tensor w = ls::ones({3}, {.requires_grad = true}), y = w * 2;
  ls::sum(y).backward();
  CHECK(w.grad().defined());
  CHECK_FALSE(ls::ones({3}).grad().defined());
  CHECK(heard.empty());
  CHECK_FALSE(y.grad().defined());
  ls::on_warning({});
  REQUIRE(heard.size() == 1);
  CHECK(heard[0].starts_with("grad: (3) f32 cpu is the result of mul, and backward accumulates"));
}
