// The beginning of a program that ONNX Runtime's CPU kernels of convolutions run while their value is in the L1 cache:
// a bias, the sum with a tensor of the value's shape, and the activation Relu, LeakyRelu or Clip.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ortplugin/runtime/ort/ort.h"
#include "ortplugin/runtime/program/program.h"

namespace ortplugin {

struct FusedActivation {
  std::optional<size_t> bias, sum;  // parameters of the program
  std::string activation;  // "" for none
  std::vector<float> activation_params;
  Program rest;  // what is left to do, with the same parameters; its value has all of that done
};

// The longest such beginning of a program. `operands`: the types of its parameters but the first; one whose shape is
// not known is left to the rest. `takes_sum`, `takes_activation`: whether the kernel does.
FusedActivation TakeFusedActivation(const Program& program, const TensorTypes& operands, size_t spatial,
  bool channels_last, bool takes_sum, bool takes_activation);

// Whether a shape is that of one number a channel: [M] with channels last, [M, 1, ..] with channels first, ones before
// either. M is not compared where it is -1.
bool IsPerChannel(const Shape& shape, size_t spatial, bool channels_last, int64_t channels);

}  // namespace ortplugin
