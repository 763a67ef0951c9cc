// Weights from files of any origin, read into parts of a model's tensors. Not installed.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "lockstep/nn/files/safetensors_internal.h"
#include "lockstep/nn/files/weights.h"

namespace lockstep::nn {

// A tensor of the model, or this process's part of one.
struct WeightPart {
  std::string name;          // of the whole tensor
  Tensor part;               // its elements in row-major order; may be deferred until `read` is called
  Shape shape;               // of the whole tensor
  TensorPart place;          // which elements these are
  const void* id = nullptr;  // equal for the names of a tied tensor
};

// An open file, index or folder of weights.
class WeightFiles {
 public:
  struct File {
    InputFile source;
    safetensors::Reader reader;
    explicit File(const std::string& path) : source(path), reader(source) {}
  };
  struct Tensor {
    const File* file;
    const safetensors::Entry* entry;
  };

  // Throws IoError.
  explicit WeightFiles(const std::string& path);
  const std::string& path() const { return path_; }  // of the file or of the index
  const std::vector<std::unique_ptr<File>>& files() const { return files_; }
  const std::vector<Tensor>& tensors() const { return tensors_; }

 private:
  void open_index();
  std::string path_;
  std::vector<std::unique_ptr<File>> files_;
  std::vector<Tensor> tensors_;  // file after file, in the order of their data
};

// A load in two halves: the first finds out what fits, the second reads it.
class WeightLoad {
 public:
  // `known`: names of the model that only other processes have, which are not unexpected. All must outlive this object.
  // Throws InvalidArgument, beginning with `op`, if the options are strict and a name does not match, and IoError for a
  // tensor of the model in a dtype that Lockstep does not have.
  WeightLoad(const char* op, const WeightFiles& files, const std::vector<WeightPart>& parts,
             const std::set<std::string>& known, const LoadWeightsOptions& options);

  const LoadWeightsResult& result() const { return result_; }
  // Whether the model's tensor is read under this name.
  bool loads(const std::string& name) const { return loaded_.contains(name); }
  // Reads about `most` further bytes into the parts with the same names. Returns false if nothing is left.
  bool read(const std::vector<WeightPart>& parts, std::uint64_t most);

 private:
  struct Match {
    const WeightFiles::Tensor* tensor;
    std::string name;  // the model's
    bool is_transposed;
  };
  void match(const std::vector<WeightPart>& parts, const std::set<std::string>& known);
  void find_missing(const std::vector<WeightPart>& parts);
  [[noreturn]] void refuse() const;

  const char* op_;
  const WeightFiles& files_;
  const LoadWeightsOptions& options_;
  std::vector<Match> matches_;
  std::set<std::string> found_, loaded_;   // names of the model that the files have; those of matches_
  std::vector<std::string> shapes_;        // by name in result_.other_shape: both shapes, for the error
  std::vector<std::string> transposable_;  // names in result_.other_shape whose matrices would fit transposed
  LoadWeightsResult result_;
  std::size_t next_ = 0;
};

}  // namespace lockstep::nn
