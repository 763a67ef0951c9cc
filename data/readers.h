/// \file
/// Reads files: NumPy arrays (npy, npz), and data sets as CSV or IDX (the format of MNIST and Fashion-MNIST), plain or
/// gzip.
///
/// Files may be untrusted: any defect is an IoError naming the file and the position. An argument that does not match
/// the file (an unknown column) is an InvalidArgument.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lockstep/data/dataset.h"

namespace lockstep {

/// The array of a NumPy .npy file: bool, f16, f32, f64, and integers, which are read as u8, i32 (from i8, i16, u16) or i64
/// (from u32, and u64 where the values fit). Big-endian and Fortran-ordered files are read, too; pickled objects never.
/// Throws IoError, with file and place, for anything else. The memory needed is that of the tensor and a small buffer.
Tensor load_npy(const std::string& path);
/// Writes `tensor` to `path` as numpy.save does, atomically as lockstep::save; any strides and device. Throws
/// InvalidArgument for bf16, which NumPy does not have, and IoError if the file cannot be written.
void save_npy(const Tensor& tensor, const std::string& path);
/// The array `name` of an .npz archive, stored or compressed; the only array where `name` is empty. The memory needed is
/// that of the tensor, allocated once the archive is known to hold its elements, and of the compressed bytes. Throws
/// IoError for a damaged archive, and InvalidArgument, with a list of the arrays, where `name` does not pick one.
Tensor load_npz(const std::string& path, const std::string& name = "");

}  // namespace lockstep

namespace lockstep::data {

/// Options of CsvDataset.
struct CsvOptions {
  std::string target = {};                  ///< name of the target's column; without a header its number, from 0
  bool standardize = false;                 ///< features become (x - mean) / deviation, column by column
  std::vector<std::int64_t> fit_rows = {};  ///< rows used to compute mean and deviation (training rows); empty: all
  std::vector<double> mean = {};            ///< given mean, used instead of a computed one; set deviation as well
  std::vector<double> deviation = {};       ///< given deviation, of the same size as mean
  bool header = true;                       ///< the first line names the columns
  char delimiter = ',';                     ///< separates fields
};

namespace detail {
struct CsvTable {
  Tensor data, target;
  std::vector<std::string> features;
  std::vector<double> mean, deviation;
};
CsvTable read_csv(std::span<const std::byte> text, const std::string& name, const CsvOptions& options);
}  // namespace detail

/// A table of numbers from a CSV file. Every column except the target is a feature: data() is (rows, features) f32,
/// target() (rows, 1) f32. Fields are finite numbers, quoted or not; lines end in LF, CRLF, CR or
/// CR CR LF. At most 524,288 columns are allowed, with names of 16 MiB in total. Memory use is that of the file and the tensors, plus at most 64 MiB.
class CsvDataset : public TensorDataset {
 public:
  explicit CsvDataset(const std::string& path, const CsvOptions& options = {});
  /// The same from text in memory; error messages use `name` as the file name.
  static CsvDataset parse(std::span<const std::byte> text, const std::string& name, const CsvOptions& options = {});

  const std::vector<std::string>& features() const { return features_; }  ///< names, in order
  /// Mean of each feature, to standardise other data in the same way; empty unless standardised. The deviation is
  /// sqrt(mean((x - mean)^2)), or 1 for a feature that is constant over the rows used.
  const std::vector<double>& mean() const { return mean_; }
  const std::vector<double>& deviation() const { return deviation_; }  ///< see mean()

 private:
  explicit CsvDataset(detail::CsvTable table);

  std::vector<std::string> features_;
  std::vector<double> mean_, deviation_;
};

/// The array of an IDX file, plain or gzip (detected from the content): u8, f32, f64, or i32 (also for i8 and i16).
Tensor read_idx(const std::string& path);
/// The same from memory; error messages use `name` as the file name.
Tensor parse_idx(std::span<const std::byte> bytes, const std::string& name);

/// Normalisation of pixels: p becomes (p / 255 - mean) / std.
struct IdxOptions {
  double mean = 0;  ///< subtracted from p / 255
  double std = 1;   ///< divisor, greater than 0
};

/// Images with labels: an example is (height, width) f32, with pixels in [0, 1] unless normalised further, and a 0-d
/// i64 label. In memory a pixel is one byte; batches are converted when they are made.
class IdxDataset : public Dataset {
 public:
  /// Reads two IDX files: images u8 (n, ...) and labels (n) of integers.
  IdxDataset(const std::string& images, const std::string& labels, const IdxOptions& options = {});
  /// The same from tensors.
  IdxDataset(const Tensor& images, const Tensor& labels, const IdxOptions& options = {});

  std::int64_t size() const override { return images_.size(0); }
  Example get(std::int64_t index) const override;
  Example get_batch(std::span<const std::int64_t> rows) const override;

  const Tensor& images() const { return images_; }  ///< (n, ...) u8
  const Tensor& labels() const { return labels_; }  ///< (n) i64

 private:
  Tensor images_, labels_;
  Tensor full_scale_, mean_, deviation_;  // 0-d; mean_ and deviation_ are undefined without normalisation
};

}  // namespace lockstep::data
