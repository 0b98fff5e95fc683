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

// Throws an Error whose message is its arguments written one after another.
template <typename... Parts>
[[noreturn]] void Fail(const Parts&... parts) {
  std::ostringstream message;
  (message << ... << parts);
  throw Error(message.str());
}

}  // namespace ortplugin
