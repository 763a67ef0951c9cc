#include "harness.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <mutex>
#include <optional>
#include <span>
#include <thread>

namespace grader {
namespace {

constexpr auto kTimeout = std::chrono::seconds(5);  // of every operation; an operation that takes longer hangs
constexpr std::size_t kLargestFile = 1 << 16;
std::mutex links_mutex;

// Orders exceptions by how much they say about the cause: the lowest first.
int order_of(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const exercises::NotDone&) {
    return 0;
  } catch (const Missing&) {
    return 1;
  } catch (const ls::CommTimeout&) {
    return 3;
  } catch (const ls::CommError&) {
    return 4;
  } catch (...) {
    return 2;
  }
}

std::string one_line(std::string text) {
  for (char& c : text) c = c == '\n' || c == '\t' ? ' ' : c;
  return text.empty() ? "-" : text;
}

void print(const char* state, const std::string& name, const std::string& text) {
  // The student's code may print, too, and leave a line open.
  std::printf("\n%s\t%s\t%s\n", state, one_line(name).c_str(), one_line(text).c_str());
  std::fflush(stdout);  // the next check may crash
}

void run(const Check& check) {
  print("run", check.name, "");
  try {
    print("pass", check.name, check.run());
  } catch (const exercises::NotDone& error) {
    print("todo", check.name, error.what());
  } catch (const std::exception& error) {
    print("miss", check.name, error.what());
  }
}

std::optional<double> parse_number(const std::string& text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(number)) return std::nullopt;
  return number;
}

// Reads a flat JSON object: strings without escapes, numbers and null.
class JsonObject {
 public:
  explicit JsonObject(const std::string& text) : text_(text) {}

  std::map<std::string, std::string> read() {
    std::map<std::string, std::string> values;
    expect('{');
    while (next() != '}') {
      if (!values.empty()) expect(',');
      const std::string key = string();
      expect(':');
      const bool is_new = values.emplace(key.substr(1, key.size() - 2), next() == '"' ? string() : word()).second;
      check(is_new, text("the key ", key, " occurs twice"));
    }
    expect('}');
    check(next() == '\0', "expected nothing after the closing brace");
    return values;
  }

 private:
  void check(bool condition, const std::string& otherwise) const {
    const auto line = 1 + std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(at_), '\n');
    require(condition, "the answers are not JSON, line ", line, ": ", otherwise);
  }
  // The next character that is not white space; '\0' at the end.
  char next() {
    at_ = std::min(text_.find_first_not_of(" \t\r\n", at_), text_.size());
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  void expect(char wanted) {
    const char found = next();
    check(found == wanted, text("expected ", wanted, ", found ", found == '\0' ? "the end" : std::string(1, found)));
    ++at_;
  }
  std::string string() {
    if (next() != '"') expect('"');
    const std::size_t quote = at_, end = text_.find_first_of("\"\n", quote + 1);
    check(end != std::string::npos && text_[end] == '"', "expected a closing quote");
    at_ = end + 1;
    return text_.substr(quote, at_ - quote);
  }
  std::string word() {
    const std::size_t begin = at_;
    at_ = std::min(text_.find_first_of(" \t\r\n,:{}[]\"", at_), text_.size());
    const std::string found = text_.substr(begin, at_ - begin);
    check(found == "null" || parse_number(found),
          text("expected a number, a string in quotes or null, found ", found.substr(0, 40)));
    return found;
  }

  const std::string& text_;
  std::size_t at_ = 0;
};

}  // namespace

std::uint64_t seed_of(const Answers* answers) {
  const char* const demanded = std::getenv("LOCKSTEP_EXERCISES_SEED");  // set by grade.sh --seed
  const double given = demanded ? std::atof(demanded) : answers ? answers->number("seed") : 0;
  require(given >= 0 && given < 1e15 && given == std::floor(given), "\"seed\" is ", given,
          ", expected a whole number from 0 to 1e15");
  return static_cast<std::uint64_t>(given);
}

void print_task(const std::string& task) { print("task", "this variant", task); }

int Dice::roll(int sides) {
  std::uint64_t z = state_ += 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return static_cast<int>((z ^ (z >> 31)) % static_cast<std::uint64_t>(sides));
}

