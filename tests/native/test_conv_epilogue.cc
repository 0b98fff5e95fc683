// What ONNX Runtime's own convolutions take of a program, and what is left of it; which are in blocks of channels.

#include "ortplugin/ops/conv/cpu/fused_activation.h"
#include "ortplugin/ops/conv/cpu/nchwc_conv.h"
#include "ortplugin/ops/conv/geometry.h"
#include "tests/native/check.h"

using namespace ortplugin;

namespace {

TensorType Float(const Shape& shape) { return {ort::kFloat, true, shape, std::vector<std::string>(shape.size())}; }

FusedActivation Take(const char* text, const Shapes& operands, bool sum = true, bool activation = true) {
  TensorTypes types;
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
  CHECK(silu.rest.result(0).index == 1);

  const FusedActivation leaky = Take("(float c) => (float y) { a = LeakyRelu<alpha=0.25>(c) y = Neg(a) }", {});
  CHECK(leaky.activation == "LeakyRelu" && leaky.activation_params == std::vector<float>{0.25f});
  CHECK(leaky.rest.statements().size() == 1);
}

void TestLeft() {
  const Shape bias{8, 1, 1}, full{2, 8, 9, 9};
  const std::pair<const char*, Shapes> nothing[] = {
    {"(float c, float b) => (float y, float c) { y = Add(c, b) }", {bias}},
    {"(float c, float b) => (float y) { a = Add(c, b) y = Mul(a, c) }", {bias}},
    {"(float c) => (float y) { y = Add(c, c) }", {}},
    {"(float c) => (float y) { y = Add(c, 1) }", {}},
    {"(float c, float b) => (float y) { y = Sub(c, b) }", {bias}},
    {"(float c, float h) => (float y) { y = Clip(c, 0, h) }", {{}}},
    {"(float c) => (float y) { y = Clip(c, 1, 0) }", {}},
    {"(float c) => (float y) { y = Clip(c, nan, 0) }", {}},
    {"(float c, float s) => (float y) { y = Clip(s, -1, c) }", {full}},
  };
  for (const auto& [program, operands] : nothing) {
    const FusedActivation fused = Take(program, operands);
    CHECK_WITH(!fused.bias && !fused.sum && fused.activation.empty(), program);
  }
  const FusedActivation no_sum = Take("(float c, float r) => (float y) { s = Add(c, r) y = Relu(s) }", {full}, false);
  CHECK(!no_sum.bias && !no_sum.sum && no_sum.activation.empty());
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
  for (const Shape& shape : {Shape{8, 1, 1}, {1, 8, 1, 1}, {-1, 1, 1}}) CHECK(IsPerChannel(shape, 2, false, 8));
  for (const Shape& shape : {Shape{8}, {1, 1, 1}, {2, 8, 1, 1}}) CHECK(!IsPerChannel(shape, 2, false, 8));
  for (const Shape& shape : {Shape{8}, {1, 1, 1, 8}}) CHECK(IsPerChannel(shape, 2, true, 8));
  for (const Shape& shape : {Shape{8, 1, 1}, {}}) CHECK(!IsPerChannel(shape, 2, true, 8));
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
  CHECK(!NchwcConv::Pays(shape(66, 64, 1, 3, 56)));  // no multiple of 4
  CHECK(!NchwcConv::Pays(shape(64, 8, 1, 3, 56)));  // half of each block would be empty
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
  TestBlocks();
  return test::Summary();
}
