#include <algorithm>

#include "lockstep/parallel/comm/silent_ranks_internal.h"

namespace lockstep::parallel {

std::vector<int> find_silent(const std::vector<int>& late, int first, int own,
                             FunctionRef<std::vector<int>(const std::vector<int>& ranks)> ask) {
  const std::vector<int> answers = ask(late);
  std::vector<int> silent;
  for (std::size_t i = 0; i < late.size(); ++i) {
    if (answers[i] == kNoAnswer) silent.push_back(late[i]);
  }
  if (!silent.empty() || late.empty()) return silent;
  std::vector<int> chain{first};
  int next = answers[static_cast<std::size_t>(std::ranges::find(late, first) - late.begin())];
  for (; next != kNoAnswer; next = ask({next}).front()) {
    if (next == kNobody || next == own || std::ranges::find(chain, next) != chain.end()) return {};
    chain.push_back(next);
  }
  return {chain.back()};
}

std::string text_of_silent(const std::vector<int>& silent, const std::vector<int>& late,
                           FunctionRef<std::string(int rank)> name_of, FunctionRef<const char*(int rank)> delay_of) {
  std::string text;
  for (const int rank : silent) {
    const bool is_late = std::ranges::find(late, rank) != late.end();
    text += (text.empty() ? "" : ", ") + name_of(rank) + " " + (is_late ? delay_of(rank) : "does not answer");
  }
  return text;
}

}  // namespace lockstep::parallel
