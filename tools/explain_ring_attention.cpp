#include "tools/explain_ring_attention.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "lockstep/autograd/ops/creation.h"

namespace par = lockstep::parallel;

namespace {

constexpr int kHalves = 2;  // half blocks of a sequence block

// The names of the parts of two sequence blocks, and their meaning.
constexpr std::pair<const char*, const char*> kParts[] = {
    {"causal", "each query attends to the keys up to its own position"},
    {"half k", "all queries attend to the first half block of keys; the second is later than all queries"},
    {"half q", "the second half block of queries attends to all keys; the first is earlier than all keys"},
    {"all", "all queries attend to all keys"},
    {"none", "all keys are later than the queries: the rank has no work"}};

std::string part_name(const par::BlockPair& part) {
  if (part.queries == 0) return "none";
  if (part.causal) return "causal";
  if (part.keys < kHalves) return "half k";
  return part.first_query > 0 ? "half q" : "all";
}

std::int64_t work_of(const par::BlockPair& part) { return part.queries * part.keys / (part.causal ? 2 : 1); }

void mark_pairs(SeenRing& ring, int rank, int step) {
  const SeenAttention& seen = ring.steps[static_cast<std::size_t>(rank)][static_cast<std::size_t>(step)];
  const auto half_block = [&](int owner, std::int64_t i) {
    return static_cast<std::size_t>(ring.half_blocks[static_cast<std::size_t>(owner)][static_cast<std::size_t>(i)]);
  };
  for (std::int64_t q = 0; q < seen.part.queries; ++q) {
    for (std::int64_t k = 0; k < (seen.part.causal ? q + 1 : seen.part.keys); ++k)
      ring.pairs[half_block(rank, seen.part.first_query + q)][half_block(seen.keys_of, k)] = {
          step + 1, seen.part.causal && k == q};
  }
}

std::string steps_text(const SeenRing& ring) {
  std::string text = "\nSteps: the rank whose keys a rank has, and the part of attention to them that it computes\n";
  text += "rank  half blocks";
  for (std::size_t s = 0; s < ring.slowest.size(); ++s) text += fmt::format("{:>10}", fmt::format("step {}", s + 1));
  for (std::size_t r = 0; r < ring.steps.size(); ++r) {
    text += fmt::format("\n{:>4}  {:>11}", r, fmt::format("{}", fmt::join(ring.half_blocks[r], " ")));
    for (const SeenAttention& seen : ring.steps[r])
      text += fmt::format("{:>10}", fmt::format("{} {}", seen.keys_of, part_name(seen.part)));
  }
  text += "\n";
  for (const auto& [name, meaning] : kParts) {
    const auto is_named = [&name = name](const SeenAttention& seen) { return part_name(seen.part) == name; };
    if (std::ranges::any_of(ring.steps, [&](const auto& steps) { return std::ranges::any_of(steps, is_named); }))
      text += fmt::format("  {:<6}  {}\n", name, meaning);
  }
  return text;
}

std::string pairs_text(const SeenRing& ring) {
  const auto label = fmt::formatted_size("queries of rank {}", ring.question.ranks - 1);
  std::string text = "\nThe step that computes each pair of half blocks";
  text += ring.question.no_causal ? "\n" : "; \\: the mask leaves half of it, .: nothing\n";
  text += fmt::format("{:<{}}", "keys of rank", label + 4);
  for (const int owner : ring.owners) text += fmt::format("{:>4}", owner);
  text += fmt::format("\n{:<{}}", "half block", label + 4);
  for (std::size_t k = 0; k < ring.owners.size(); ++k) text += fmt::format("{:>4}", k);
  for (std::size_t q = 0; q < ring.owners.size(); ++q) {
    text += fmt::format("\n{:<{}}{:>4}", fmt::format("queries of rank {}", ring.owners[q]), label, q);
    for (const SeenPair& pair : ring.pairs[q])
      text += fmt::format("{:>4}", pair.step == 0 ? "." : fmt::format("{}{}", pair.is_half ? "\\" : "", pair.step));
  }
  return text + "\n";
}

std::string work_text(const SeenRing& ring) {
  std::string text = "\nWork, in pairs of half blocks";
  text += ring.question.no_causal ? "\nrank   " : "; a pair on the diagonal counts as a half\nrank   ";
  for (std::size_t s = 0; s < ring.slowest.size(); ++s) text += fmt::format("{:>8}", fmt::format("step {}", s + 1));
  text += "   total\n";
  for (std::size_t r = 0; r < ring.steps.size(); ++r) {
    text += fmt::format("{:>4}   ", r);
    std::int64_t total = 0;
    for (const SeenAttention& seen : ring.steps[r]) {
      text += fmt::format("{:>8}", seen.work);
      total += seen.work;
    }
    text += fmt::format("{:>8}\n", total);
  }
  text += "slowest";
  for (const std::int64_t work : ring.slowest) text += fmt::format("{:>8}", work);
  text += fmt::format("{:>8}\n", ring.time());
  text += "\nTime, if each step lasts as long as its slowest rank, and the part of it in which ranks compute\n";
  for (const bool plain : {false, true}) {
    RingAttentionQuestion question = ring.question;
    question.plain = plain;
    const SeenRing each = ring_of(question);
    text += fmt::format("{:<10}  {:>4}  {:>3.0f} %\n", ring_name(question), each.time(), 100 * each.busy());
  }
  return text;
}

// Lists, for each rank, the ranks whose parts are added, in the order of the additions.
std::string sums_text(const SeenRing& ring) {
  std::vector<std::vector<int>> results(ring.steps.size()), gradients(ring.steps.size());
  for (std::size_t s = 0; s < ring.slowest.size(); ++s) {
    for (std::size_t r = 0; r < ring.steps.size(); ++r) {
      const SeenAttention& seen = ring.steps[r][s];
      if (seen.part.queries == 0) continue;
      results[r].push_back(seen.keys_of);
      gradients[static_cast<std::size_t>(seen.keys_of)].push_back(static_cast<int>(r));
    }
  }
  std::string text = "\nThe order of sums, which determines the bits\n";
  text += fmt::format("{:<6}{:<42}{}\n", "rank", "results: over the keys of ranks",
                      "gradients of its keys: over the queries of ranks");
  for (std::size_t r = 0; r < ring.steps.size(); ++r)
    text += fmt::format("{:>4}  {:<42}{}\n", r, fmt::format("{}", fmt::join(results[r], " ")),
                        fmt::join(gradients[r], " "));
  return text;
}

std::string bytes_text(int ranks) {
  return fmt::format(
      "\nBytes that each rank sends for one attention; B is the size of its keys, and of its values\n"
      "forward   keys and values  2 (C-1) B = {0} x B\n"
      "backward  keys and values  2 (C-1) B = {0} x B\n"
      "          gradients        2 C B     = {1} x B; {2} x B if keys are f16 or bf16: gradients are f32\n",
      2 * (ranks - 1), 2 * ranks, 4 * ranks);
}

}  // namespace

