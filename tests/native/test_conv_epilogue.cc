// What ONNX Runtime's own convolutions take of a program, and what is left of it; sizes and layouts of convolutions.

#include "ortplugin/ops/conv/cpu/fused_activation.h"
#include "ortplugin/ops/conv/cpu/nchwc_conv.h"
#include "ortplugin/ops/conv/geometry.h"
#include "tests/native/check.h"

using namespace ortplugin;

namespace {

TensorType Float(const Shape& shape) { return {ort::kFloat, true, shape, std::vector<std::string>(shape.size())}; }

FusedActivation Take(const char* text, const std::vector<Shape>& operands, bool sum = true, bool activation = true) {
  std::vector<TensorType> types;
  for (const Shape& shape : operands) types.push_back(Float(shape));
  return TakeFusedActivation(Program::Parse(text), types, 2, false, sum, activation);
}

void TestTaken() {
  const Shape bias{8, 1, 1}, full{2, 8, 9, 9};
  FusedActivation all =
      Take("(float c, float b, float r) => (float y) { a = Add(c, b) s = Add(r, a) y = Clip(s, 0, 6) }", {bias, full});
  CHECK(all.bias == size_t{1} && all.sum == size_t{2} && all.activation == "Clip");
  CHECK((all.activation_params == std::vector<float>{0, 6}));
  CHECK(all.rest.statements().empty() && all.rest.results()[0] == all.rest.parameters()[0]);

  // What follows is computed from the value as it then is, and statements keep their numbers.
  const FusedActivation silu =
      Take("(float c, float b) => (float y) { a = Add(c, b) s = Sigmoid(a) y = Mul(a, s) }", {bias});
  CHECK(silu.bias && !silu.sum && silu.activation.empty());
  CHECK_WITH(silu.rest.ToString().find("s = Sigmoid(c)\n  y = Mul(c, s)\n") != std::string::npos, silu.rest.ToString());
  CHECK(silu.rest.value(silu.rest.results()[0]).index == 1);

  const FusedActivation leaky = Take("(float c) => (float y) { a = LeakyRelu<alpha=0.25>(c) y = Neg(a) }", {});
  CHECK(leaky.activation == "LeakyRelu" && leaky.activation_params == std::vector<float>{0.25f});
  CHECK(leaky.rest.statements().size() == 1);
}

void TestLeft() {
  const Shape bias{8, 1, 1}, full{2, 8, 9, 9};
  const auto nothing = [](const FusedActivation& fused) {
    return !fused.bias && !fused.sum && fused.activation.empty();
  };
  CHECK(nothing(Take("(float c, float b) => (float y, float c) { y = Add(c, b) }", {bias})));
  CHECK(nothing(Take("(float c, float b) => (float y) { a = Add(c, b) y = Mul(a, c) }", {bias})));
  CHECK(nothing(Take("(float c) => (float y) { y = Add(c, c) }", {})));
  CHECK(nothing(Take("(float c) => (float y) { y = Add(c, 1) }", {})));
  CHECK(nothing(Take("(float c, float b) => (float y) { y = Sub(c, b) }", {bias})));
  CHECK(nothing(Take("(float c, float h) => (float y) { y = Clip(c, 0, h) }", {{}})));
  CHECK(nothing(Take("(float c) => (float y) { y = Clip(c, 1, 0) }", {})));
  CHECK(nothing(Take("(float c) => (float y) { y = Clip(c, nan, 0) }", {})));
  CHECK(nothing(Take("(float c, float s) => (float y) { y = Clip(s, -1, c) }", {full})));
  CHECK(nothing(Take("(float c, float r) => (float y) { s = Add(c, r) y = Relu(s) }", {full}, false)));
  // Activations end it: nothing is added after them, and a bias is not added after a residual.
  CHECK(!Take("(float c, float b) => (float y) { a = Relu(c) y = Add(a, b) }", {bias}).bias);
  const FusedActivation late =
      Take("(float c, float r, float b) => (float y) { s = Add(c, r) y = Add(s, b) }", {full, bias});
  CHECK(late.sum && !late.bias && late.rest.statements().size() == 1);
  CHECK(Take("(float c, float b) => (float y) { a = Add(c, b) y = Relu(a) }", {bias}, true, false).activation.empty());
  // An operand whose shape is not known.
  const Program program = Program::Parse("(float c, float b) => (float y) { y = Add(c, b) }");
  CHECK(!TakeFusedActivation(program, {TensorType{}}, 2, false, true, true).bias);
}

void TestPerChannel() {
  CHECK(IsPerChannel({8, 1, 1}, 2, false, 8));
  CHECK(IsPerChannel({1, 8, 1, 1}, 2, false, 8));
  CHECK(IsPerChannel({8}, 2, true, 8));
  CHECK(IsPerChannel({1, 1, 1, 8}, 2, true, 8));
  CHECK(IsPerChannel({-1, 1, 1}, 2, false, 8));
  CHECK(!IsPerChannel({8}, 2, false, 8));
  CHECK(!IsPerChannel({8, 1, 1}, 2, true, 8));
  CHECK(!IsPerChannel({1, 1, 1}, 2, false, 8));
  CHECK(!IsPerChannel({2, 8, 1, 1}, 2, false, 8));
  CHECK(!IsPerChannel({}, 2, true, 8));
}

void TestGeometry() {
  ConvAttributes attributes{};
  attributes.groups = 2;
  attributes.strides = {2, 1};
  attributes.pads = {1, 0, 2, 1};
  Contraction shape = FitConv(attributes, {2, 6, 9, 11}, {8, 3, 3, 3});
  CHECK(shape.result() == Shape{2, 8, 5, 10} && shape.pads() == attributes.pads && shape.filters == 8);
  attributes.channels_last = true;
  shape = FitConv(attributes, {2, 9, 11, 6}, {8, 3, 3, 3});
  CHECK(shape.result() == Shape{2, 5, 10, 8} && shape.x_first() == Shape{2, 6, 9, 11});
  CHECK(shape.w() == Shape{8, 3, 3, 3} && shape.x() == Shape{2, 9, 11, 6});
  CHECK(ChannelsFirst({2, 4, 5, 3}) == Shape{2, 3, 4, 5} && ChannelsLast({2, 3, 4, 5}) == Shape{2, 4, 5, 3});

  ConvAttributes transposed{};
  transposed.transposed = true;
  transposed.groups = 3;
  transposed.strides = {2};
  transposed.output_padding = {1};
  CHECK(FitConv(transposed, {2, 3, 7}, {3, 4, 3}).result() == Shape{2, 12, 16});
  transposed.output_shape = {13};
  shape = FitConv(transposed, {2, 3, 7}, {3, 4, 3});
  CHECK(shape.result() == Shape{2, 12, 13} && shape.pads() == Shape{2, 1});
}

void TestBlocks() {
  const auto shape = [](int64_t channels, int64_t filters, int64_t groups, int64_t kernel, int64_t size) {
    ConvAttributes attributes{};
    attributes.groups = groups;
    return FitConv(attributes, {1, channels, size, size}, {filters, channels / groups, kernel, kernel});
  };
  CHECK(NchwcConv::Pays(shape(64, 64, 1, 3, 56)));
  CHECK(NchwcConv::Pays(shape(96, 96, 96, 3, 56)));
  CHECK(NchwcConv::Pays(shape(3, 64, 1, 7, 224)));
  CHECK(!NchwcConv::Pays(shape(64, 256, 1, 1, 56)));  // moving it costs more
  CHECK(!NchwcConv::Pays(shape(66, 64, 1, 3, 56)));   // no multiple of 4
  CHECK(!NchwcConv::Pays(shape(64, 8, 1, 3, 56)));    // half of each block would be empty
  ConvAttributes attributes{};
  attributes.groups = 2;
  CHECK(!NchwcConv::Takes(attributes, {8, 4, 3, 3}));
  attributes.groups = 8;
  CHECK(NchwcConv::Takes(attributes, {8, 1, 3, 3}) && !NchwcConv::Takes(attributes, {16, 1, 3, 3}));
  CHECK(!NchwcConv::Takes(attributes, {8, 1, 3}));
  attributes.auto_pad = AutoPad::kSameUpper;
  CHECK(!NchwcConv::Takes(attributes, {8, 1, 3, 3}));
}

}  // namespace

int main() {
  TestTaken();
  TestLeft();
  TestPerChannel();
  TestGeometry();
  TestBlocks();
  return test::Summary();
}
