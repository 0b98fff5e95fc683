// What `optimize-model --tune` asks of the library: the algorithms that the GPU at hand has for a node.
//
// Each function calls `answer` once, with one algorithm a line, or with what went wrong. 0: success.

#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "ortplugin/ops/conv/conv_cuda.h"
#include "ortplugin/ops/conv_grad/grad_engines.h"

namespace ortplugin {
namespace {

// Reads what ortplugin/ops/list_algorithms.py wrote.
class Numbers {
 public:
  Numbers(const int64_t* numbers, size_t count) : at_(numbers), end_(numbers + count) {}
  int64_t Next() {
    if (at_ == end_) Fail("the description of the node ends early");
    return *at_++;
  }
  Shape List() {
    Shape list;
    for (int64_t left = Next(); left > 0; --left) list.push_back(Next());
    return list;
  }
  std::vector<Shape> Lists() {
    std::vector<Shape> lists;
    for (int64_t left = Next(); left > 0; --left) lists.push_back(List());
    return lists;
  }

 private:
  const int64_t *at_, *end_;
};

template <typename List>
int Answer(void (*answer)(const char*), const List& list) {
  try {
    std::string lines;
    for (const std::string& each : list()) lines += each + "\n";
    answer(lines.c_str());
    return 0;
  } catch (const std::exception& error) {
    answer(error.what());
    return 1;
  }
}

}  // namespace
}  // namespace ortplugin

// `numbers`: device, transposed, auto_pad (as enum AutoPad), channels last, whether X has them first, whether
// the outputs have, groups, allow_tf32, whether W is constant; then lists, each after its length: kernel_shape,
// strides, dilations, pads, output_padding, output_shape; then the number of inputs and their shapes.
extern "C" __attribute__((visibility("default"))) int OrtPluginListConvAlgorithms(const int64_t* numbers, size_t count,
                                                                                  const char* program,
                                                                                  void (*answer)(const char*)) {
  using namespace ortplugin;
  return Answer(answer, [&] {
    Numbers from(numbers, count);
    const int device = static_cast<int>(from.Next());
    ConvNode node;
    node.attributes.transposed = from.Next() != 0;
    node.attributes.auto_pad = static_cast<AutoPad>(from.Next());
    node.attributes.channels_last = from.Next() != 0;
    node.attributes.x_channels_first = from.Next() != 0;
    node.attributes.y_channels_first = from.Next() != 0;
    node.attributes.groups = from.Next();
    node.allow_tf32 = from.Next() != 0;
    node.constant_weights = from.Next() != 0;
    for (Shape* list : {&node.attributes.kernel_shape, &node.attributes.strides, &node.attributes.dilations,
                        &node.attributes.pads, &node.attributes.output_padding, &node.attributes.output_shape})
      *list = from.List();
    const std::vector<Shape> shapes = from.Lists();
    node.program = std::make_shared<const Program>(ParseEpilogue(program));
    return ListConvAlgorithms(node.Fit(shapes), cuda::Device(device));
  });
}

// `numbers`: device, whether dX, dW, dB and dZ are wanted, whether X and W are given, transposed, channels last,
// allow_tf32, groups, the number of weight_dtype among float16, bfloat16, float and double; then lists, each after its
// length: kernel_shape, strides, dilations, pads before, pads behind, output_padding; then the number of inputs and
// their shapes. A line of the answer is "attribute=algorithm".
extern "C" __attribute__((visibility("default"))) int OrtPluginListConvGradAlgorithms(const int64_t* numbers,
                                                                                      size_t count, const char* program,
                                                                                      void (*answer)(const char*)) {
  using namespace ortplugin;
  return Answer(answer, [&] {
    constexpr DType kWeightTypes[] = {DType::kFloat16, DType::kBFloat16, DType::kFloat, DType::kDouble};
    Numbers from(numbers, count);
    const int device = static_cast<int>(from.Next());
    GradNode node{};
    for (bool* each : {&node.wants_x, &node.wants_w, &node.wants_b, &node.wants_z, &node.has_x, &node.has_w,
                       &node.transposed, &node.channels_last, &node.allow_tf32})
      *each = from.Next() != 0;
    node.group = from.Next();
    node.weight_dtype = kWeightTypes[from.Next()];
    for (Shape* list :
         {&node.kernel, &node.strides, &node.dilations, &node.pads_begin, &node.pads_end, &node.output_padding})
      *list = from.List();
    const std::vector<Shape> shapes = from.Lists();
    node.text = program;
    node.program = Program::Parse(program);
    return ListGradAlgorithms(node, shapes, cuda::Device(device));
  });
}
