#include "ortplugin/runtime/ort/node_text.h"

#include <charconv>
#include <sstream>

#include "ortplugin/runtime/text.h"

namespace ortplugin {

static std::vector<int64_t> Integers(const std::string& text) {
  std::istringstream words(text);
  std::vector<int64_t> integers;
  for (std::string word; words >> word;) {
    int64_t integer = 0;
    const std::from_chars_result result = std::from_chars(word.data(), word.data() + word.size(), integer);
    if (result.ec != std::errc() || result.ptr != word.data() + word.size()) Fail(Quoted(word), " is no integer");
    integers.push_back(integer);
  }
  return integers;
}

NodeText::NodeText(const std::string& text) {
  std::istringstream lines(text);
  std::getline(lines, op_);
  for (std::string line; std::getline(lines, line);) {
    const bool is_input = line[0] == '[';
    const size_t split = line.find(is_input ? ']' : '=');
    if (split == std::string::npos) Fail(Quoted(line), " is neither an attribute nor a shape");
    if (is_input) {
      shapes_.push_back(Integers(line.substr(1, split - 1)));
      constant_.push_back(line.substr(split + 1) == " constant");
    } else {
      attributes_[line.substr(0, split)] = line.substr(split + 1);
    }
  }
}

std::string NodeText::string_attribute(const char* name) const {
  const auto found = attributes_.find(name);
  if (found == attributes_.end()) Fail("the attribute '", name, "' is missing");
  return found->second;
}

std::string NodeText::string_attribute(const char* name, const char* absent) const {
  return attributes_.count(name) == 0 ? absent : string_attribute(name);
}

int64_t NodeText::int_attribute(const char* name, int64_t absent) const {
  if (attributes_.count(name) == 0) return absent;
  const std::vector<int64_t> integers = ints_attribute(name);
  if (integers.size() != 1) Fail("the attribute '", name, "' is no integer");
  return integers[0];
}

float NodeText::float_attribute(const char* name, float absent) const {
  return attributes_.count(name) == 0 ? absent : std::stof(string_attribute(name));
}

std::vector<int64_t> NodeText::ints_attribute(const char* name) const { return Integers(string_attribute(name, "")); }

}  // namespace ortplugin
