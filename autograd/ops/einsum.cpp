// einsum: every operand's dimensions are labelled, and operands are contracted from left to right, each pair by one
// batched matrix product. The gradients follow from the operations that this consists of.
#include <algorithm>
#include <string_view>

#include "lockstep/autograd/ops/operations_internal.h"
#include "lockstep/base/check_internal.h"

namespace lockstep {

namespace {

// Letters are labels 0 to 51, capital letters first, as PyTorch orders them. The dimensions of an ellipsis follow.
constexpr int kLetters = 52, kLabels = kLetters + kMaxDims;
constexpr int kEllipsis = -1;

using Labels = std::vector<int>;

struct Term {
  Tensor tensor;
  Labels labels;  // one for each dimension
};

bool has(const Labels& labels, int label) { return std::ranges::find(labels, label) != labels.end(); }

std::string name_of(int label) {
  if (label >= kLetters) return "...";
  return std::string(1, static_cast<char>(label < 26 ? 'A' + label : 'a' + label - 26));
}

// The labels of one operand or of the output, with kEllipsis for "...". `text` has no spaces.
Labels parse(std::string_view text, std::string_view equation) {
  Labels labels;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (text.substr(i, 3) == "...") {
      LOCKSTEP_CHECK(!has(labels, kEllipsis), "einsum: \"{}\" in \"{}\" has two ellipses; give one", text, equation);
      labels.push_back(kEllipsis);
      i += 2;
      continue;
    }
    const bool upper = c >= 'A' && c <= 'Z', lower = c >= 'a' && c <= 'z';
    LOCKSTEP_CHECK(upper || lower, "einsum: \"{}\" in \"{}\" is no subscript; subscripts are letters and \"...\"", c,
                   equation);
    labels.push_back(upper ? c - 'A' : c - 'a' + 26);
  }
  return labels;
}

// Replaces kEllipsis by the labels of its last `count` dimensions, of `most` in all operands.
Labels expanded(const Labels& labels, int count, int most) {
  Labels out;
  for (const int label : labels) {
    if (label != kEllipsis) out.push_back(label);
    for (int i = most - count; label == kEllipsis && i < most; ++i) out.push_back(kLetters + i);
  }
  return out;
}

// Takes the diagonal of dimensions with the same label.
Term without_repeats(Term term) {
  for (std::size_t i = 0; i < term.labels.size(); ++i) {
    for (std::size_t j = i + 1; j < term.labels.size(); ++j) {
      if (term.labels[i] != term.labels[j]) continue;
      const int label = term.labels[i];
      const auto a = static_cast<std::int64_t>(i), b = static_cast<std::int64_t>(j);
      LOCKSTEP_CHECK(term.tensor.size(a) == term.tensor.size(b), "einsum: subscript {} has sizes {} and {} in {}",
                     name_of(label), term.tensor.size(a), term.tensor.size(b), describe(term.tensor));
      term.tensor = diagonal(term.tensor, 0, a, b);  // which becomes the last dimension
      term.labels.erase(term.labels.begin() + b);
      term.labels.erase(term.labels.begin() + a);
      term.labels.push_back(label);
      return without_repeats(std::move(term));
    }
  }
  return term;
}

// Sums over the dimensions whose label is not kept.
Term summed(const Term& term, const Labels& kept) {
  Shape dims;
  Labels labels;
  for (std::size_t d = 0; d < term.labels.size(); ++d) {
    if (has(kept, term.labels[d]))
      labels.push_back(term.labels[d]);
    else
      dims.push_back(static_cast<std::int64_t>(d));
  }
  return dims.empty() ? term : Term{sum(term.tensor, dims), labels};
}

// The tensor with one dimension for each of `labels`, in this order. A label that it does not have gets size 1.
Tensor arranged(const Term& term, const Labels& labels) {
  Tensor out = term.tensor;
  Labels own = term.labels;
  Shape order;
  for (const int label : labels) {
    if (!has(own, label)) {
      own.push_back(label);
      out = out.unsqueeze(-1);
    }
    order.push_back(std::ranges::find(own, label) - own.begin());
  }
  return out.permute(order);
}

std::int64_t product(const Labels& labels, const std::vector<std::int64_t>& sizes) {
  std::int64_t out = 1;
  for (const int label : labels) out *= sizes[static_cast<std::size_t>(label)];
  return out;
}

Labels joined(const Labels& a, const Labels& b, const Labels& c = {}) {
  Labels out = a;
  out.insert(out.end(), b.begin(), b.end());
  out.insert(out.end(), c.begin(), c.end());
  return out;
}

Shape shape_of(const Labels& labels, const std::vector<std::int64_t>& sizes) {
  Shape out;
  for (const int label : labels) out.push_back(sizes[static_cast<std::size_t>(label)]);
  return out;
}

// The product of two terms, summed over the labels that both have and that are not kept.
Term contracted(const Term& a, const Term& b, const Labels& kept, const std::vector<std::int64_t>& sizes) {
  const Term left = summed(a, joined(kept, b.labels)), right = summed(b, joined(kept, a.labels));
  Labels batch, rows, inner, columns;
  for (const int label : left.labels)
    (!has(right.labels, label) ? rows : has(kept, label) ? batch : inner).push_back(label);
  for (const int label : right.labels) {
    if (!has(left.labels, label)) columns.push_back(label);
  }
  const Labels labels = joined(batch, rows, columns);
  if (inner.empty()) return {mul(arranged(left, labels), arranged(right, labels)), labels};
  const auto matrices = [&](const Term& term, const Labels& first, const Labels& second) {  // expands sizes of 1
    const Labels all = joined(batch, first, second);
    Shape shape = batch.empty() ? Shape() : Shape(product(batch, sizes));
    shape.push_back(product(first, sizes)), shape.push_back(product(second, sizes));
    return arranged(term, all).expand(shape_of(all, sizes)).reshape(shape);
  };
  const Tensor out = matmul(matrices(left, rows, inner), matrices(right, inner, columns));
  return {out.reshape(shape_of(labels, sizes)), labels};
}

// The labelled operands, with diagonals taken, and the sizes of all labels.
std::vector<Term> label(const std::vector<Tensor>& operands, const std::vector<Labels>& parsed, int most,
                        std::vector<std::int64_t>& sizes) {
  std::vector<Term> terms;
  std::vector<std::size_t> first(kLabels);
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const int letters = static_cast<int>(parsed[i].size()) - has(parsed[i], kEllipsis);
    terms.push_back(without_repeats({operands[i], expanded(parsed[i], operands[i].dim() - letters, most)}));
    for (std::size_t d = 0; d < terms[i].labels.size(); ++d) {
      const auto at = static_cast<std::size_t>(terms[i].labels[d]);
      const std::int64_t size = terms[i].tensor.shape()[d];
      if (sizes[at] < 0 || sizes[at] == 1) sizes[at] = size, first[at] = i;
      LOCKSTEP_CHECK(size == sizes[at] || size == 1,
                     "einsum: subscript {} is {} in operand {}, {}, and {} in operand {}, {}; the sizes must be equal "
                     "or 1",
                     name_of(terms[i].labels[d]), sizes[at], first[at], describe(operands[first[at]]), size, i,
                     describe(operands[i]));
    }
  }
  return terms;
}

