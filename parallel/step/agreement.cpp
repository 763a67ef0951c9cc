#include <algorithm>
#include <array>
#include <exception>
#include <span>

#include "lockstep/base/check_internal.h"
#include "lockstep/parallel/step/agreement_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::parallel {
namespace {

// The result of a round on one rank, as it is sent to the others.
enum class Outcome : std::uint8_t { kDone, kMore, kInvalidArgument, kIoError, kError };

constexpr std::size_t kReportBytes = 288;  // the outcome, and the text of an error, padded with zeros
using Report = std::array<std::uint8_t, kReportBytes>;

Report report_of(Outcome outcome, const char* text) {
  Report report = {static_cast<std::uint8_t>(outcome)};
  for (std::size_t i = 1; i < report.size() && *text; ++i) report[i] = static_cast<std::uint8_t>(*text++);
  return report;
}

// Runs a round. Stores its exception in `error`.
Report run(FunctionRef<bool()> round, std::exception_ptr& error) {
  try {
    return report_of(round() ? Outcome::kMore : Outcome::kDone, "");
  } catch (const InvalidArgument& e) {
    error = std::current_exception();
    return report_of(Outcome::kInvalidArgument, e.what());
  } catch (const IoError& e) {
    error = std::current_exception();
    return report_of(Outcome::kIoError, e.what());
  } catch (const std::exception& e) {
    error = std::current_exception();
    return report_of(Outcome::kError, e.what());
  }
}

[[noreturn]] void raise(int rank, std::span<const std::uint8_t> report) {
  const auto* const first = reinterpret_cast<const char*>(report.data()) + 1;
  const std::string text =
      fmt::format("rank {}: {}", rank, std::string(first, std::find(first, first + kReportBytes - 1, '\0')));
  switch (static_cast<Outcome>(report[0])) {
    case Outcome::kInvalidArgument:
      throw InvalidArgument(text);
    case Outcome::kIoError:
      throw IoError(text);
    default:
      throw Error(text);
  }
}

}  // namespace

void in_rounds(ProcessGroup* group, FunctionRef<bool()> round, const char* caller) {
  if (!group) {
    while (round()) continue;
    return;
  }
  const std::int64_t size = group->size();
  const Tensor all = raw::empty({size, kReportBytes}, {.dtype = kUInt8});
  Report own = report_of(Outcome::kMore, "");
  for (bool is_more = true; is_more;) {
    std::exception_ptr error;
    if (own[0] == static_cast<std::uint8_t>(Outcome::kMore)) own = run(round, error);
    group->all_gather(all, raw::from_bytes(own.data(), {kReportBytes}, kUInt8), {.name = caller})->wait();
    if (error) std::rethrow_exception(error);
    is_more = false;
    const std::span<const std::uint8_t> bytes = all.span<std::uint8_t>();
    for (int rank = 0; rank < size; ++rank) {
      const auto report = bytes.subspan(static_cast<std::size_t>(rank) * kReportBytes, kReportBytes);
      const auto outcome = static_cast<Outcome>(report[0]);
      if (outcome != Outcome::kDone && outcome != Outcome::kMore) raise(rank, report);
      is_more = is_more || outcome == Outcome::kMore;
    }
  }
}

void on_all_ranks(ProcessGroup* group, FunctionRef<void()> work, const char* caller) {
  in_rounds(
      group, [&] { return work(), false; }, caller);
}

std::string text_of_rank_0(ProcessGroup* group, const std::string& text) {
  if (!group) return text;
  constexpr std::size_t kMost = 4096;
  std::string padded = text;
  padded.resize(kMost);
  const Tensor bytes = raw::from_bytes(padded.data(), {kMost}, kUInt8);
  group->broadcast(bytes)->wait();
  const std::span<const std::uint8_t> span = bytes.span<std::uint8_t>();
  return std::string(span.begin(), std::ranges::find(span, std::uint8_t{0}));
}

Tensor gather_numbers(ProcessGroup* group, const std::vector<std::int64_t>& own) {
  const auto count = static_cast<std::int64_t>(own.size());
  const Tensor row = raw::from_bytes(own.data(), {1, count}, kInt64);
  if (!group || count == 0) return row;
  const Tensor all = raw::empty({group->size(), count}, {.dtype = kInt64});
  group->all_gather(all, row)->wait();
  return all;
}

std::vector<std::vector<std::string>> gather_texts(ProcessGroup& group, const std::vector<std::string>& own) {
  std::string joined;
  for (const std::string& text : own) joined += text + '\0';
  const Tensor lengths = gather_numbers(&group, {static_cast<std::int64_t>(joined.size())});
  const std::int64_t longest = std::ranges::max(lengths.span<std::int64_t>());
  std::vector<std::vector<std::string>> texts(static_cast<std::size_t>(group.size()));
  if (longest == 0) return texts;
  joined.resize(static_cast<std::size_t>(longest));
  const Tensor all = raw::empty({group.size(), longest}, {.dtype = kUInt8});
  group.all_gather(all, raw::from_bytes(joined.data(), {longest}, kUInt8))->wait();
  for (std::size_t r = 0; r < texts.size(); ++r) {
    const auto length = static_cast<std::size_t>(lengths.span<std::int64_t>()[r]);
    const auto bytes = all.span<std::uint8_t>().subspan(r * static_cast<std::size_t>(longest), length);
    for (auto begin = bytes.begin(); begin != bytes.end();) {
      const auto end = std::find(begin, bytes.end(), std::uint8_t{0});
      texts[r].emplace_back(begin, end);
      begin = end + 1;
    }
  }
  return texts;
}

}  // namespace lockstep::parallel
