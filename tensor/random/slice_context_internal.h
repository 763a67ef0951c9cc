// The slices that a thread computes with: where this rank's columns or heads lie among those of all ranks. Not installed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/ref.h"
#include "lockstep/tensor/memory/storage.h"
#include "lockstep/tensor/shape.h"

namespace lockstep::random {

// A rank's part of a tensor of all ranks, as rows of `ranks` runs of `run` elements: one run of each row.
struct Share {
  std::int64_t run = 0;  // 0: this rank has all
  std::int64_t ranks = 1, rank = 0;
};

// A region goes from the linear layers whose outputs are cut to the one whose inputs are. Between them, an activation has
// this rank's columns: a row of it is, for each of `parts` equal parts of the whole row, one run of `run` columns.
struct SliceContext {
  struct Columns {
    std::int64_t run, parts;
    std::int64_t sharing = 0;  // not 0: the slices on this rank, each of which shares its columns with others
    // The memory of the outputs, only to tell views of them from copies. Held, so that no copy gets the same one.
    Ref<Storage> storage{};
  };
  SliceContext() = default;
  SliceContext(const SliceContext&) = default;
  SliceContext& operator=(const SliceContext&) = default;
  virtual ~SliceContext() = default;
  // A context in the same state, which shares nothing with this one: for a function that is repeated later.
  virtual std::shared_ptr<SliceContext> fresh() const { return std::make_shared<SliceContext>(*this); }
  // This context goes on in the state of the other one.
  void continue_from(const SliceContext& other) {
    columns = other.columns;
    opened_by = other.opened_by;
    has_groups = other.has_groups;
    positions = other.positions;
  }

  bool is_open() const { return !columns.empty(); }
  // The run of a row with `width` columns, of all parts or of one; 0: no layer of the open region has such
  // outputs, or several have that cut them differently.
  std::int64_t run_of(std::int64_t width) const {
    std::int64_t found = 0;
    for (const Columns& each : columns) {
      if (width != each.run * each.parts && width != each.run) continue;
      if (found != 0 && found != each.run) return 0;
      found = each.run;
    }
    return found;
  }

  // The share that an activation of this shape is. None: a region is open, and the shape has not this rank's columns.
  std::optional<Share> share_of(const Shape& shape) const {
    const std::int64_t width = shape.dim() > 0 ? shape[shape.size() - 1] : 0;
    if (is_open()) {
      const std::int64_t run = run_of(width);
      return run > 0 ? std::optional(Share{.run = run, .ranks = ranks, .rank = rank}) : std::nullopt;
    }
    const bool has_positions = positions > 0 && shape.dim() >= 2 && shape[shape.size() - 2] == positions;
    return has_positions ? Share{.run = positions * width, .ranks = ranks, .rank = rank} : Share{};
  }

  // Whether a layer of the open region has a run of this many columns.
  bool has_run(std::int64_t width) const {
    return std::ranges::any_of(columns, [width](const Columns& each) { return each.run == width; });
  }

  int ranks = 1, rank = 0;
  std::vector<Columns> columns;  // of the layers that have opened the region; empty: none is open
  std::string opened_by;         // the last of them
  bool has_groups = false;       // the heads of attention are (heads of k, heads of a group)
  // Outside of the region, with sequence parallelism: this rank's positions, dimension -2 of activations. 0: all.
  std::int64_t positions = 0;
  bool is_in_slice = false;  // a module runs once for each slice, and must neither draw nor recompute
};

// The calling thread's; null: nothing is cut.
SliceContext* slice_context();

// Throws InvalidArgument in a module that runs once for each slice: `op` would draw once for each of them. `fix` says what
// to do instead.
void refuse_in_slice(const char* op, const char* fix = "draw them outside of the module");

// Sets the calling thread's context while it exists.
class SliceContextGuard {
 public:
  explicit SliceContextGuard(SliceContext* context);
  ~SliceContextGuard();
  SliceContextGuard(const SliceContextGuard&) = delete;
  SliceContextGuard& operator=(const SliceContextGuard&) = delete;

 private:
  SliceContext* previous_;
};

}  // namespace lockstep::random
