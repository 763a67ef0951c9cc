#include "tools/explain_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

namespace {

constexpr std::int64_t kItem = 4, kLine = 64;  // bytes of an f32, and of the line that every shard is a multiple of
constexpr int kBar = 64;                       // characters of the longest bar

// GPT-2 with 12 blocks of width 768: embeddings of 50257 tokens and 1024 positions, and a norm, are the root unit.
constexpr std::int64_t kGptRoot = (50257 + 1024 + 2) * 768;
constexpr std::int64_t kGptBlock = 12 * 768 * 768 + 13 * 768;
constexpr int kGptBlocks = 12;

UnitElements units_of(const MemoryQuestion& question) {
  if (question.model == "gpt") {
    UnitElements units(kGptBlocks + 1, kGptBlock);
    units[0] = kGptRoot;
    return units;
  }
  UnitElements units = {0};
  for (std::int64_t u = 0; u < question.units; ++u)
    units.push_back(question.parameters * (u + 1) / question.units - question.parameters * u / question.units);
  return units;
}

std::string size_text(std::int64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (value < 1e6) return fmt::format("{:.1f} kB", value / 1e3);
  return value < 1e9 ? fmt::format("{:.1f} MB", value / 1e6) : fmt::format("{:.2f} GB", value / 1e9);
}

// The bar of a stage: a letter for each kBar-th part of `whole`, rounded so that the lengths add up.
std::string bar(const RankMemory& memory, std::int64_t whole) {
  std::string text;
  std::int64_t end = 0;
  const std::pair<char, std::int64_t> parts[] = {
      {'P', memory.parameters}, {'G', memory.gradients}, {'O', memory.optimizer}, {'U', memory.units}};
  for (const auto& [letter, bytes] : parts) {
    end += bytes;
    const double length = kBar * static_cast<double>(end) / static_cast<double>(std::max<std::int64_t>(whole, 1));
    text.resize(std::max(text.size(), static_cast<std::size_t>(length + 0.5)), letter);
  }
  return text;
}

const char* name_of(int stage) {
  constexpr const char* kNames[] = {"stage 0: DDP, nothing is sharded", "stage 1: optimizer state is sharded",
                                    "stage 2: also gradients", "stage 3: also parameters (FSDP)"};
  return kNames[stage];
}

// Of gradients, which the canonical sum over micro-batches needs besides the first.
int additional_sets(int micro_batches) { return std::bit_width(static_cast<unsigned>(micro_batches + 1) / 2) - 1; }

std::string gradients_formula(int stage, int micro_batches) {
  const bool is_rotating = stage > 1 && micro_batches == 1;
  const int sets = additional_sets(micro_batches);
  const std::string sum = is_rotating ? "P/n" : "P";
  return sets == 0 ? sum : fmt::format("{} + {} P, sets of the sum over {} micro-batches", sum, sets, micro_batches);
}

std::string units_formula(int stage, int micro_batches) {
  const bool is_rotating = stage > 1 && micro_batches == 1;
  if (stage < 2 || (stage == 2 && !is_rotating)) return "";
  const std::string gradients = "root and 1 unit of gradients";
  if (stage == 2) return gradients;
  return "root and 2 units of parameters" + (is_rotating ? ", " + gradients : "");
}

std::string stage_text(const MemoryQuestion& question, int stage, const UnitElements& units) {
  const RankMemory memory = memory_of(stage, question.ranks, question.micro_batches, units);
  const RankMemory ddp = memory_of(0, question.ranks, question.micro_batches, units);
  const auto line = [](const char* what, std::int64_t bytes, const std::string& formula) {
    return fmt::format("  {:<18}{:>18} B {:>12}  {}", what, bytes, size_text(bytes), formula);
  };
  const auto add = [&](std::string& text, const std::string& more) {
    text += more.substr(0, more.find_last_not_of(' ') + 1) + "\n";
  };
  std::string text = fmt::format("\n{}\n", name_of(stage));
  add(text, line("P parameters", memory.parameters, stage == 3 ? "P/n" : "P"));
  add(text, line("G gradients", memory.gradients, gradients_formula(stage, question.micro_batches)));
  add(text, line("O optimizer state", memory.optimizer, stage == 0 ? "2 P" : "2 P/n"));
  add(text, line("U unit buffers", memory.units, units_formula(stage, question.micro_batches)));
  const double share =
      static_cast<double>(memory.total()) / static_cast<double>(std::max<std::int64_t>(ddp.total(), 1));
  add(text, line("total", memory.total(), stage == 0 ? "" : fmt::format("{:.3f} of DDP's", share)));
  const RankMemory third = memory_of(3, question.ranks, question.micro_batches, units);
  add(text, "  " + bar(memory, std::max(ddp.total(), third.total())));
  return text;
}

}  // namespace

RankMemory memory_of(int stage, int ranks, int micro_batches, const UnitElements& units) {
  const bool is_rotating = stage > 1 && micro_batches == 1;
  const std::int64_t sets = additional_sets(micro_batches);
  const std::int64_t elements = std::accumulate(units.begin(), units.end(), std::int64_t{0});
  if (stage == 0)
    return {
        .parameters = kItem * elements, .gradients = (1 + sets) * kItem * elements, .optimizer = 2 * kItem * elements};
  RankMemory memory;
  const auto padded = [&](std::int64_t count) {
    return (kItem * count + kLine * ranks - 1) / (kLine * ranks) * kLine * ranks;
  };
  std::int64_t largest = 0;
  for (std::size_t u = 0; u < units.size(); ++u) {
    const std::int64_t bytes = padded(units[u]);
    memory.parameters += stage == 3 ? bytes / ranks : bytes;
    memory.gradients += is_rotating ? bytes / ranks : bytes;
    memory.optimizer += 2 * bytes / ranks;
    if (u > 0) largest = std::max(largest, bytes);
  }
  memory.gradients += sets * kItem * elements;
  const auto shared = static_cast<std::int64_t>(std::min<std::size_t>(2, units.size() - 1));
  if (stage == 3) memory.units += padded(units[0]) + shared * largest;
  if (is_rotating) memory.units += padded(units[0]) + largest;
  return memory;
}

std::string memory_text(const MemoryQuestion& question) {
  const UnitElements units = units_of(question);
  const std::int64_t elements = std::accumulate(units.begin(), units.end(), std::int64_t{0});
  std::string text = fmt::format(
      "memory of one of {} ranks, with Adam and {} per rank\n{} f32 parameters (P = {} B) in {} units{}\n",
      question.ranks,
      question.micro_batches == 1 ? "1 micro-batch" : fmt::format("{} micro-batches", question.micro_batches), elements,
      kItem * elements, units.size() - 1, units[0] > 0 ? fmt::format(" and {} in the root unit", units[0]) : "");
  for (int stage = 0; stage <= 3; ++stage) {
    if (question.stage < 0 || question.stage == stage) text += stage_text(question, stage, units);
  }
  return text +
         "\nWithout activations, buffers and the gaps between parameters. A unit is padded to a multiple of n x 64 "
         "B.\n";
}
