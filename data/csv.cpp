#include <algorithm>
#include <cmath>

#include "lockstep/base/byte_reader_internal.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/base/file_internal.h"
#include "lockstep/data/csv_reader_internal.h"
#include "lockstep/data/readers.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::data {
namespace {

// Reads the text up to four times (count, mean, deviation, values) instead of storing it as f64: a digit and a comma
// in the file would take eight bytes.
class CsvLoader {
 public:
  CsvLoader(std::span<const std::byte> text, const std::string& name, const CsvOptions& options)
      : options_(options), name_(name),
        reader_({reinterpret_cast<const char*>(text.data()), text.size()}, name, options.delimiter) {}

  detail::CsvTable load() {
    columns_ = reader_.read_names(options_.header);
    LOCKSTEP_CHECK_IO(columns_.size() >= 2, "{}:1: one column, {}; a target and at least one feature are needed", name_,
                      in_quotes(columns_[0]));
    find_target();
    count_rows();
    if (options_.standardize) options_.mean.empty() ? fit() : use_given();
    return fill();
  }

 private:
  // The column of a feature.
  std::size_t column_of(std::size_t feature) const { return feature + (feature >= target_); }
  std::size_t feature_count() const { return columns_.size() - 1; }

  void find_target() {
    const auto found = std::find(columns_.begin(), columns_.end(), options_.target);
    if (found == columns_.end()) {
      std::string names;
      std::size_t shown = 0;
      for (; shown < columns_.size() && names.size() < 80; ++shown)
        names += (shown ? ", " : "") + in_quotes(columns_[shown]);
      throw InvalidArgument(
          fmt::format("CsvDataset: {}: .target is {}, but the columns are {}{}", name_, in_quotes(options_.target),
                      names, shown < columns_.size() ? fmt::format(" and {} more", columns_.size() - shown) : ""));
    }
    LOCKSTEP_CHECK_IO(std::find(found + 1, columns_.end(), options_.target) == columns_.end(),
                      "{}:1: two columns have the target's name, {}", name_, in_quotes(options_.target));
    target_ = static_cast<std::size_t>(found - columns_.begin());
  }

  template <class Visit>
  void for_each_row(Visit visit) {
    std::vector<double> values(columns_.size());
    reader_.rewind();
    for (std::int64_t row = 0; reader_.next_row(values, columns_); ++row) visit(row, values);
  }

  void count_rows() {
    for_each_row([&](std::int64_t, const std::vector<double>&) { ++rows_; });
    LOCKSTEP_CHECK_IO(rows_ > 0, "{}: there are no rows after the header", name_);
  }

  template <class Visit>
  void for_each_fit_row(Visit visit) {
    std::vector<std::int64_t> rows = options_.fit_rows;
    std::sort(rows.begin(), rows.end());
    rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
    auto next = rows.begin();
    for_each_row([&](std::int64_t row, const std::vector<double>& values) {
      if (!rows.empty() && (next == rows.end() || *next != row)) return;
      if (!rows.empty()) ++next;
      visit(values);
    });
  }

  // Two passes, so that a column with a large mean and a small deviation keeps its digits.
  void fit() {
    detail::check_rows("CsvDataset: .fit_rows", options_.fit_rows, rows_);
    const std::size_t features = feature_count();
    std::int64_t count = 0;
    std::vector<double> first;
    std::vector<bool> varies(features);
    mean_.assign(features, 0);
    deviation_.assign(features, 0);
    for_each_fit_row([&](const std::vector<double>& values) {
      if (count++ == 0) first = values;
      for (std::size_t f = 0; f < features; ++f) {
        const double value = values[column_of(f)];
        mean_[f] += value;
        if (value != first[column_of(f)]) varies[f] = true;
      }
    });
    for (double& mean : mean_) mean /= static_cast<double>(count);
    for_each_fit_row([&](const std::vector<double>& values) {
      for (std::size_t f = 0; f < features; ++f) deviation_[f] += std::pow(values[column_of(f)] - mean_[f], 2);
    });
    for (std::size_t f = 0; f < features; ++f) {
      deviation_[f] = std::sqrt(deviation_[f] / static_cast<double>(count));
      if (varies[f] && deviation_[f] > 0) continue;
      mean_[f] = first[column_of(f)];  // exact, so that a constant column becomes zeros without rounding errors
      deviation_[f] = 1;
    }
  }

