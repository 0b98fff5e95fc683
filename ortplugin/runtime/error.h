// The one exception of the library. It is thrown inside and turned into an OrtStatus at the C boundary (ort.h).
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace ortplugin {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The parts written one after another.
template <typename... Parts>
std::string Joined(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

// Throws an Error with them as its message.
template <typename... Parts>
[[noreturn]] void Fail(const Parts&... parts) {
  throw Error(Joined(parts...));
}

}  // namespace ortplugin
