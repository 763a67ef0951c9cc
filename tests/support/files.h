// Files as text.
#pragma once

#include <fstream>
#include <sstream>
#include <string>

// Returns the bytes of a file, and an empty text if it cannot be read. The standard library copies them: an iterator
// would call a function of this program for each byte, which takes long without optimisation.
inline std::string content_of_file(const std::string& path) {
  std::ostringstream bytes;
  bytes << std::ifstream(path, std::ios::binary).rdbuf();
  return bytes.str();
}
