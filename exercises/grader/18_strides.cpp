// Exercise 18: the address of every element, compared with that of the library's view.
#include <algorithm>
#include <array>

#include "harness.h"

namespace grader {
namespace {

using exercises::Sizes;
using exercises::View;

// The matrix (rows, columns) and the tensor (2, rows, columns) of which the views are made.
struct Variant {
  std::int64_t rows = 3, columns = 4;
};

Variant variant() {
  if (seed_of() == 0) return {};
  Dice dice(seed_of());
  const std::int64_t rows = 3 + 2 * dice.roll(4);  // odd
  return {.rows = rows, .columns = 4 + 2 * dice.roll(5)};
}

ls::Tensor memory(std::int64_t elements) {
  return ls::arange(0, static_cast<double>(elements), 1, {.dtype = ls::kFloat32});
}
ls::Tensor matrix() { return memory(variant().rows * variant().columns).view({variant().rows, variant().columns}); }
ls::Tensor three() {
  return memory(2 * variant().rows * variant().columns).view({2, variant().rows, variant().columns});
}

// The geometry of a tensor, each element of whose storage is its own address.
View view_of(const ls::Tensor& t) {
  const auto first = static_cast<std::int64_t>(*t.data<float>());
  return {.shape = Sizes(t.shape().begin(), t.shape().end()),
          .strides = Sizes(t.strides().begin(), t.strides().end()),
          .offset = first};
}

std::string list(const Sizes& sizes) { return ls::Shape(sizes).to_string(); }
std::string describe(const View& v) {
  return text("shape ", list(v.shape), ", strides ", list(v.strides), ", offset ", v.offset);
}

std::int64_t elements_of(const View& v) { return ls::Shape(v.shape).numel(); }

// The index of element number `element` in row-major order.
Sizes index_of(const View& v, std::int64_t element) {
  Sizes index(v.shape.size());
  for (std::size_t d = v.shape.size(); d-- > 0;) {
    index[d] = element % v.shape[d];
    element /= v.shape[d];
  }
  return index;
}

std::int64_t address_of(const View& v, std::int64_t element) {
  const Sizes index = index_of(v, element);
  std::int64_t address = v.offset;
  for (std::size_t d = 0; d < index.size(); ++d) address += index[d] * v.strides[d];
  return address;
}

std::string meaning_of(const View& have, const View& want, const View& x) {
  const bool same_strides = have.strides == want.strides;
  if (same_strides && have.offset != want.offset)
    return text("The offset is ", have.offset, ", expected ", want.offset);
  for (std::size_t d = 0; d < want.shape.size(); ++d)
    if (want.strides[d] == 0 && want.shape[d] > 1 && have.strides[d] != 0)
      return text("The indices of dimension ", d, " share one address: which stride does that need?");
  if (have.strides == x.strides) return "These are the strides of x: they change with the shape";
  Sizes row_major(want.shape.size(), 1);
  for (std::size_t d = row_major.size() - 1; d-- > 0;) row_major[d] = row_major[d + 1] * want.shape[d + 1];
  if (have.strides == row_major)
    return text("These are the strides of a contiguous tensor, but x has ", list(x.strides));
  return text("x has strides ", list(x.strides));
}

void require_view(const std::string& what, const View& have, const ls::Tensor& tensor, const View& x) {
  const View want = view_of(tensor);
  require(have.shape == want.shape, what, ": the shape is ", list(have.shape), ", expected ", list(want.shape));
  require(have.strides.size() == have.shape.size(), what, ": there are ", have.strides.size(), " strides for ",
          have.shape.size(), " dimensions");
  for (std::int64_t i = 0; i < elements_of(want); ++i)
    require(address_of(have, i) == address_of(want, i), what, ": element ", list(index_of(want, i)),
            " has the address ", address_of(have, i), ", expected ", address_of(want, i), ". ",
            meaning_of(have, want, x));
}

std::string check_transpose() {
  const ls::Tensor m = matrix(), t = three(), s = t.transpose(0, 2);
  require_view("the matrix, dimensions 0 and 1", exercises::transpose(view_of(m), 0, 1), m.t(), view_of(m));
  require_view("the tensor, dimensions 0 and 2", exercises::transpose(view_of(t), 0, 2), s, view_of(t));
  require_view("its transpose, dimensions 1 and 2", exercises::transpose(view_of(s), 1, 2), s.transpose(1, 2),
               view_of(s));
  return describe(view_of(m.t()));
}

std::string check_slice() {
  const auto check = [](const std::string& of, const ls::Tensor& t, std::size_t dim, std::int64_t begin,
                        std::int64_t step) {
    const std::int64_t end = t.size(static_cast<std::int64_t>(dim));
    require_view(text("indices ", begin, " to ", end - 1, " in steps of ", step, " of dimension ", dim, " of ", of),
                 exercises::slice(view_of(t), dim, begin, end, step),
                 t.slice(static_cast<std::int64_t>(dim), begin, end, step), view_of(t));
  };
  const ls::Tensor m = matrix(), columns = m.slice(1, 1, m.size(1), 2);
  check("the matrix", m, 1, 0, 2);
  check("the matrix", m, 0, 1, 1);
  check("the matrix", m, 0, 0, 2);  // of an odd number of rows
  check("every second column from column 1 on", columns, 1, 1, 1);
  check("every second column from column 1 on", columns, 0, 1, 2);
  return describe(view_of(columns));
}

std::string check_expand() {
  const auto check = [](const std::string& what, const ls::Tensor& t, const Sizes& shape) {
    require_view(text(what, " to ", list(shape)), exercises::expand(view_of(t), shape), t.expand(shape), view_of(t));
  };
  const ls::Tensor m = matrix();
  const std::int64_t rows = m.size(0), columns = m.size(1);
  check("row 1", m[1], {3, columns});
  check("column 2, of shape (rows, 1),", m.slice(1, 2, 3), {rows, 5});
  check("column 2, of shape (rows, 1),", m.slice(1, 2, 3), {2, rows, 5});
  check("the transpose", m.t(), {2, columns, rows});
  return describe(view_of(m[1].expand({3, columns})));
}

struct Reshape {
  std::string of;
  ls::Tensor x;
  Sizes shape;
};

std::vector<Reshape> reshapes_of_contiguous() {
  const auto [r, c] = variant();
  return {{"the matrix", matrix(), {r * c}},        {"the tensor", three(), {2 * r, c}},
          {"the tensor", three(), {2, r * c}},      {"the matrix", matrix(), {r, 2, c / 2}},
          {"row 1", matrix()[1], {1, c / 2, 1, 2}}, {"the tensor", three(), {c, 2, r}}};
}

// Reshapes that move nothing, of tensors that are not contiguous.
std::vector<Reshape> reshapes_that_are_views() {
  const auto [r, c] = variant();
  const ls::Tensor m = matrix(), t = three();
  return {{"the transpose of the matrix", m.t(), {2, c / 2, r}},
          {"every second column", m.slice(1, 0, c, 2), {r * c / 2}},
          {"every second row", m.slice(0, 0, r, 2), {(r + 1) / 2, c / 2, 2}},
          {"column 2", m.slice(1, 2, 3), {r}},
          {"row 1 three times", m[1].expand({3, c}), {3, 2, c / 2}},
          {"the tensor with its last dimension first", t.transpose(1, 2).transpose(0, 1), {c, 2 * r}}};
}

std::vector<Reshape> reshapes_that_move() {
  const auto [r, c] = variant();
  const ls::Tensor m = matrix(), t = three();
  return {{"the transpose of the matrix", m.t(), {r * c}},
          {"every second row", m.slice(0, 0, r, 2), {(r + 1) / 2 * c}},
          {"row 1 three times", m[1].expand({3, c}), {3 * c}},
          {"the first columns", m.slice(1, 0, c - 1), {r * (c - 1)}},
          {"the transpose of the matrix", m.t(), {c / 2, 2 * r}},
          {"the tensor with its last dimension first", t.transpose(1, 2).transpose(0, 1), {2 * c, r}}};
}

std::string check_views(const std::vector<Reshape>& cases) {
  for (const auto& [of, x, shape] : cases) {
    const std::string what = text(of, ", ", describe(view_of(x)), ", to ", list(shape));
    const std::optional<View> have = exercises::reshape(view_of(x), shape);
    require(have.has_value(), what, ": reshape returns nullopt, but there is a view, with strides ",
            x.view(shape).strides());
    require_view(what, *have, x.view(shape), view_of(x));
  }
  return text(cases.size(), " shapes");
}

std::string check_moves() {
  for (const auto& [of, x, shape] : reshapes_that_move()) {
    const std::string what = text(of, ", ", describe(view_of(x)), ", to ", list(shape));
    const std::optional<View> have = exercises::reshape(view_of(x), shape);
    if (!have) continue;
    require(have->strides.size() == shape.size(), what, ": there are ", have->strides.size(), " strides");
    View complete = *have;
    complete.shape = shape;
    for (std::int64_t i = 0; i < elements_of(complete); ++i)
      require(address_of(complete, i) == address_of(view_of(x), i), what, ": element ", i, " of x has the address ",
              address_of(view_of(x), i), ", in your view ", address_of(complete, i),
              ". No strides give all addresses: expected nullopt");
  }
  return text(reshapes_that_move().size(), " shapes need a copy");
}

}  // namespace

std::vector<Check> checks(const std::string&, const std::string&) {
  print_task(text("a matrix of shape ", matrix().shape(), ", a tensor of shape ", three().shape()));
  return {{"transpose", check_transpose},
          {"slice", check_slice},
          {"expand", check_expand},
          {"reshape: contiguous", [] { return check_views(reshapes_of_contiguous()); }},
          {"reshape: a view without a copy", [] { return check_views(reshapes_that_are_views()); }},
          {"reshape: needs a copy", check_moves}};
}

}  // namespace grader
