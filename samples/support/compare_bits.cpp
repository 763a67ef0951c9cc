#include "support/compare_bits.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "support/compare_runs.h"
#include "support/mesh.h"
#include "support/pipeline.h"
#include "support/step.h"
#include "support/strategy.h"

namespace samples {
namespace {

// Why a strategy does not add in the order of whole micro-batches, matrices and parameters. Empty: it does.
std::string reason_of(const Options& options, const std::string& name) {
  const Options here = in_mode(options, name);
  const int ranks = static_cast<int>(options.nproc), slices = tensor_slices(here, ranks),
            blocks = has_mesh(name) ? ranks_along(mesh_of(here, ranks), "cp") : 1;
  std::vector<std::string> reasons;
  if (blocks > 1) reasons.push_back(fmt::format("{} sequence blocks ({})", blocks, options.attention));
  if (slices > 1) reasons.push_back(fmt::format("{} tensor slices", slices));
  if (has_stages(here, ranks) && !options.gpt->untied)
    reasons.push_back("two gradient sums of the weight that embed and head share (not with --untied)");
  return fmt::format("{}", fmt::join(reasons, " and "));
}

}  // namespace

void check_comparable(const Options& options) {
  const std::vector<std::string> names = compared(options);
  const bool has_dp = std::ranges::find(names, "dp") != names.end();
  const int ranks = std::ranges::any_of(names, has_ranks) ? static_cast<int>(options.nproc) : 1;
  for (const std::string& name : names) {
    const Options here = in_mode(options, name);
    const int sharing = data_ranks(here, ranks);
    if (name != "single") check_split(here, ranks);
    if (name != "single" && !std::has_single_bit(static_cast<std::uint64_t>(options.micro_batches / sharing)))
      throw ls::InvalidArgument(
          fmt::format("--strategy compare: {} micro-batches on {} ranks; the bits are the same only if each rank has "
                      "1, 2, 4, 8, ... micro-batches",
                      options.micro_batches, sharing));
  }
  if (has_dp && options.loss == "outside" && !has_same_bits_outside(options))
    throw ls::InvalidArgument(
        fmt::format("--strategy compare: with {} micro-batches dp's bits differ when the loss is taken outside; take "
                    "--loss replica, or 1, 2, 4, 8, ... micro-batches",
                    options.micro_batches));
}

std::string SameOrder::text() const {
  if (names.size() < 2) return fmt::format("{}", fmt::join(names, ""));
  return fmt::format("{} and {}", fmt::join(names.begin(), names.end() - 1, ", "), names.back());
}

std::vector<SameOrder> orders_of(const Options& options) {
  std::vector<SameOrder> orders = {{}};
  for (const std::string& name : compared(options)) {
    if (name == "single") continue;
    const std::string reason = reason_of(options, name);
    auto order = std::ranges::find(orders, reason, &SameOrder::reason);
    if (order == orders.end()) order = orders.insert(order, {.names = {}, .reason = reason});
    order->names.push_back(name);
  }
  return orders;
}

bool have_same_bits(const Options& options, const std::vector<Result>& results) {
  const auto hash_of = [&](const std::string& name) { return std::ranges::find(results, name, &Result::mode)->hash; };
  for (const SameOrder& order : orders_of(options)) {
    const auto other = std::ranges::find_if(
        order.names, [&](const std::string& name) { return hash_of(name) != hash_of(order.names[0]); });
    if (other == order.names.end()) continue;
    fmt::print(stderr, "{}: {} should end with bitwise identical parameters, and do not.\n", options.program,
               order.text());
    const bool is_outside = options.loss == "outside" && (order.names[0] == "dp" || *other == "dp");
    fmt::print(stderr, "{}", first_difference(order.names[0], *other, !is_outside));
    return false;
  }
  return true;
}

}  // namespace samples
