// Logistic regression on real data: is a tumour benign, given 30 measurements of its cells? (samples/data/README.md)
#include <lockstep/lockstep.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "support/graph_step.h"
#include "support/program.h"
#include "support/run.h"

namespace ls = lockstep;

struct LogisticRegression : ls::nn::Module {
  ls::nn::Linear& fc;
  explicit LogisticRegression(std::int64_t features) : fc(add<ls::nn::Linear>("fc", features, 1)) {}
  ls::Tensor forward(const ls::Tensor& x) const override { return ls::sigmoid(fc(x)); }  // (batch, 1): P(benign)
};

samples::Score evaluate(const LogisticRegression& model, const ls::nn::BCELoss& criterion,
                        const ls::data::Dataset& set) {
  ls::NoGradGuard no_grad;
  std::vector<std::int64_t> rows(static_cast<std::size_t>(set.size()));
  std::iota(rows.begin(), rows.end(), 0);
  const auto [x, labels] = set.get_batch(rows);  // all examples in one batch
  const ls::Device device = model.fc.weight->device();
  const ls::Tensor p = model(x.to(device)), y = labels.to(device);
  return {.loss = criterion(p, y).item<double>(),
          .accuracy = ls::mean(((p > 0.5) == (y > 0.5)).to(ls::kFloat64)).item<double>()};
}

// The data file in the source tree, or below the current folder if the program was moved to another machine.
std::string default_file() {
  const char* in_source_tree = LOCKSTEP_SAMPLE_DATA_DIR "/wdbc.csv";
  return std::filesystem::exists(in_source_tree) ? in_source_tree : "samples/data/wdbc.csv";
}

int train(const samples::Options& options) {
  ls::manual_seed(static_cast<std::uint64_t>(options.seed));

  // Every fifth row is held out. The columns are standardised with the mean and deviation of the training rows only:
  // test data must not leak into training, not even through a mean.
  const std::int64_t rows = ls::data::CsvDataset(options.data, {.target = "benign"}).size();
  std::vector<std::int64_t> train_rows, test_rows;
  for (std::int64_t row = 0; row < rows; ++row) (row % 5 == 4 ? test_rows : train_rows).push_back(row);
  auto wdbc = std::make_shared<ls::data::CsvDataset>(
      options.data, ls::data::CsvOptions{.target = "benign", .standardize = true, .fit_rows = train_rows});
  auto train_set = std::make_shared<ls::data::Subset>(wdbc, train_rows);
  auto test_set = std::make_shared<ls::data::Subset>(wdbc, test_rows);

  LogisticRegression model(wdbc->data().size(1));
  ls::nn::BCELoss criterion;
  samples::Step step(options, model);  // on one device, or as --strategy says
  ls::optim::SGD optimizer(step.parameters(), {.lr = options.lr});
  ls::data::DataLoader loader = step.loader(train_set);
  samples::GraphStep graph_step(options, step.device());
  samples::Run run(options, step, {.model = &model, .optimizer = &optimizer}, loader.size());
  const auto evaluate_on = [&](const ls::data::Dataset& set) {
    return step.gathered([&] { return evaluate(model, criterion, set); });
  };
  for (std::int64_t epoch = run.first_epoch(); epoch <= options.epochs; ++epoch) {
    loader.set_epoch(epoch);             // the order of the examples depends only on seed and epoch
    loader.skip(run.batches_done());     // a resumed run has already trained on some batches
    for (const auto& [x, y] : loader) {  // (batch, 30) and (batch, 1)
      const ls::Tensor loss = graph_step(x, y, [&](const ls::Tensor& x, const ls::Tensor& y) {
        optimizer.zero_grad();
        ls::Tensor loss = step.backward(x, y, criterion);
        optimizer.step();
        return loss;
      });
      run.step_done(loss.item<double>(), step.rows(x));
      if (step.stop_requested()) return run.interrupted();
    }
    run.epoch_done(evaluate_on(*test_set));
  }
  return run.finish(
      evaluate_on(*train_set), evaluate_on(*test_set),
      "the same with --lr 0.01 (too slow), --lr 100 (too fast), --epochs 200 (does it still get better?)");
}

int main(int argc, char** argv) {
  return samples::run_program(argc, argv,
                              {.program = "logistic_regression",
                               .about = "Trains logistic regression on the Wisconsin breast cancer data",
                               .data = default_file(),
                               .data_flag = "--file",
                               .data_help = "CSV file with a header and a column named benign",
                               .data_default = "samples/data/wdbc.csv in Lockstep's sources"},
                              train);
}
