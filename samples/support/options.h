// The command line that the sample trainers share.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace samples {

// Options of char_gpt alone.
struct GptOptions {
  std::int64_t layers = 4, heads = 4, width = 128;
  std::int64_t context = 64;  // characters that the model sees
  double dropout = 0;
  bool untied = false;  // the logits have a weight of their own
  bool recompute = false;
  bool bf16 = false;
  double peak_gflops = 0;       // of a device; 0: unknown
  std::int64_t generate = 300;  // characters to generate after training
  double temperature = 0.8;
  std::int64_t top_k = 0;  // 0: no limit
};

// Options of a trainer. The initial values are the defaults.
struct Options {
  std::string program = {};  // "logistic_regression"
  std::string about = {};    // one line for --help
  std::string data = {};     // file or folder
  std::string data_flag = "--file";
  std::string data_help = {};
  std::string data_default = {};  // the default in --help; empty: `data`

  std::optional<GptOptions> gpt = {};  // without it, the command line has none of these options

  std::vector<std::string> units = {};  // of ShardedDataParallel; empty: the children of ModuleLists

  std::int64_t epochs = 20;
  std::int64_t batch = 32;
  double lr = 0.1;
  std::int64_t seed = 0;
  std::string out = {};         // output folder; by default runs/<program>
  std::string save = {};        // checkpoint file; by default checkpoint.safetensors in `out`
  std::string resume = "auto";  // auto, yes or no
  std::int64_t save_every = 0;  // epochs between two checkpoints; 0: by time

  std::string strategy = {};               // single, accumulate, dp, ddp, zero1, ... (strategy.h) or compare
  std::vector<std::string> compared = {};  // our names, for compare; empty: single, accumulate, dp, ddp
  std::int64_t micro_batches = 2;          // number of micro-batches in a step, over all devices and ranks
  std::int64_t nproc = 0;                  // ranks to start; by default one for each micro-batch
  std::string mesh = {};                   // axes of the ranks: dp=2,cp=2; empty: see mesh.h
  std::string schedule = "1f1b";           // of ranks along pp: gpipe, 1f1b, interleaved or zb1p
  int chunks = 0;                          // of the model on each rank along pp; 0: 2 for interleaved, else 1
  int tensor_slices = 0;                   // of the matrices; 0: as many as ranks along tp
  std::string attention = "zigzag";        // over sequence blocks: zigzag, ring or ulysses
  std::string device = "cpu";              // cpu, cpu:N, cuda or cuda:N
  std::string loss = "outside";            // strategy dp: outside (on the gathered outputs) or replica
  std::string backend = "shm";             // of the ranks: shm, gloo, mpi, ucc or nccl
  std::string order = "canonical";  // of ddp: canonical, arrival (bits vary by run) or own-first (bits vary by rank)
  std::string comm_hook = "none";   // of ddp: none, fp16, bf16 or powersgd
  bool cuda_graph = false;          // capture one step and replay it
  std::string inject = {};          // of the ranks: a fault to inject (inject.h)
  double timeout = 60;              // of the ranks: seconds that a rank waits for the others
  bool quiet = false;
  std::string trace = {};   // file for Chrome's trace; empty: none
  std::string report = {};  // file for the report; empty: none
  bool explain = false;     // explain the last step in words
  bool trace_kernels = false;
  std::string timeline = {};  // file for the timeline, written instead of trace and report

  std::string command = {};                 // the command line as typed
  std::vector<std::string> arguments = {};  // the same without the program's name
};

// The environment variable that passes the typed command line to the ranks.
inline constexpr const char* kTypedCommand = "LOCKSTEP_SAMPLE_COMMAND";

inline bool is_gpu(const std::string& device) { return device.starts_with("cuda"); }

// Sets options from the command line. Prints and exits for --help and for an invalid command line.
Options parse(int argc, char** argv, Options defaults);

}  // namespace samples
