// Views of one storage: the same twelve elements, read by different shapes and strides.
#include <lockstep/lockstep.h>

#include <cstdio>

namespace ls = lockstep;

const ls::Tensor x = ls::arange(12, {.dtype = ls::kFloat32}).reshape({3, 4});

// Prints the offset of each element of a matrix in x's storage.
void draw(const char* name, const ls::Tensor& t) {
  std::printf("%s: shape %s, strides (%d, %d), %s\n", name, t.shape().to_string().c_str(),
              static_cast<int>(t.stride(0)), static_cast<int>(t.stride(1)),
              t.is_contiguous() ? "contiguous" : "not contiguous");
  for (std::int64_t row = 0; row < t.size(0); ++row) {
    for (std::int64_t column = 0; column < t.size(1); ++column) {
      const float* element = t.data<float>() + row * t.stride(0) + column * t.stride(1);
      std::printf("%4d", static_cast<int>(element - x.data<float>()));
    }
    std::printf("\n");
  }
}

int main() {
  draw("x", x);
  draw("x.t()", x.t());
  draw("x.slice(1, 0, 4, 2)", x.slice(1, 0, 4, 2));  // every second column
  draw("x[1].expand({3, 4})", x[1].expand({3, 4}));  // row 1, three times

  x.t()[3].fill_(-1);  // row 3 of the view is column 3 of x
  std::printf("after x.t()[3].fill_(-1), x is\n%s\n", x.to_string().c_str());
}
