// Reads any text: the result is a report of the runs in it, or an error with a short text.
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

#include "tests/fuzz/watched_input.h"
#include "tools/report/chrome_trace.h"
#include "tools/report/report.h"

void fuzz_input(const std::uint8_t* data, std::size_t size) {
  try {
    const auto traces = report::parse_chrome_trace(std::as_bytes(std::span(data, size)), "fuzz");
    const std::string page = report::page_of({.title = "fuzz", .runs = report::runs_of(traces, "fuzz")});
    if (page.find("{{data}}") != std::string::npos) std::abort();
  } catch (const lockstep::IoError& error) {
    if (std::string(error.what()).size() > 400) std::abort();
  }
}
