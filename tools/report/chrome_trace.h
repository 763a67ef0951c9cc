// Reads the files that lockstep::write_chrome_trace writes.
#pragma once

#include <lockstep/lockstep.h>

#include <span>
#include <string>
#include <vector>

namespace report {

// The traces in a file, in its order. Times count from the file's first event. Throws lockstep::IoError if the file
// cannot be read, or was not written by write_chrome_trace.
std::vector<lockstep::Trace> read_chrome_trace(const std::string& path);
// The same from text; error messages use `name` as the file name.
std::vector<lockstep::Trace> parse_chrome_trace(std::span<const std::byte> text, const std::string& name);

}  // namespace report
