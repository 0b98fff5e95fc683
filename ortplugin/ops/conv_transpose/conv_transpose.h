// FusedConvTranspose: a transposed convolution with a pointwise program as its epilogue. The specification is in
// ortplugin/ops/conv_transpose/__init__.py.
#pragma once

#include <memory>

#include "ortplugin/runtime/ort/ort.h"

namespace ortplugin {

extern const Operator kFusedConvTranspose;

std::unique_ptr<Kernel> CreateCpuConvTranspose(const NodeInfo& info);
std::unique_ptr<Kernel> CreateCudaConvTranspose(const NodeInfo& info);

}  // namespace ortplugin
