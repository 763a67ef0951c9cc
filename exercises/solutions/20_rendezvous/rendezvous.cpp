// The last rank that arrives, or the first whose time is over, sets the key "outcome", which compare_set sets only once.
// The value is "complete" or the missing ranks.
#include <sstream>

#include "adapters.h"

namespace exercises {
namespace {

std::string key_of(int rank) { return "address/" + std::to_string(rank); }

std::string missing_ranks(par::Store& store, int size) {
  std::string missing;
  for (int rank = 0; rank < size; ++rank)
    if (!store.check({key_of(rank)})) missing += std::to_string(rank) + " ";
  return missing.empty() ? "complete" : missing;
}

}  // namespace

std::vector<std::string> rendezvous(par::Store& store, int rank, int size, const std::string& address,
                                    std::chrono::milliseconds timeout) {
  store.set(key_of(rank), address);
  if (store.add("arrived", 1) == size) store.compare_set("outcome", "", "complete");
  std::string outcome;
  try {
    outcome = store.get("outcome", timeout);
  } catch (const ls::CommTimeout&) {
    outcome = store.compare_set("outcome", "", missing_ranks(store, size));
  }
  if (outcome != "complete") {
    std::istringstream words(outcome);
    std::vector<int> missing;
    for (int each = 0; words >> each;) missing.push_back(each);
    throw IncompleteGroup(missing);
  }
  std::vector<std::string> addresses;
  for (int other = 0; other < size; ++other) addresses.push_back(store.get(key_of(other)));
  return addresses;
}

}  // namespace exercises
