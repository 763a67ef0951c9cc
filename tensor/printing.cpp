// Prints as PyTorch does: elements aligned in columns, four digits, scientific notation for a wide range, long tensors
// summarised.
#include <algorithm>
#include <cmath>

#include "lockstep/base/check_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep {

namespace {

constexpr std::int64_t kSummarizeFrom = 1000;  // elements; longer tensors show their edges
constexpr std::int64_t kEdge = 3;
constexpr int kLineWidth = 80;
constexpr int kIndent = 7;  // of "tensor("
constexpr int kDigits = 4;

// The elements that are printed, as f64 (exact for every dtype but large i64, which have their own code path).
void collect(const Tensor& x, bool summarize, std::vector<Scalar>& out) {
  if (x.dim() == 0) {
    out.push_back(x.item());
    return;
  }
  const std::int64_t n = x.shape()[0];
  for (std::int64_t i = 0; i < n; ++i) {
    if (summarize && n > 2 * kEdge && i == kEdge) i = n - kEdge;
    collect(raw::select(x, 0, i), summarize, out);
  }
}

// The number format of one tensor, chosen from the printed elements.
class Format {
 public:
  Format(const Tensor& x, const std::vector<Scalar>& values)
      : floating_(x.is_floating_point()), bool_(x.dtype() == kBool) {
    if (floating_) choose(values);
    for (const Scalar& value : values) {  // as PyTorch, which ignores floating zeros, NaN and infinities in the width
      const double v = value.to_double();
      if (!floating_ || (std::isfinite(v) && v != 0)) width_ = std::max(width_, static_cast<int>(write(value).size()));
    }
  }

  std::string operator()(const Scalar& value) const { return fmt::format("{:>{}}", write(value), width_); }
  int width() const { return width_; }

 private:
  // PyTorch's rules: integers as "1."; scientific if the largest is over 1e8, or 1000 times the smallest, or the
  // smallest under 1e-4.
  void choose(const std::vector<Scalar>& values) {
    double low = INFINITY, high = 0;
    bool whole = true;
    for (const Scalar& value : values) {
      const double v = std::abs(value.to_double());
      if (!std::isfinite(v) || v == 0) continue;
      low = std::min(low, v);
      high = std::max(high, v);
      whole = whole && v == std::ceil(v);
    }
    if (high == 0) return;
    whole_ = whole;
    scientific_ = whole ? high / low > 1000 || high > 1e8 : high / low > 1000 || high > 1e8 || low < 1e-4;
  }

  std::string write(const Scalar& value) const {
    if (bool_) return value.to_double() != 0 ? "True" : "False";
    if (!floating_) return fmt::format("{}", value.to_int64());
    const double v = value.to_double();
    if (std::isnan(v)) return "nan";
    if (std::isinf(v)) return v > 0 ? "inf" : "-inf";
    if (scientific_) return fmt::format("{:.{}e}", v, kDigits);
    if (whole_) return fmt::format("{:.0f}.", v);
    return fmt::format("{:.{}f}", v, kDigits);
  }

  bool floating_, bool_, whole_ = true, scientific_ = false;
  int width_ = 0;
};

// Writes the elements that collect() found, in brackets for each dimension.
class ElementWriter {
 public:
  ElementWriter(const Shape& shape, const Format& format, bool summarize, const std::vector<Scalar>& values)
      : shape_(shape), format_(format), summarize_(summarize), next_(values.begin()) {}

  // The next block, over dimension `dim` and those after it.
  std::string block(int dim, int indent) {
    if (dim == shape_.dim()) return format_(*next_++);
    const int below = shape_.dim() - dim - 1;
    const std::int64_t n = shape_[static_cast<std::size_t>(dim)];
    const std::int64_t in_row = std::max((kLineWidth - indent) / (format_.width() + 2), 1);
    const std::int64_t per_line = below == 0 ? in_row : 1;
    const std::string line_end = "," + std::string(static_cast<std::size_t>(std::max(below, 1)), '\n') +
                                 std::string(static_cast<std::size_t>(indent + 1), ' ');
    std::string text = "[";
    for (std::int64_t i = 0, written = 0; i < n; ++i, ++written) {
      if (written > 0) text += written % per_line == 0 ? line_end : ", ";
      if (summarize_ && n > 2 * kEdge && i == kEdge) {
        text += below == 0 ? " ..." : "...";
        i = n - kEdge - 1;
      } else {
        text += block(dim + 1, indent + 1);
      }
    }
    return text + "]";
  }

 private:
  const Shape& shape_;
  const Format& format_;
  bool summarize_;
  std::vector<Scalar>::const_iterator next_;
};

// PyTorch's names of dtypes without the prefix "torch.", printed if not the default dtype.
constexpr const char* kTorchNames[kDTypeCount] = {"bool",    "uint8",    "int32",   "int64",
                                                  "float16", "bfloat16", "float32", "float64"};

}  // namespace

std::string raw::to_string(const Tensor& x, const std::string& suffix) {
  if (!x.defined()) return "tensor(undefined)";
  const Tensor host = to(alias(x), Device());
  std::string text = "tensor([]";
  if (x.numel() > 0) {
    std::vector<Scalar> values;
    const bool summarize = x.numel() > kSummarizeFrom;
    collect(host, summarize, values);
    const Format format(host, values);
    text = "tensor(" + ElementWriter(x.shape(), format, summarize, values).block(0, kIndent);
  }
  // A fact that the last line has no room for begins a new one. PyTorch's dtypes are longer by their prefix.
  std::size_t column = text.size() - (text.rfind('\n') + 1) + 2;
  const auto add = [&](const std::string& fact, std::size_t prefix = 0) {
    const std::size_t width = fact.size() + prefix;
    const bool fits = column + width + 2 <= kLineWidth;
    text += (fits ? ", " : ",\n" + std::string(kIndent, ' ')) + fact;
    column = fits ? column + width + 2 : kIndent + width;
  };
  if (x.device() != Device()) add(fmt::format("device='{}'", x.device().to_string()));
  if (x.numel() == 0 && x.dim() != 1) add("size=" + x.shape().to_string());
  const bool usual = x.dtype() == kFloat32 || x.dtype() == kInt64 || x.dtype() == kBool;
  if (x.numel() == 0 ? x.dtype() != kFloat32 : !usual)
    add(fmt::format("dtype={}", kTorchNames[static_cast<std::size_t>(x.dtype())]), std::string_view("torch.").size());
  if (!suffix.empty()) add(suffix);
  return text + ")";
}

}  // namespace lockstep
