// The operation graph that cuDNN is given for a problem.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "ortplugin/runtime/cudnn/cudnn.h"
#include "ortplugin/runtime/cudnn/library.h"
#include "ortplugin/runtime/cudnn/pointwise.h"

namespace ortplugin::cudnn {

// The convolution and its epilogue; plans of it keep it.
class Graph {
 public:
  // Throws Refused where the epilogue can't be expressed. `handle` is null without a device.
  Graph(const Problem& problem, abi::Handle handle);

  const Descriptor& descriptor() const { return graph_; }
  const Problem& problem() const { return problem_; }
  bool HasEpilogue() const;

  // The tensors that a run gives addresses for, and these addresses.
  const std::vector<int64_t>& ids() const { return ids_; }
  std::vector<const void*> Addresses(const Arguments& arguments) const;

 private:
  using Operand = PointwiseOperand;
  struct Scalar {
    float narrow;
    double wide;
  };
  struct Made {
    size_t descriptor;  // in descriptors_
    std::vector<int64_t> dims;
  };

  void PutBiasLast();
  size_t AddTensor(int64_t id, const Tensor& tensor, DType dtype, bool is_virtual = false, bool is_scalar = false);
  void AddConvolution();
  void AddPointwise(size_t index);
  const Made& TensorOf(const Operand& operand);
  void AddOperation(Descriptor operation);

  const Problem problem_;  // with at least two spatial dimensions
  DType math_;  // float or double
  PointwiseGraph pointwise_;
  std::deque<Descriptor> descriptors_;  // all but the graph, which refers to them
  std::vector<abi::RawDescriptor> operations_;
  std::vector<int64_t> ids_;
  std::vector<Scalar> scalars_;
  std::map<std::pair<Operand::Kind, uint32_t>, Made> made_;
  Descriptor graph_{abi::kOperationGraph};
};

}  // namespace ortplugin::cudnn
