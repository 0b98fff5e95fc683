#include "ortplugin/ops/conv/conv.h"

namespace ortplugin {

std::unique_ptr<Kernel> CreateCudaConv(const NodeInfo& info) {
  const ConvNode node(info, info.string_attribute("program"));
  Fail("this build of ortplugin has no FusedConv for CUDA; run the model on the CPU provider");
}

}  // namespace ortplugin
