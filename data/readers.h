// Readers of files: NumPy arrays (npy, npz), and data sets as CSV or IDX (the format of MNIST and Fashion-MNIST), plain
// or gzip.
//
// The files may come from anywhere: whatever is wrong with one is an IoError naming the file and the place. An argument
// that does not fit the file (a column that is not there) is an InvalidArgument.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lockstep/data/dataset.h"

namespace lockstep {

// The array of a NumPy .npy file: bool, f16, f32, f64, and integers, which are read as u8, i32 (from i8, i16, u16) or i64
// (from u32, and u64 where the values fit). Big-endian and Fortran-ordered files are read, too; pickled objects never.
// Throws IoError, with file and place, for anything else. The memory needed is that of the tensor and a small buffer.
Tensor load_npy(const std::string& path);
// The array `name` of an .npz archive, stored or compressed; the only array where `name` is empty. The memory needed is
// that of the tensor, allocated once the archive is known to hold its elements, and of the compressed bytes. Throws
// IoError for a damaged archive, and InvalidArgument, with a list of the arrays, where `name` does not pick one.
Tensor load_npz(const std::string& path, const std::string& name = "");

}  // namespace lockstep

namespace lockstep::data {

// How a CSV file is read.
struct CsvOptions {
  std::string target = {};   // the name of the target's column; without a header its number, from 0
  bool standardize = false;  // features become (x - mean) / deviation, column by column
  std::vector<std::int64_t> fit_rows =
      {};                              // the rows that mean and deviation are taken from (training rows); empty: all
  std::vector<double> mean = {};       // given together with deviation: used as they are, instead of fitting
  std::vector<double> deviation = {};  // as long as mean
  bool header = true;                  // the first line names the columns
  char delimiter = ',';                // between fields
};

namespace detail {
struct CsvTable {
  Tensor data, target;
  std::vector<std::string> features;
  std::vector<double> mean, deviation;
};
CsvTable read_csv(std::span<const std::byte> text, const std::string& name, const CsvOptions& options);
}  // namespace detail

// A table of numbers. Every column but the target's is a feature: data() is (rows, features) f32, target()
// (rows, 1) f32. Fields are finite numbers, quoted or not; lines end in LF or CRLF. There may be 524,288
// columns, with names of 16 MiB together. The memory needed is that of the file, of the tensors, and at most
// 64 MiB.
class CsvDataset : public TensorDataset {
 public:
  explicit CsvDataset(const std::string& path, const CsvOptions& options = {});
  // The same from text in memory; `name` stands for the file in messages.
  static CsvDataset parse(std::span<const std::byte> text, const std::string& name, const CsvOptions& options = {});

  const std::vector<std::string>& features() const { return features_; }  // names, in order
  // What was subtracted and divided by, per feature, to treat other data alike; empty unless standardised. The deviation
  // is sqrt(mean((x - mean)^2)), and 1 for a feature that is constant over the rows it was taken from.
  const std::vector<double>& mean() const { return mean_; }
  const std::vector<double>& deviation() const { return deviation_; }  // see mean()

 private:
  explicit CsvDataset(detail::CsvTable table);

  std::vector<std::string> features_;
  std::vector<double> mean_, deviation_;
};

// The array of an IDX file, plain or gzip (seen from the content): u8, f32, f64, or i32 (also for i8 and i16).
Tensor read_idx(const std::string& path);
// From memory; `name` stands for the file in messages.
Tensor parse_idx(std::span<const std::byte> bytes, const std::string& name);

// How pixels are normalised.
struct IdxOptions {
  double mean = 0;  // pixels become (p / 255 - mean) / std
  double std = 1;   // what they are divided by; not 0
};

// Images with labels: an example is (height, width) f32, with all pixels in [0, 1] unless normalised further, and a 0-d
// i64 label. In memory a pixel stays one byte; batches are converted as they are made.
class IdxDataset : public Dataset {
 public:
  // Two IDX files: images u8 (n, ...) and labels (n) of integers.
  IdxDataset(const std::string& images, const std::string& labels, const IdxOptions& options = {});
  // The same from tensors.
  IdxDataset(const Tensor& images, const Tensor& labels, const IdxOptions& options = {});

  std::int64_t size() const override { return images_.size(0); }
  Example get(std::int64_t index) const override;
  Example get_batch(std::span<const std::int64_t> rows) const override;

  const Tensor& images() const { return images_; }  // (n, ...) u8
  const Tensor& labels() const { return labels_; }  // (n) i64

 private:
  Tensor images_, labels_;
  Tensor full_scale_, mean_, deviation_;  // 0-d; the last two undefined where there is nothing to normalise
};

}  // namespace lockstep::data
