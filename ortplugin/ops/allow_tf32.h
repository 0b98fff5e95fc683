// The attribute `allow_tf32`: whether float32 products may round their factors to 10 bits of mantissa on a GPU.
#pragma once

#include <optional>

#include "ortplugin/runtime/ort/ort.h"

namespace ortplugin {

// Empty where the node leaves it to the session. Throws Error where it is neither 0 nor 1.
template <typename Node>
std::optional<bool> ReadAllowTf32(const Node& node) {
  const int64_t value = node.int_attribute("allow_tf32", 0);
  if (value != 0 && value != 1) Fail("allow_tf32 is ", value, "; it must be 0 or 1");
  const bool is_absent = node.int_attribute("allow_tf32", 1) != value;
  return is_absent ? std::nullopt : std::optional<bool>(value == 1);
}

}  // namespace ortplugin