  void use_given() {
    LOCKSTEP_CHECK(options_.mean.size() == feature_count() && options_.deviation.size() == feature_count(),
                   "CsvDataset: {}: .mean has {} and .deviation {} numbers, but there are {} features", name_,
                   options_.mean.size(), options_.deviation.size(), feature_count());
    for (std::size_t f = 0; f < feature_count(); ++f) {
      LOCKSTEP_CHECK(
          std::isfinite(options_.mean[f]) && options_.deviation[f] > 0 && std::isfinite(options_.deviation[f]),
          "CsvDataset: {}: feature {}: mean {} must be finite, and deviation {} finite and positive", name_,
          in_quotes(columns_[column_of(f)]), options_.mean[f], options_.deviation[f]);
    }
    mean_ = options_.mean;
    deviation_ = options_.deviation;
  }

  detail::CsvTable fill() {
    const std::size_t features = feature_count();
    detail::CsvTable table;
    table.data = raw::empty({rows_, static_cast<std::int64_t>(features)}, {.dtype = kFloat32});
    table.target = raw::empty({rows_, 1}, {.dtype = kFloat32});
    float* data = table.data.data<float>();
    float* target = table.target.data<float>();
    for_each_row([&](std::int64_t, const std::vector<double>& values) {
      *target++ = static_cast<float>(values[target_]);
      for (std::size_t f = 0; f < features; ++f) {
        double value = values[column_of(f)];
        if (options_.standardize) value = (value - mean_[f]) / deviation_[f];
        *data = static_cast<float>(value);
        if (!std::isfinite(*data++)) [[unlikely]] {
          reader_.fail_at_row(fmt::format("column {}: {} is too far from the mean {} (deviation {}) for f32",
                                          in_quotes(columns_[column_of(f)]), values[column_of(f)], mean_[f],
                                          deviation_[f]));
        }
      }
    });
    table.features = std::move(columns_);
    table.features.erase(table.features.begin() + static_cast<std::ptrdiff_t>(target_));
    table.mean = std::move(mean_);
    table.deviation = std::move(deviation_);
    return table;
  }

  const CsvOptions& options_;
  const std::string& name_;
  CsvReader reader_;
  std::vector<std::string> columns_;
  std::size_t target_ = 0;
  std::int64_t rows_ = 0;
  std::vector<double> mean_, deviation_;
};

}  // namespace

detail::CsvTable detail::read_csv(std::span<const std::byte> text, const std::string& name, const CsvOptions& options) {
  LOCKSTEP_CHECK(std::string_view("\"\r\n.+-").find(options.delimiter) == std::string_view::npos,
                 "CsvDataset: .delimiter must not be a quote, a line end, a point or a sign");
  LOCKSTEP_CHECK(options.standardize || (options.fit_rows.empty() && options.mean.empty() && options.deviation.empty()),
                 "CsvDataset: .fit_rows, .mean and .deviation need .standardize = true");
  LOCKSTEP_CHECK(
      (options.mean.empty() == options.deviation.empty()) && (options.mean.empty() || options.fit_rows.empty()),
      "CsvDataset: pass .mean together with .deviation, or .fit_rows");
  return CsvLoader(text, name, options).load();
}

CsvDataset::CsvDataset(detail::CsvTable table)
    : TensorDataset(std::move(table.data), std::move(table.target)), features_(std::move(table.features)),
      mean_(std::move(table.mean)), deviation_(std::move(table.deviation)) {}

CsvDataset::CsvDataset(const std::string& path, const CsvOptions& options)
    : CsvDataset(detail::read_csv(read_file(path, limits::kCsvBytes), path, options)) {}

CsvDataset CsvDataset::parse(std::span<const std::byte> text, const std::string& name, const CsvOptions& options) {
  return CsvDataset(detail::read_csv(text, name, options));
}

}  // namespace lockstep::data
