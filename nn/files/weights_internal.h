// Weights from files of any origin, read into parts of a model's tensors. Not installed.
#pragma once

#include <memory>
#include <optional>
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
  const std::string& path() const { return path_; }    // of the file or of the index
  const std::string& index() const { return index_; }  // the index of the model of which the file is a part; often ""
  const std::vector<std::unique_ptr<File>>& files() const { return files_; }
  const std::vector<Tensor>& tensors() const { return tensors_; }
  const std::vector<Tensor>& unlisted() const { return unlisted_; }  // tensors of the files that the index lacks

 private:
  void open_index();
  std::string path_, index_;
  std::vector<std::unique_ptr<File>> files_;
  std::vector<Tensor> unlisted_;
  std::vector<Tensor> tensors_;  // file after file, in the order of their data
};

// A tensor that a file or a dict has.
struct WeightSource {
  std::string name;
  std::optional<Shape> shape;  // empty: an undefined tensor
  bool is_listed = true;       // false: it is not read, because the index of its file lacks it
};

// The call that loads, for its errors.
struct LoadCall {
  std::string where;  // their beginning: "load_weights: model.safetensors: "
  const char* source = "file";
  bool has_options = true;  // false: no advice to pass options
  const char* advice = "";  // without options: the last line of errors
  std::string index = {};   // of the model of which the file is a part
};

// Finds the tensors of a source that fit those of a model.
class WeightMatch {
 public:
  struct Match {
    std::size_t source;
    std::string name;  // the model's
    bool is_transposed;
  };

  // `known`: names of the model that only other processes have, which are not unexpected. Throws InvalidArgument if the
  // options are strict and a name does not match, if .rename gives a name twice, and for a pattern of .transpose that
  // describes no matrix of the model.
  WeightMatch(const LoadCall& call, const std::vector<WeightSource>& sources, const std::vector<WeightPart>& parts,
              const std::set<std::string>& known, const LoadWeightsOptions& options);

  const std::vector<Match>& matches() const { return matches_; }
  const LoadWeightsResult& result() const { return result_; }
  // Whether the model's tensor has a match under this name.
  bool loads(const std::string& name) const { return loaded_.contains(name); }

  // A part of a tied tensor, of which the source has a second name.
  struct Tied {
    const WeightPart* part;
    Match first, second;
  };
  std::vector<Tied> tied(const std::vector<WeightPart>& parts) const;

 private:
  void check_transpose(const LoadCall& call, const std::vector<WeightPart>& parts, const std::set<std::string>& known,
                       const LoadWeightsOptions& options);
  void match(const LoadCall& call, const std::vector<WeightSource>& sources, const std::vector<WeightPart>& parts,
             const std::set<std::string>& known, const LoadWeightsOptions& options);
  void find_missing(const std::vector<WeightPart>& parts);
  [[noreturn]] void refuse(const LoadCall& call, const std::string& unused) const;

  std::vector<Match> matches_;
  std::set<std::string> found_, loaded_;  // names of the model that the source has; those of matches_
  // By name in result_.unexpected: the result of .rename, or "" for a name that the index lacks.
  std::vector<std::string> renamed_;
  std::vector<std::string> shapes_;        // by name in result_.other_shape: both shapes, for the error
  std::vector<std::string> transposable_;  // names in result_.other_shape whose matrices would fit transposed
  std::vector<std::string> square_;        // names of square matrices that are read as they are
  LoadWeightsResult result_;
};

// Whether the elements are equal once they have the dtype.
bool same_values(const Tensor& a, const Tensor& b, DType dtype);
// Throws the error for two entries of the source that are one tensor of the model, with different values.
[[noreturn]] void throw_tied(const LoadCall& call, const std::string& first, const std::string& second);

// A load of files in two halves: the first finds out what fits, the second reads it.
class WeightLoad {
 public:
  // `files` must outlive this object; `options` is null if `op` takes none. Throws as WeightMatch does, beginning with
  // `op`, InvalidArgument for different values of a tied tensor, and IoError for a tensor of the model in a dtype that
  // Lockstep does not have.
  WeightLoad(const char* op, const WeightFiles& files, const std::vector<WeightPart>& parts,
             const std::set<std::string>& known, const LoadWeightsOptions* options);

  const LoadWeightsResult& result() const { return match_.result(); }
  bool loads(const std::string& name) const { return match_.loads(name); }
  // Reads about `most` further bytes into the parts with the same names. Returns false if nothing is left.
  bool read(const std::vector<WeightPart>& parts, std::uint64_t most);

 private:
  bool are_equal(const WeightMatch::Tied& tied) const;
  void read(const WeightMatch::Match& match, const WeightPart& to) const;
  const WeightFiles& files_;
  WeightMatch match_;
  std::size_t next_ = 0;
};

// load_weights of a whole model from open files, by the function `op`, which may take no options (null).
LoadWeightsResult load_weights(const char* op, Module& module, const WeightFiles& files,
                               const LoadWeightsOptions* options);

// A load of a dict into the tensors of a model, in two halves: the first finds out what fits, the second copies it.
class StateDictLoad {
 public:
  StateDictLoad() = default;  // loads nothing
  // Throws as WeightMatch does, and InvalidArgument for different values of a tied tensor, and for a deferred tensor
  // that would be read or, without .assign, filled.
  StateDictLoad(const LoadCall& call, StateDict own, StateDict dict, const LoadStateDictOptions& options = {});

  const LoadStateDictResult& result() const { return result_; }
  // Calls use(name, tensor) for each of the model's tensors that the dict has, with the dict's tensor in its shape.
  void for_each(FunctionRef<void(const std::string& name, const Tensor& tensor)> use) const;
  void copy() const;

 private:
  Tensor tensor_of(const WeightMatch::Match& match) const;  // in the shape of the model's

  StateDict own_, dict_;
  std::vector<WeightMatch::Match> matches_;
  LoadStateDictResult result_;
};

}  // namespace lockstep::nn