void run_ranks(int size, const std::function<void(const Group& group)>& fn, const par::InitOptions& options) {
  par::InitOptions common = options;
  if (common.backend == "shm") common.backend = "local";
  common.world_size = size;
  common.timeout = kTimeout;
  common.store = std::make_shared<par::InProcessStore>();
  std::vector<std::exception_ptr> thrown(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        par::InitOptions own = common;
        own.rank = rank;
        fn(par::init_process_group(own));
      } catch (...) {
        thrown[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::exception_ptr first;
  for (const std::exception_ptr& each : thrown) {
    if (each && (!first || order_of(each) < order_of(first))) first = each;
  }
  if (first) std::rethrow_exception(first);
}

void run_simulated(int size, const par::Link& link,
                   const std::function<void(const Group& group, par::Simulation& clock)>& fn,
                   par::Algorithm algorithm) {
  const auto store = std::make_shared<par::InProcessStore>();
  run_ranks(size, [&](const Group& local) {
    const auto clock = std::make_shared<par::Simulation>(link);
    const Group group =
        par::init_process_group({.backend = "sim",
                                 .timeout = kTimeout,
                                 .world_size = size,
                                 .rank = local->rank(),
                                 .store = store,
                                 .backend_options = par::SimOptions{.algorithm = algorithm, .simulation = clock}});
    fn(group, *clock);
  });
}

ls::Trace trace_of(const std::function<void()>& fn) {
  ls::start_trace();
  try {
    fn();
  } catch (...) {
    ls::stop_trace();
    throw;
  }
  return ls::stop_trace();
}

std::vector<ls::TraceEvent> collectives(const ls::Trace& trace, int rank, const std::string& name) {
  std::vector<ls::TraceEvent> found;
  for (const ls::TraceEvent& event : trace.events)
    if (event.kind == ls::TraceKind::kCollective && event.labels.from == rank && event.name == name)
      found.push_back(event);
  return found;
}

bool begins_with(const ls::Tensor& have, const ls::Tensor& want, std::int64_t begin) {
  const auto left = std::as_bytes(have.span<float>()), right = std::as_bytes(want.span<float>()).subspan(4 * begin);
  const std::size_t size = std::min(left.size(), right.size());
  return size > 0 && std::ranges::equal(left.first(size), right.first(size));
}

void set_parameters(const ls::nn::Module& model) {
  const ls::NoGradGuard no_grad;
  double shift = 0;
  for (const ls::nn::Parameter& parameter : model.parameters()) {
    const ls::Tensor ramp = ls::arange(0, static_cast<double>(parameter->numel()), 1, {.dtype = ls::kFloat32});
    parameter->copy_((ls::sin(ramp * 1.7 + (shift += 0.3)) * 0.3).reshape(parameter->shape()));
  }
}

void add_links(Links& links, const Group& group) {
  const std::lock_guard lock(links_mutex);
  for (const par::LinkTraffic& link : group->traffic().links()) {
    Sent& sent = links[{link.from, link.to}];
    sent.bytes += link.bytes;
    sent.messages += link.transfers;
  }
}

void add_step(Links& links, const par::TrafficStats& traffic) {
  const std::lock_guard lock(links_mutex);
  for (const par::LinkTraffic& link : traffic.step_links()) {
    Sent& sent = links[{link.from, link.to}];
    sent.bytes += link.bytes;
    sent.messages += link.transfers;
  }
}

Sent sent_by(const Links& links, int rank) {
  Sent sum;
  for (const auto& [ends, sent] : links) {
    if (ends.first != rank) continue;
    sum.bytes += sent.bytes;
    sum.messages += sent.messages;
  }
  return sum;
}

Answers::Answers(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw ls::IoError(path + ": cannot be opened");
  std::string text(kLargestFile, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  values_ = JsonObject(text).read();
}

const std::string& Answers::value(const std::string& key) const {
  const auto found = values_.find(key);
  require(found != values_.end(), "there is no \"", key, "\" in the answers");
  if (found->second == "null") exercises::not_done();
  return found->second;
}

double Answers::number(const std::string& key) const {
  const std::string& found = value(key);
  const std::optional<double> number = parse_number(found);
  require(number.has_value(), "\"", key, "\" is ", found.substr(0, 40), ", expected a number");
  return *number;
}

std::string Answers::word(const std::string& key) const {
  const std::string& found = value(key);
  require(found.front() == '"', "\"", key, "\" is ", found.substr(0, 40), ", expected a string in quotes");
  return found.substr(1, found.size() - 2);
}

std::string require_near(double have, double want, double tolerance, const std::string& unit) {
  require(std::abs(have - want) <= tolerance * std::abs(want), "the answer is ", have, unit, ", the run gave another ",
          have < want ? "(more)" : "(less)");
  return text("the answer is ", have, unit, ", the run gave ", want, unit);
}

}  // namespace grader

// grade_N [answers] [folder]: prints the number of checks, then a line for each. Exit code 3: the grading does not work.
int main(int argc, char** argv) {
  try {
    const auto all = grader::checks(argc > 1 ? argv[1] : "", argc > 2 ? argv[2] : ".");
    std::printf("total\t%zu\n", all.size());
    for (const grader::Check& check : all) grader::run(check);
    return 0;
  } catch (const grader::Missing& error) {
    std::printf("total\t1\nmiss\tanswers\t%s\n", error.what());  // so that nothing can be graded
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "the grading does not work: %s\n", error.what());
    return 3;
  }
}
