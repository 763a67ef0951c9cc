#include "support/program.h"

#include <exception>

#include "support/compare.h"
#include "support/inject.h"
#include "support/ranks.h"
#include "support/step.h"
#include "support/stop.h"
#include "support/strategy.h"

namespace samples {

int run_program(int argc, char** argv, const Options& defaults, Train train) {
  const Options options = parse(argc, argv, defaults);
  try {
    if (options.strategy == "compare") return compare(options, train);
    if (has_ranks(options.strategy) && !is_rank()) return start_ranks(options);
    install_stop_handler();
    return train(options);
  } catch (const DroppedOut&) {
    return 0;
  } catch (const std::exception& error) {
    report_error(options.program, error.what());
    return 1;
  }
}

}  // namespace samples
