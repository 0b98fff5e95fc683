// std::regex, which takes seconds to compile.
#include "tests/native/kernel_remarks.h"

#include <regex>

namespace test {

std::vector<std::string> Matches(const std::string& text, const std::string& pattern) {
  const std::regex compiled(pattern);
  std::vector<std::string> groups;
  for (std::sregex_iterator it(text.begin(), text.end(), compiled), end; it != end; ++it)
    groups.insert(groups.end(), it->size() > 1 ? std::next(it->begin()) : it->begin(), it->end());
  return groups;
}

std::string Typed(const std::string& text, const std::string& dtype) {
  return std::regex_replace(text, std::regex("\\bT\\b"), dtype);
}

}  // namespace test
