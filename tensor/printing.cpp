// Prints as PyTorch does: elements aligned in columns, four digits, scientific notation for a wide range, long tensors
// summarised.
#include <algorithm>
#include <cmath>

#include "lockstep/tensor/check_internal.h"
#include "lockstep/tensor/ops_internal.h"

namespace lockstep {

namespace {

constexpr std::int64_t kSummarizeFrom = 1000;  // elements; longer tensors show their edges
constexpr std::int64_t kEdge = 3;
constexpr int kLineWidth = 80;
constexpr int kDigits = 4;

bool summarized(const Tensor& x) { return x.numel() > kSummarizeFrom; }

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

std::string row_text(const Tensor& x, const Format& format, int indent, bool summarize) {
  const std::int64_t n = x.shape()[0];
  const std::int64_t per_line = std::max<std::int64_t>((kLineWidth - indent) / (format.width() + 2), 1);
  std::vector<std::string> words;
  for (std::int64_t i = 0; i < n; ++i) {
    if (summarize && n > 2 * kEdge && i == kEdge) {
      words.push_back(" ...");
      i = n - kEdge;
    }
    words.push_back(format(raw::select(x, 0, i).item()));
  }
  std::string text = "[";
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i > 0)
      text += i % static_cast<std::size_t>(per_line) == 0
                  ? ",\n" + std::string(static_cast<std::size_t>(indent + 1), ' ')
                  : ", ";
    text += words[i];
  }
  return text + "]";
}

std::string block_text(const Tensor& x, const Format& format, int indent, bool summarize) {
  if (x.dim() == 0) return format(x.item());
  if (x.dim() == 1) return row_text(x, format, indent, summarize);
  const std::int64_t n = x.shape()[0];
  const std::string separator = "," + std::string(static_cast<std::size_t>(x.dim() - 1), '\n') +
                                std::string(static_cast<std::size_t>(indent + 1), ' ');
  std::string text = "[";
  for (std::int64_t i = 0; i < n; ++i) {
    if (i > 0) text += separator;
    if (summarize && n > 2 * kEdge && i == kEdge) {
      text += "..." + separator;
      i = n - kEdge;
    }
    text += block_text(raw::select(x, 0, i), format, indent + 1, summarize);
  }
  return text + "]";
}

// PyTorch's names of dtypes without the prefix "torch.", printed if not the default dtype.
const char* torch_name(DType dtype) {
  switch (dtype) {
    case kUInt8:
      return "uint8";
    case kInt32:
      return "int32";
    case kFloat16:
      return "float16";
    case kBFloat16:
      return "bfloat16";
    case kFloat64:
      return "float64";
    case kFloat32:
      return "float32";
    case kInt64:
      return "int64";
    case kBool:
      return "bool";
  }
  return "";
}

}  // namespace

std::string raw::to_string(const Tensor& x, const std::string& suffix) {
  if (!x.defined()) return "tensor(undefined)";
  const Tensor host = to(alias(x), Device());
  std::string facts;
  if (x.numel() == 0 && x.dim() != 1) facts += fmt::format(", size={}", x.shape().to_string());
  const bool usual = x.dtype() == kFloat32 || x.dtype() == kInt64 || x.dtype() == kBool;
  const bool shown = x.numel() == 0 ? x.dtype() != kFloat32 : !usual;
  if (x.device() != Device()) facts += fmt::format(", device='{}'", x.device().to_string());
  if (shown) facts += fmt::format(", dtype={}", torch_name(x.dtype()));
  std::string body = "[]";
  if (x.numel() > 0) {
    std::vector<Scalar> values;
    collect(host, summarized(host), values);
    body = block_text(host, Format(host, values), 7, summarized(host));
  }
  return "tensor(" + body + facts + suffix + ")";
}

}  // namespace lockstep
