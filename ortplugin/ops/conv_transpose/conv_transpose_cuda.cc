#include "ortplugin/ops/conv/conv_cuda.h"
#include "ortplugin/ops/conv_transpose/conv_transpose.h"

namespace ortplugin {

std::unique_ptr<Kernel> CreateCudaConvTranspose(const NodeInfo& info) { return CreateCudaConvolution(info, true); }

}  // namespace ortplugin
