// A reshape merges dimensions of x into runs, whose elements have one stride, and splits each run into new dimensions.
#include "adapters.h"

namespace exercises {

View transpose(const View& x, std::size_t a, std::size_t b) {
  View view = x;
  std::swap(view.shape[a], view.shape[b]);
  std::swap(view.strides[a], view.strides[b]);
  return view;
}

View slice(const View& x, std::size_t dim, std::int64_t begin, std::int64_t end, std::int64_t step) {
  View view = x;
  view.shape[dim] = (end - begin + step - 1) / step;
  view.strides[dim] *= step;
  view.offset += begin * x.strides[dim];
  return view;
}

View expand(const View& x, const Sizes& shape) {
  View view{.shape = shape, .strides = Sizes(shape.size(), 0), .offset = x.offset};
  const std::size_t front = shape.size() - x.shape.size();
  for (std::size_t d = 0; d < x.shape.size(); ++d)
    if (x.shape[d] == shape[front + d]) view.strides[front + d] = x.strides[d];
  return view;
}

std::optional<View> reshape(const View& x, const Sizes& shape) {
  struct Run {
    std::int64_t size, stride;  // elements; of the last dimension
  };
  std::vector<Run> runs;
  for (std::size_t d = 0; d < x.shape.size(); ++d) {
    if (x.shape[d] == 1) continue;
    if (!runs.empty() && runs.back().stride == x.shape[d] * x.strides[d])
      runs.back() = {runs.back().size * x.shape[d], x.strides[d]};
    else
      runs.push_back({x.shape[d], x.strides[d]});
  }
  View view{.shape = shape, .strides = Sizes(shape.size(), 0), .offset = x.offset};
  std::int64_t covered = 1;  // elements of the last run that new dimensions have
  for (std::size_t d = shape.size(); d-- > 0;) {
    if (shape[d] == 1) continue;
    view.strides[d] = covered * runs.back().stride;
    covered *= shape[d];
    if (runs.back().size % covered != 0) return std::nullopt;
    if (covered < runs.back().size) continue;
    runs.pop_back();
    covered = 1;
  }
  return view;
}

}  // namespace exercises
