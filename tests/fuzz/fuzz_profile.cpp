// Reads any text: the result is a step that can be predicted and drawn, in a page of bounded size, or an error with a
// short text.
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

#include "lockstep/base/error.h"
#include "tests/fuzz/watched_input.h"
#include "tools/explain_scaling.h"

namespace ls = lockstep;
namespace par = lockstep::parallel;

namespace {

void draw(const par::StepProfile& profile, const par::Link& link, bool fixed_batch) {
  Scaling scaling{.question = {.profile = "fuzz", .link = "fuzz"}, .link = link, .profile = profile, .steps = {}};
  scaling.question.fixed_batch = fixed_batch;
  for (const int ranks : {1, 2, 5})
    scaling.steps.push_back(par::predict_step(profile, {.link = link, .fixed_batch = fixed_batch}, ranks));
  if (as_text(scaling).size() > 10'000 || as_html(scaling).size() > 40'000) std::abort();
  if (as_html(scaling).find("nan") != std::string::npos) std::abort();
}

}  // namespace

void fuzz_input(const std::uint8_t* data, std::size_t size) {
  try {
    const par::StepProfile profile = parse_profile(std::as_bytes(std::span(data, size)), "fuzz");
    draw(profile, {.latency = 3e-5, .bandwidth = 1.25e9}, false);
    draw(profile, {.latency = 0, .bandwidth = 1e18}, true);
  } catch (const ls::Error& error) {  // InvalidArgument: numbers that are valid one by one, but not together
    if (std::string(error.what()).size() > 400) std::abort();
  }
}
