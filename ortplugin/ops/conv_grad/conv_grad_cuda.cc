#include "ortplugin/ops/conv_grad/conv_grad.h"

namespace ortplugin {

std::unique_ptr<Kernel> CreateCudaConvGrad(const NodeInfo& info) {
  (void)info;
  Fail("this build of ortplugin has no ConvGrad for CUDA; run the model on the CPU provider");
}

}  // namespace ortplugin
