// The slices that a thread computes with: where this rank's columns or heads lie among those of all ranks. Not installed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep::random {

// A region goes from the linear layers whose outputs are cut to the one whose inputs are. Between them, an activation has
// this rank's columns: a row of it is, for each of `parts` equal parts of the whole row, one run of `run` columns.
struct SliceContext {
  struct Columns {
    std::int64_t run, parts;
    std::int64_t sharing = 0;  // not 0: the slices on this rank, each of which shares its columns with others
  };
  SliceContext() = default;
  SliceContext(const SliceContext&) = default;
  SliceContext& operator=(const SliceContext&) = default;
  virtual ~SliceContext() = default;

  bool is_open() const { return !columns.empty(); }
  // The run of a row with `width` columns, of all parts or of one; 0: no layer of the open region has such outputs.
  std::int64_t run_of(std::int64_t width) const {
    for (const Columns& each : columns) {
      if (width == each.run * each.parts || width == each.run) return each.run;
    }
    return 0;
  }

  int ranks = 1, rank = 0;
  std::vector<Columns> columns;  // of the layers that have opened the region; empty: none is open
  std::string opened_by;         // the last of them
  bool has_groups = false;       // the heads of attention are (heads of k, heads of a group)
  // Outside of the region, with sequence parallelism: this rank's positions, dimension -2 of activations. 0: all.
  std::int64_t positions = 0;
};

// The calling thread's; null: nothing is cut.
SliceContext* slice_context();

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
