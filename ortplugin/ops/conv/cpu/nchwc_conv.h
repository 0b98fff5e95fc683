// NCHWc convolution on the CPU: ONNX Runtime's own, in blocks of channels (the domain com.microsoft.nchwc), which its
// optimizer makes of Conv at the default level. Many times faster than Conv where it is depthwise, by a fifth
// elsewhere.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "ortplugin/ops/conv/cpu/fused_activation.h"
#include "ortplugin/ops/conv/geometry.h"
#include "ortplugin/runtime/host_memory.h"
#include "ortplugin/runtime/ort/ort.h"
#include "ortplugin/runtime/ort/standard_operator.h"

namespace ortplugin {

class NchwcConv {
 public:
  // `weights`: their shape, channels first. `taken`: the activation, and whether there is a bias; no sum.
  NchwcConv(const NodeInfo& info, const ConvAttributes& attributes, const Shape& weights, const FusedActivation& taken);

  // Whether weights of this shape, channels first, have a blocked form: two spatial dimensions, and either one group or
  // as many as channels in and out. The padding must not depend on the sizes.
  static bool Takes(const ConvAttributes& attributes, const Shape& weights);
  // Whether it is the faster way for these sizes.
  static bool Pays(const Contraction& shape);

  // Whether ONNX Runtime has blocks on this machine. Only then:
  bool IsHere(ortplugin::Run& run, const HostScratch& scratch) const { return Block(run, kept_.info(), scratch) > 0; }
  // The convolution with what it takes of the program. `x` and `value` are in the node's layout. `weights`: float,
  // channels first, the same in every run; they are put in blocks in the first. `bias`: M numbers, or null.
  void Run(ortplugin::Run& run, const HostScratch& scratch, const Contraction& shape, const float* x,
    const float* weights, const float* bias, float* value) const;

 private:
  struct Operators {
    std::unique_ptr<StandardOperator> into, convolution, back;
    HostVector<float> weights;
  };
  void RunBlocks(ortplugin::Run& run, const HostScratch& scratch, const Operators& operators, const Contraction& shape,
    int64_t block, const float* x, const float* bias, float* value) const;
  const Operators& Make(int64_t block, const float* weights) const;
  static int64_t Block(ortplugin::Run& run, const NodeInfo& info, const HostScratch& scratch);
  static bool IsRight(ortplugin::Run& run, const NodeInfo& info, const HostScratch& scratch, int64_t block,
    int64_t channels, int64_t groups);

  KeptNodeInfo kept_;
  ConvAttributes attributes_;
  Shape shape_;
  bool has_bias_;
  std::string activation_;
  std::vector<float> activation_params_;
  mutable std::mutex mutex_;
  mutable std::unique_ptr<Operators> made_;
};

}  // namespace ortplugin
