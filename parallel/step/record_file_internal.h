// The file of one rank of a recorded run: a line of JSON for each tensor, and on demand its values. Not installed.
//
//   {"format":1,"rank":0,"ranks":[0,1]}
//   {"step":0,"what":"output","micro_batch":1,"name":"blocks.0","call":0,"dtype":"f32","shape":[8,32],
//    "hash":"9c5a0e7b1d2f3a48"}
//
// A part of a tensor has "part" (first, run, stride, begin and numel of TensorPart); with values "at" is the position of
// its bytes in the file of values.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/callback.h"
#include "lockstep/base/file_internal.h"
#include "lockstep/tensor/tensor.h"
#include "lockstep/tensor/tensor_part.h"

namespace lockstep::parallel {

// The sum over the part's elements of a hash of (position in the whole tensor, bits). `elements` is contiguous CPU
// memory.
std::uint64_t record_hash(const Tensor& elements, const TensorPart& part);

// A tensor of a run, which a line describes.
struct RecordKey {
  std::int64_t step = 0;
  const char* what = "";
  int micro_batch = -1;  // -1: of the whole step
  std::string_view name = {};
  std::int64_t call = 0;  // the number of the call of the module, or of the input
};

// Threads may add lines at the same time.
class RecordFile {
 public:
  // Creates the directory. `ranks` are those of the run's group, as the group of init_process_group numbers them; `rank`
  // is this one. Throws IoError if the files cannot be created, or exist.
  RecordFile(const std::string& directory, int rank, const std::vector<int>& ranks, bool has_values);
  ~RecordFile();

  // `tensor` is the part of a tensor of shape `whole`. After a failure, which is a warning, nothing more is written: a
  // full disk ends the record, not the training.
  void add(const RecordKey& key, const Tensor& tensor, const TensorPart& part, const Shape& whole);
  void flush();  // what was added so far is in the files

 private:
  struct Output;
  void write(FunctionRef<void()> body);
  std::mutex mutex_;
  bool has_failed_ = false;
  std::unique_ptr<Output> lines_, values_;  // values: null without
};

}  // namespace lockstep::parallel
