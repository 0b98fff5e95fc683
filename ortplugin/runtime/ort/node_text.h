// A node outside of a session, as ortplugin/ops/list_algorithms.py writes it: its operator on the first line, then each
// attribute, "strides=2 2", and the shape of each input, "[8 9 9 16]", behind it " constant" if it is an initializer.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ortplugin/runtime/ort/ort.h"

namespace ortplugin {

class NodeText {
 public:
  // Throws Error where it is no such text.
  explicit NodeText(const std::string& text);

  const std::string& op() const { return op_; }
  const Shapes& shapes() const { return shapes_; }
  const std::vector<bool>& constant() const { return constant_; }

  // As NodeInfo has them.
  std::string string_attribute(const char* name) const;
  std::string string_attribute(const char* name, const char* absent) const;
  int64_t int_attribute(const char* name, int64_t absent) const;
  std::vector<int64_t> ints_attribute(const char* name) const;
  float float_attribute(const char* name, float absent) const;
  size_t input_count() const { return shapes_.size(); }
  TensorType input(size_t) const { return {}; }  // of any type

 private:
  std::string op_;
  std::map<std::string, std::string> attributes_;
  Shapes shapes_;
  std::vector<bool> constant_;
};

}  // namespace ortplugin
