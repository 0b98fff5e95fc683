// What `optimize-model --tune` asks of the library: the algorithms that the GPU at hand has for a convolution.

#include <algorithm>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "ortplugin/ops/conv/conv_cuda.h"

namespace ortplugin {
namespace {

// Reads what ortplugin/ops/conv/algorithms.py wrote.
class Numbers {
 public:
  Numbers(const int64_t* numbers, size_t count) : at_(numbers), end_(numbers + count) {}
  int64_t Next() {
    if (at_ == end_) Fail("the description of the convolution ends early");
    return *at_++;
  }
  Shape List() {
    Shape list;
    for (int64_t left = Next(); left > 0; --left) list.push_back(Next());
    return list;
  }

 private:
  const int64_t *at_, *end_;
};

}  // namespace
}  // namespace ortplugin

// Writes one algorithm a line into `text`, or what went wrong, cut off at `capacity` - 1 characters. 0: success.
// `numbers`: device, transposed, auto_pad (as enum AutoPad), channels last, whether X has them first, whether
// the outputs have, groups, allow_tf32, whether W is constant; then lists, each after its length: kernel_shape,
// strides, dilations, pads, output_padding, output_shape; then the number of inputs and their shapes.
extern "C" __attribute__((visibility("default"))) int OrtPluginListConvAlgorithms(const int64_t* numbers, size_t count,
                                                                                  const char* program, char* text,
                                                                                  size_t capacity) {
  using namespace ortplugin;
  const auto answer = [&](const std::string& words, int code) {
    const size_t length = std::min(words.size(), capacity - 1);
    std::memcpy(text, words.data(), length);
    text[length] = '\0';
    return code;
  };
  try {
    Numbers from(numbers, count);
    const int device = static_cast<int>(from.Next());
    ConvCase the{};
    the.attributes.transposed = from.Next() != 0;
    the.attributes.auto_pad = static_cast<AutoPad>(from.Next());
    the.attributes.channels_last = from.Next() != 0;
    the.attributes.turns_input = from.Next() != 0;
    the.attributes.turns_output = from.Next() != 0;
    the.attributes.groups = from.Next();
    the.allow_tf32 = from.Next() != 0;
    the.constant_weights = from.Next() != 0;
    for (Shape* list : {&the.attributes.kernel_shape, &the.attributes.strides, &the.attributes.dilations,
                        &the.attributes.pads, &the.attributes.output_padding, &the.attributes.output_shape})
      *list = from.List();
    for (int64_t left = from.Next(); left > 0; --left) the.shapes.push_back(from.List());
    the.program = std::make_shared<const Program>(ParseEpilogue(program));
    std::string lines;
    for (const std::string& each : ListConvAlgorithms(the, cuda::Device(device))) lines += each + "\n";
    return answer(lines, 0);
  } catch (const std::exception& error) {
    return answer(error.what(), 1);
  }
}
