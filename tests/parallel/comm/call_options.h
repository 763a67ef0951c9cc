// The effects of CallOptions on every operation, for any backend: phase and name in traces, traffic counters and errors.
#pragma once

#include <array>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/trace.h"
#include "tests/support/groups.h"

namespace call_options {

using namespace ls::parallel;

struct NamedCall {
  std::string kind;  // in traces and errors
  std::function<void(const Group&, const CallOptions&)> run;
};

// Every operation of a group of two ranks, large enough that a send waits for its recv.
inline std::vector<NamedCall> all_calls() {
  constexpr std::int64_t kCount = 100'000;
  const auto parts = [](const Group& group) {
    return std::vector<ls::Tensor>(static_cast<std::size_t>(group->rank() == 0 ? 2 : 0), ls::ones({kCount}));
  };
  const auto one = [] { return ls::ones({kCount}); };
  const auto two = [] { return ls::ones({2, kCount}); };
  return {
      {"broadcast", [=](const Group& g, const CallOptions& o) { g->broadcast(one(), 0, o)->wait(); }},
      {"all_reduce", [=](const Group& g, const CallOptions& o) { g->all_reduce(one(), ReduceOp::kSum, o)->wait(); }},
      {"all_reduce", [=](const Group& g, const CallOptions& o) { g->all_reduce_scaled(one(), 0.5, o)->wait(); }},
      {"reduce", [=](const Group& g, const CallOptions& o) { g->reduce(one(), 0, ReduceOp::kSum, o)->wait(); }},
      {"all_gather", [=](const Group& g, const CallOptions& o) { g->all_gather(two(), one(), o)->wait(); }},
      {"gather", [=](const Group& g, const CallOptions& o) { g->gather(parts(g), one(), 0, o)->wait(); }},
      {"scatter", [=](const Group& g, const CallOptions& o) { g->scatter(one(), parts(g), 0, o)->wait(); }},
      {"reduce_scatter",
       [=](const Group& g, const CallOptions& o) { g->reduce_scatter(one(), two(), ReduceOp::kMax, o)->wait(); }},
      {"reduce_scatter",
       [=](const Group& g, const CallOptions& o) { g->reduce_scatter_scaled(one(), two(), 0.5, o)->wait(); }},
      {"all_to_all", [=](const Group& g, const CallOptions& o) { g->all_to_all(two(), two(), {}, o)->wait(); }},
      {"barrier", [](const Group& g, const CallOptions& o) { g->barrier(o); }},
      {"all_reduce", [](const Group& g, const CallOptions& o) { g->mean(1, o); }},
      // Rank 0 sends 7 rows to rank 1; the ranks first exchange these numbers.
      {"all_gather",
       [](const Group& g, const CallOptions& o) {
         const std::int64_t sent = g->rank() == 0 ? 7 : 0;
         g->all_to_all(ls::ones({7 - sent}), ls::ones({sent}), {.out_splits = {7 - sent, 0}, .in_splits = {0, sent}}, o)
             ->wait();
       }},
      {"send",
       [=](const Group& g, const CallOptions& o) {
         if (g->rank() == 0) g->send(one(), 1, 3, o)->wait();
         if (g->rank() == 1) g->recv(one(), 0, 3, {.name = "another"})->wait();
       }},
      {"recv",
       [=](const Group& g, const CallOptions& o) {
         if (g->rank() == 0) g->recv(one(), 1, 3, o)->wait();
         if (g->rank() == 1) g->send(one(), 0, 3, {.name = "another"})->wait();
       }},
  };
}

constexpr CallOptions kOptions{.phase = Phase::kBuffers, .name = "layer 3", .id = 5};

// Runs every operation on both ranks, whose traffic must have the phase.
inline void run_all(const Group& group) {
  group->traffic().clear();
  for (const NamedCall& call : all_calls()) call.run(group, kOptions);
  group->send(ls::ones({4}), 1 - group->rank(), 0, {.phase = Phase::kInputs});
  group->recv(ls::ones({4}), 1 - group->rank(), 0, {.phase = Phase::kInputs})->wait();
  group->barrier();
  const std::int64_t others = group->rank() == 1 ? 400'000 : 0;  // of the send with another name, which has no phase
  CHECK(group->traffic().bytes(Phase::kOther) == others);
  CHECK(group->traffic().bytes(Phase::kInputs) == 16);
  CHECK(group->traffic().bytes(Phase::kBuffers) > 3'000'000);
  CHECK(group->traffic().bytes(Phase::kBuffers) == group->traffic().bytes() - 16 - others);
}

// Checks the events that run_all writes on one rank.
inline void check_events(const ls::Trace& trace, int rank) {
  std::vector<std::string> names;
  for (const ls::TraceEvent& event : trace.events) {
    if (event.kind != ls::TraceKind::kCollective || event.labels.from != rank) continue;
    if (!event.name.ends_with(" layer 3")) continue;
    names.push_back(event.name);
    CHECK_MESSAGE(event.labels.phase == static_cast<int>(Phase::kBuffers), event.name);
  }
  std::vector<std::string> expected;
  for (const NamedCall& call : all_calls()) {
    const bool is_message = call.kind == "send" || call.kind == "recv";
    if (!is_message || rank == 0) expected.push_back(call.kind + " layer 3");
  }
  expected.push_back("all_to_all layer 3");  // after the all_gather of uneven parts
  std::ranges::sort(names);
  std::ranges::sort(expected);
  CHECK(names == expected);
}

// Rank 1 starts no operation. Rank 0 starts each one in a group of its own; each error must have the phase and the name.
inline void check_timeouts(const std::string& backend) {
  const NumberPipe done;
  const auto fn = [&](const Group& group) {
    const std::vector<NamedCall> calls = all_calls();
    std::vector<Group> groups;
    for (std::size_t c = 0; c < calls.size(); ++c) groups.push_back(group->split(0, group->rank()));
    if (group->rank() == 1) {
      done.receive();
      return;
    }
    std::vector<std::string> errors(calls.size());
    {
      std::vector<std::jthread> threads;
      for (std::size_t c = 0; c < calls.size(); ++c) {
        threads.emplace_back(
            [&, c] { errors[c] = error_of<ls::CommTimeout>([&] { calls[c].run(groups[c], kOptions); }); });
      }
    }
    done.send(1);
    for (std::size_t c = 0; c < calls.size(); ++c) {
      CHECK_MESSAGE(errors[c].starts_with(calls[c].kind + " #"), errors[c]);
      CHECK_MESSAGE(contains(errors[c], "buffers) for \"layer 3\": "), errors[c]);
      CHECK_MESSAGE(contains(errors[c], "rank 1 "), errors[c]);
    }
  };
  with_group(backend, 2, fn, {.timeout = std::chrono::seconds(3)});
}

// Names that differ between the ranks of a collective are an error; phases that differ are not.
inline void check_other_names(const std::string& backend) {
  const auto check = [&](const std::function<void(const Group&, const CallOptions&)>& run) {
    with_group(backend, 2, [&](const Group& group) {
      const bool first = group->rank() == 0;
      run(group, {.phase = first ? Phase::kInputs : Phase::kOutputs, .name = "layer 1"});
      const std::string error = error_of<ls::CommError>([&] { run(group, {.name = first ? "layer 1" : "layer 2"}); });
      const bool names_both = contains(error, "for \"layer 1\"") && contains(error, "for \"layer 2\"");
      CHECK_MESSAGE((names_both || contains(error, "another rank reports")), error);
    });
  };
  check([](const Group& group, const CallOptions& options) { group->broadcast(ls::ones({3}), 0, options)->wait(); });
  check([](const Group& group, const CallOptions& options) { group->barrier(options); });
}

// Returns the global ranks of the group's members, by rank.
inline std::vector<int> global_ranks(const Group& group) {
  std::vector<int> ranks;
  for (int r = 0; r < group->size(); ++r) ranks.push_back(group->global_rank(r));
  return ranks;
}

// Errors of a subgroup name the rank in the group and, where it differs, the global rank. Of 6 ranks, 5, 3 and 1 form a
// group in this order. Its last rank, 1, does not arrive.
inline void check_ranks_in_errors(const std::string& backend) {
  const NumberPipe done;
  const auto fn = [&](const Group& group) {
    const Group part = group->split(group->rank() % 2, -group->rank());
    group->barrier();  // rank 0, which leaves now, holds the store
    if (group->rank() % 2 == 0) return;
    if (group->rank() == 1) {
      done.receive();
      done.receive();
      return;
    }
    const std::string error = error_of<ls::CommTimeout>([&] { part->all_reduce(ls::ones({4}))->wait(); });
    done.send(1);
    const bool own = contains(error, group->rank() == 5 ? "on rank 0 (global rank 5) (f32, 4 elements): "
                                                        : "on rank 1 (global rank 3) (f32, 4 elements): ");
    CHECK_MESSAGE(own, error);
    const bool late = contains(error, "rank 2 (global rank 1) has not arrived") ||
                      contains(error, "rank 2 (global rank 1) did not arrive in time");
    CHECK_MESSAGE(late, error);
  };
  with_group(backend, 6, fn, {.timeout = std::chrono::seconds(3)});
  with_group(backend, 3, [](const Group& group) {
    const Group part = group->split(group->rank() == 0 ? -1 : 0);
    group->barrier();
    if (group->rank() == 1) part->send(ls::ones({4}), 1, 7)->wait();
    if (group->rank() != 2) return;
    const std::string error = error_of<ls::CommError>([&] { part->recv(ls::ones({4}), 0, 8)->wait(); });
    CHECK_MESSAGE(contains(error, "recv #0 from rank 0 (global rank 1) on rank 1 (global rank 2) (f32, 4 elements)"),
                  error);
  });
}

}  // namespace call_options
