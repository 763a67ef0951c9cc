// The command line that the sample trainers share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace samples {

// What a trainer needs to know from its user. The initial values are the trainer's defaults.
struct Options {
  std::string program = {};  // "logistic_regression"
  std::string about = {};    // one line for --help
  std::string data = {};     // file or folder
  std::string data_flag = "--file";
  std::string data_help = {};

  std::int64_t epochs = 20;
  std::int64_t batch = 32;
  double lr = 0.1;
  std::int64_t seed = 0;
  std::string out = {};         // folder for everything that is written; by default runs/<program>
  std::string save = {};        // the checkpoint; by default checkpoint.safetensors in `out`
  std::string resume = "auto";  // auto, yes or no
  std::int64_t save_every = 0;  // epochs between two checkpoints; 0: by time

  std::string mode = {};            // single, accumulate, dp, ddp or compare
  std::int64_t micro_batches = 2;   // into how many a step is cut, over all devices and ranks
  std::int64_t nproc = 0;           // ranks that mode ddp starts; by default one for each micro-batch
  std::string device = "cpu";       // or cuda, cuda:N
  std::string loss = "outside";     // of dp: outside (on the gathered outputs) or replica
  std::string backend = "shm";      // of ddp: shm, gloo, mpi or nccl
  std::string order = "canonical";  // of ddp: canonical; or arrival, own-first (other bits each time, on each rank)
  std::string comm_hook = "none";   // of ddp: none, fp16, bf16 or powersgd
  bool cuda_graph = false;          // steps as replays of one that was recorded
  std::string inject = {};          // of ddp: a fault on purpose (inject.h)
  double timeout = 60;              // of ddp: seconds that a rank waits for the others
  bool quiet = false;
  std::string trace = {};   // file for Chrome's trace, where one is wanted
  std::string report = {};  // ... for the report
  bool explain = false;     // says what happens in the last step, in words
  bool trace_kernels = false;
  std::string timeline = {};  // ... for what both are made of; instead of them

  std::string command = {};                 // what was typed, to be typed again
  std::vector<std::string> arguments = {};  // the same without the program's name
};

// The variable in which ranks find what their user has typed to start them.
inline constexpr const char* kTypedCommand = "LOCKSTEP_SAMPLE_COMMAND";

// Fills in what the command line says. Prints and exits for --help and for a command line that is wrong.
Options parse(int argc, char** argv, Options defaults);

}  // namespace samples
