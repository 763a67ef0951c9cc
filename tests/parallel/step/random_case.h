// Random cases for tests of parallel training: a model, a mode and its options, drawn from a number.
#pragma once

#include <array>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace random_case {

// Cases on one backend with one number of ranks. gloo needs long for the groups that each case makes.
constexpr std::uint32_t kCases = 250, kMpiCases = 60, kSlowCases = 40;
// The numbers of each backend's first cases.
constexpr std::uint32_t kShmFirst = 0, kLocalFirst = 1000, kLateFirst = 2000, kGlooFirst = 9249, kMpiFirst = 6063;

// Each enumeration is an option; a case has a value of each.
enum class Mode { kDistributed, kStage1, kStage2, kStage3, kStage3Resident, kCount };
enum class Call { kBackward, kOperator, kCount };  // backward(x, y, loss_fn), or operator() and loss.backward()
// Samples of the ranks. kJoin: all but one rank run out of them, one after another.
enum class Samples { kEven, kUneven, kFirstEmpty, kLastEmpty, kMiddleEmpty, kJoin, kJoinDivided, kCount };
enum class Skip { kNone, kFirstMicroBatch, kLastMicroBatch, kCount };  // which micro-batch does not call a block
enum class Recompute { kNone, kBlocks, kSomeBlocks, kSegments, kCount };
enum class Units { kDefault, kNested, kInner, kOne, kCount };  // blocks; and in them; only in them; all in one
enum class Update { kMomentum, kAdam, kClippedAdam, kCount };
enum class Sharing {
  kNone,
  kTied,
  kBorrowed,
  kTwice,
  kCount
};                                               // a weight in two blocks, registered or not; a call twice
enum class MicroBatches { kOne, kTwo, kCount };  // per rank
enum class Weighting { kEqual, kSamples, kCount };
enum class Precision { kF32, kF64, kCount };
enum class Between { kNothing, kGathered, kSaved, kCount };  // before a step the model is read, or saved and loaded
enum class Place { kHost, kDevice, kOffloaded, kCount };     // a virtual device, the optimizer there or on the host

enum class Block {
  kLinear,
  kPlain,
  kNormed,
  kConv,
  kLstm,
  kBatchNorm,
  kFrozen,
  kHalfFrozen,
  kUnused,
  kLarge,
  kEmbedding,
  kVectors,
  kCount
};

struct Case {
  std::uint32_t number = 0;
  int ranks = 2;
  Mode mode{};
  Call call{};
  Samples samples{};
  Skip skip{};
  Recompute recompute{};
  Units units{};
  Update update{};
  Sharing sharing{};
  MicroBatches micro_batches{};
  Weighting weighting{};
  Precision precision{};
  Between between{};
  Place place{};
  std::vector<Block> blocks;
  std::size_t chosen = 0;  // the block that is skipped, or called twice

  int per_rank() const { return micro_batches == MicroBatches::kOne ? 1 : 2; }
  bool is_sharded() const { return mode != Mode::kDistributed; }
  bool joins() const { return samples == Samples::kJoin || samples == Samples::kJoinDivided; }
  bool all_alike() const { return (samples == Samples::kEven || samples == Samples::kUneven) && skip == Skip::kNone; }

  std::vector<int> values() const {
    return {static_cast<int>(mode),      static_cast<int>(call),      static_cast<int>(samples),
            static_cast<int>(skip),      static_cast<int>(recompute), static_cast<int>(units),
            static_cast<int>(update),    static_cast<int>(sharing),   static_cast<int>(micro_batches),
            static_cast<int>(weighting), static_cast<int>(precision), static_cast<int>(between),
            static_cast<int>(place)};
  }
  std::string describe() const {
    static constexpr std::array kNames = {"mode",      "call",    "samples", "skip",          "recompute",
                                          "units",     "update",  "sharing", "micro-batches", "weighting",
                                          "precision", "between", "place"};
    std::string text = "case " + std::to_string(number) + ", " + std::to_string(ranks) + " ranks";
    const std::vector<int> all = values();
    for (std::size_t i = 0; i < all.size(); ++i) text += std::string(", ") + kNames[i] + " " + std::to_string(all[i]);
    text += ", block " + std::to_string(chosen) + " of";
    for (const Block block : blocks) text += " " + std::to_string(static_cast<int>(block));
    return text;
  }
};

inline Case draw(std::uint32_t number, int ranks) {
  std::mt19937 random(number * 977 + static_cast<std::uint32_t>(ranks));
  const auto below = [&](std::uint32_t n) { return static_cast<int>(random() % n); };
  const auto any = [&]<class E>(E& option) { option = static_cast<E>(below(static_cast<std::uint32_t>(E::kCount))); };
  // The first value in half of the cases.
  const auto seldom = [&]<class E>(E& option) {
    any(option);
    if (below(2) == 0) option = E{};
  };
  Case of;
  of.number = number;
  of.ranks = ranks;
  any(of.mode);
  any(of.call);
  any(of.samples);
  seldom(of.skip);
  any(of.recompute);
  any(of.units);
  any(of.update);
  seldom(of.sharing);
  any(of.micro_batches);
  any(of.weighting);
  seldom(of.precision);
  any(of.between);
  seldom(of.place);
  of.blocks.resize(static_cast<std::size_t>(2 + below(6)));
  for (Block& block : of.blocks) any(block);
  of.chosen = static_cast<std::size_t>(below(static_cast<std::uint32_t>(of.blocks.size())));

  // Some options exclude others. A borrowed weight and a second call need the same forward on all ranks.
  if (of.sharing == Sharing::kBorrowed || of.sharing == Sharing::kTwice) {
    of.samples = below(2) == 0 ? Samples::kEven : Samples::kUneven;
    of.skip = Skip::kNone;
  }
  if (of.call == Call::kOperator) {
    of.micro_batches = MicroBatches::kOne;
    of.weighting = Weighting::kEqual;
    if (!of.all_alike()) of.samples = Samples::kUneven;
  }
  if (of.joins()) of.between = Between::kNothing;
  if (of.samples == Samples::kMiddleEmpty && ranks == 2) of.samples = Samples::kLastEmpty;
  return of;
}

}  // namespace random_case