// The output's labels: those given, or the ellipsis and then all labels that occur once, in alphabetical order.
Labels output_labels(std::string_view text, bool given, std::string_view equation, const std::vector<Labels>& parsed,
                     int most) {
  std::vector<int> counts(kLetters);
  for (const Labels& labels : parsed) {
    for (const int label : labels) counts[static_cast<std::size_t>(std::max(label, 0))] += label != kEllipsis;
  }
  Labels out;
  if (given) {
    out = parse(text, equation);
    for (const int label : out) {
      if (label == kEllipsis) continue;
      LOCKSTEP_CHECK(counts[static_cast<std::size_t>(label)] > 0 && std::ranges::count(out, label) == 1,
                     "einsum: output subscript {} of \"{}\" must occur once, and in an operand", name_of(label),
                     equation);
    }
  } else {
    out.push_back(kEllipsis);
    for (int label = 0; label < kLetters; ++label) {
      if (counts[static_cast<std::size_t>(label)] == 1) out.push_back(label);
    }
  }
  return expanded(out, most, most);
}

}  // namespace

Tensor einsum(const std::string& equation, const std::vector<Tensor>& operands) {
  std::string text = equation;
  std::erase(text, ' ');
  const std::size_t arrow = text.find("->");
  std::string_view rest = std::string_view(text).substr(0, arrow);
  std::vector<Labels> parsed;
  for (bool more = true; more;) {
    const std::size_t comma = rest.find(',');
    parsed.push_back(parse(rest.substr(0, comma), equation));
    more = comma != std::string_view::npos;
    rest = more ? rest.substr(comma + 1) : "";
  }
  LOCKSTEP_CHECK(parsed.size() == operands.size(), "einsum: \"{}\" has {} operands, but {} tensors are given", equation,
                 parsed.size(), operands.size());
  int most = 0;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const bool open = has(parsed[i], kEllipsis);
    const int letters = static_cast<int>(parsed[i].size()) - open, dims = operands[i].dim();
    LOCKSTEP_CHECK(open ? letters <= dims : letters == dims,
                   "einsum: \"{}\" has {} subscripts for operand {}, {}; give one for each dimension, or \"...\"",
                   equation, letters, i, describe(operands[i]));
    if (open) most = std::max(most, dims - letters);
  }
  return named("einsum", [&] {
    std::vector<std::int64_t> sizes(kLabels, -1);
    const std::string_view after = arrow == std::string::npos ? "" : std::string_view(text).substr(arrow + 2);
    const Labels out = output_labels(after, arrow != std::string::npos, equation, parsed, most);
    const std::vector<Term> terms = label(operands, parsed, most, sizes);
    Term total = terms[0];
    for (std::size_t i = 1; i < terms.size(); ++i) {
      Labels kept = out;
      for (std::size_t later = i + 1; later < terms.size(); ++later) kept = joined(kept, terms[later].labels);
      total = contracted(total, terms[i], kept, sizes);
    }
    return arranged(summed(total, out), out);
  });
}

}  // namespace lockstep
