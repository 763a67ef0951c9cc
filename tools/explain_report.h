// lockstep-explain report: the report page from the traces of any program.
#pragma once

#include <string>
#include <vector>

struct ReportQuestion {
  std::vector<std::string> traces = {};  // files of lockstep::write_chrome_trace
  std::string out = "report.html";
  std::string title = {};  // empty: the name of the first file
};

// Writes the page and returns a text for the terminal: what limits a step of each run. Throws lockstep::IoError.
std::string make_report(const ReportQuestion& question);
