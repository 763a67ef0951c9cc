#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "lockstep/parallel/rendezvous/limits_internal.h"
#include "lockstep/parallel/rendezvous/place_internal.h"
#include "lockstep/parallel/rendezvous/store_protocol_internal.h"
#include "lockstep/tensor/byte_reader_internal.h"
#include "lockstep/tensor/check_internal.h"

namespace lockstep::parallel {

namespace {

constexpr const char* kTerms = "terms";  // the key of the terms of the first rank that enters

std::string process_mark() { return fmt::format("process {}", ::getpid()); }

}  // namespace

void raise_outcome(const std::string& outcome) {
  const std::string text = outcome.substr(1);
  if (outcome[0] == kLate) throw CommTimeout(text);
  throw CommError(text);
}

std::string list_ranks(const std::vector<int>& ranks) {
  constexpr std::size_t kShown = 12;
  std::string out = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size() && i < kShown; ++i) {
    const bool is_last = i + 1 == ranks.size();
    out += fmt::format("{}{}", i == 0 ? "" : is_last ? " and " : ", ", ranks[i]);
  }
  if (ranks.size() > kShown) out += fmt::format(" and {} more", ranks.size() - kShown);
  return out;
}

// Ranks can be threads of one process, so the mark includes the thread.
Registration::Registration(Store& store, int rank, int size, std::string backend, std::string where)
    : store_(store), rank_(rank), size_(size), most_ranks_(size), backend_(std::move(backend)),
      where_(std::move(where)), mark_(process_mark()) {
  const long thread = ::syscall(SYS_gettid);
  if (thread != ::getpid()) mark_ += fmt::format(" (thread {})", thread);
}

// The value of the key; empty if the key does not exist.
std::string Registration::value_of(const std::string& key) { return store_.check({key}) ? store_.get(key) : ""; }

bool Registration::is_over() {
  outcome_ = value_of(kOutcome);
  if (outcome_.empty()) return false;
  holder_ = value_of(key_of(rank_));
  if (has_failed()) {
    error_ = outcome_.substr(1);
    return true;
  }
  const Terms theirs = decode(value_of(kTerms));
  is_of_others_ = !theirs.agrees(own_terms());
  error_ = is_of_others_ ? describe_disagreement(theirs) : describe_twice();
  return true;
}

// A rank that disagrees enters as well, as all ranks of a store must count the same rendezvous.
bool Registration::enter() {
  const Terms first = decode(store_.compare_set(kTerms, "", encode(own_terms())));
  holder_ = store_.compare_set(key_of(rank_), "", mark_);
  const bool agrees = first.agrees(own_terms());
  if (agrees && holder_ == mark_) return true;
  most_ranks_ = std::max(size_, first.size);
  error_ = agrees ? describe_twice() : describe_disagreement(first);
  store_.compare_set(kOutcome, "", kLost + error_);
  return false;
}

// The backend is last: only the backend may contain any character.
std::string Registration::encode(const Terms& terms) const {
  return fmt::format("{}\n{}\n{}\n{}", terms.rank, terms.size, terms.mark, terms.backend);
}

Registration::Terms Registration::decode(const std::string& text) const {
  const std::size_t size = text.find('\n'), mark = text.find('\n', size + 1), backend = text.find('\n', mark + 1);
  Terms out;
  const auto read = [&](std::size_t begin, std::size_t end, int& number) {
    const auto value = whole_number<int>(std::string_view(text).substr(begin, end - begin));
    number = value.value_or(-1);
    return number >= 0 && number <= kMaxRanks;
  };
  if (backend == std::string::npos || !read(0, size, out.rank) || !read(size + 1, mark, out.size))
    throw CommError(fmt::format("{}: the store has {} as the ranks' terms: does another program use this store?",
                                where_, in_quotes(text)));
  out.mark = text.substr(mark + 1, backend - mark - 1);
  out.backend = text.substr(backend + 1);
  return out;
}

std::string Registration::describe_disagreement(const Terms& first) const {
  if (first.size != size_)
    return fmt::format(
        "{}: ranks disagree about the number of ranks: rank {} ({}) has {}, rank {} ({}) has {}\n"
        "Give all ranks the same WORLD_SIZE or .world_size",
        where_, first.rank, first.mark, first.size, rank_, mark_, size_);
  return fmt::format(
      "{}: ranks disagree about the backend: rank {} ({}) has {}, rank {} ({}) has {}\n"
      "Give all ranks the same .backend",
      where_, first.rank, first.mark, in_quotes(first.backend), rank_, mark_, in_quotes(backend_));
}

std::string Registration::describe_twice() const {
  return fmt::format("{}: rank {} was started twice: as {}, and as {}\nEvery rank of a job is started once", where_,
                     rank_, holder_, mark_);
}

bool Registration::is_by_this_process() const {
  return holder_ == process_mark() || holder_.starts_with(process_mark() + " ");
}

std::string Registration::will() const {
  return kLost + fmt::format("{}: rank {} ({}) ended before the group was made", where_, rank_, process_mark());
}

void Registration::arrive() {
  if (store_.add("arrived", 1) == size_) store_.compare_set(kOutcome, "", kAllHere);
}

// The store, with the list of entered ranks, ends with rank 0. So rank 0 times out first, and reports the missing
// ranks.
void Registration::wait_for_all(std::chrono::milliseconds timeout, std::chrono::milliseconds shown) {
  constexpr std::chrono::milliseconds kForRankZero{500};
  try {
    outcome_ = store_.get(kOutcome, rank_ == 0 ? timeout : timeout + kForRankZero);
  } catch (const CommTimeout&) {
    outcome_ = settle_late(shown);
  }
  if (has_failed()) raise_outcome(outcome_);
}

// Records the timeout as the outcome, unless an outcome was set meanwhile.
std::string Registration::settle_late(std::chrono::milliseconds shown) {
  try {
    return store_.compare_set(kOutcome, "", kLate + describe_missing(shown));
  } catch (const CommError& error) {
    return kLate + fmt::format("{}: not all of {} ranks arrived within {} ms, and the store does not reply:\n{}",
                               where_, size_, shown.count(), error.what());
  }
}

std::vector<int> Registration::entered() {
  std::vector<int> here;
  for (int rank = 0; rank < most_ranks_; ++rank) {
    if (store_.check({key_of(rank)})) here.push_back(rank);
  }
  return here;
}

std::string Registration::describe_missing(std::chrono::milliseconds shown) {
  const std::vector<int> here = entered();
  std::vector<int> missing;
  for (int rank = 0; rank < size_; ++rank) {
    if (std::find(here.begin(), here.end(), rank) == here.end()) missing.push_back(rank);
  }
  if (missing.empty()) return fmt::format("{}: all ranks have entered, but one hangs before its arrival", where_);
  return fmt::format("{}: {} of {} did not arrive within {} ms; {} {} here", where_, list_ranks(missing), size_,
                     shown.count(), list_ranks(here), here.size() == 1 ? "is" : "are");
}

}  // namespace lockstep::parallel