std::int64_t SeenRing::time() const { return std::reduce(slowest.begin(), slowest.end()); }

double SeenRing::busy() const {
  return static_cast<double>(work) / static_cast<double>(time() * static_cast<std::int64_t>(steps.size()));
}

SeenRing ring_of(const RingAttentionQuestion& question) {
  const auto ranks = static_cast<std::size_t>(question.ranks), all = kHalves * ranks;
  SeenRing ring{.question = question,
                .half_blocks = {},
                .owners = std::vector<int>(all),
                .steps = std::vector<std::vector<SeenAttention>>(ranks),
                .pairs = std::vector<std::vector<SeenPair>>(all, std::vector<SeenPair>(all)),
                .slowest = std::vector<std::int64_t>(ranks)};
  const lockstep::Tensor sequence = lockstep::arange(kHalves * question.ranks);
  for (int rank = 0; rank < question.ranks; ++rank) {
    const par::SequenceBlocks blocks{question.ranks, rank, !question.plain};
    const lockstep::Tensor own = blocks.part(sequence, 0, rank).contiguous();
    const std::span<const std::int64_t> numbers = own.span<std::int64_t>();
    ring.half_blocks.emplace_back(numbers.begin(), numbers.end());
    for (const std::int64_t each : numbers) ring.owners[static_cast<std::size_t>(each)] = rank;
    for (int step = 0; step < question.ranks; ++step) {
      SeenAttention seen{.keys_of = blocks.reached(step)};
      seen.part = blocks.pair(rank, seen.keys_of, kHalves, !question.no_causal);
      seen.work = work_of(seen.part);
      ring.steps[static_cast<std::size_t>(rank)].push_back(seen);
      ring.work += seen.work;
      std::int64_t& slowest = ring.slowest[static_cast<std::size_t>(step)];
      slowest = std::max(slowest, seen.work);
    }
  }
  for (int rank = 0; rank < question.ranks; ++rank) {
    for (int step = 0; step < question.ranks; ++step) mark_pairs(ring, rank, step);
  }
  return ring;
}

std::string ring_name(const RingAttentionQuestion& question) { return question.plain ? "plain ring" : "zigzag"; }

std::string ring_text(const SeenRing& ring) {
  const RingAttentionQuestion& question = ring.question;
  return fmt::format(
             "ring attention ({}): {} ranks, {}, {} half blocks of the sequence\n"
             "In each step a rank computes attention to the keys and values that it has.\n"
             "In all steps but the last it also sends them to the next rank.\n",
             ring_name(question), question.ranks, question.no_causal ? "no mask" : "causal mask",
             kHalves * question.ranks) +
         steps_text(ring) + pairs_text(ring) + work_text(ring) + sums_text(ring) + bytes_text(question.ranks);
}
