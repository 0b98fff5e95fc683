#include "ortplugin/ops/conv/cpu/nchwc_conv.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "ortplugin/runtime/round_up.h"

namespace ortplugin {
namespace {

constexpr const char* kDomain = "com.microsoft.nchwc";
constexpr int64_t kReordered = 4;  // what the number of channels must be a multiple of to be put in blocks

bool IsDepthwise(int64_t groups, int64_t channels, int64_t filters) {
  return groups > 1 && groups == channels && groups == filters;
}

// X of fewer channels than a block is read as it is.
bool IsDirect(const Contraction& shape, int64_t block) { return shape.groups == 1 && shape.channels < block; }

// [M/block][C/block][kernel][C in block][M in block], or without the blocks of C where `whole_rows` is set: X is then
// read as it is, or has one channel for each group.
HostVector<float> Blocks(const float* from, const Shape& shape, int64_t block, bool whole_rows) {
  const int64_t filters = shape[0], channels = shape[1], taps = shape[2] * shape[3];
  const int64_t depth = whole_rows ? 1 : block, columns = RoundUp(channels, depth);
  HostVector<float> to(size_t(RoundUp(filters, block) * columns * taps), 0.0f);
  for (int64_t m = 0; m < filters; ++m)
    for (int64_t c = 0; c < channels; ++c)
      for (int64_t tap = 0; tap < taps; ++tap) {
        const int64_t outer = (m / block * (columns / depth) + c / depth) * taps + tap;
        to[size_t((outer * depth + c % depth) * block + m % block)] = from[(m * channels + c) * taps + tap];
      }
  return to;
}

Tensor Floats(const void* data, const Shape& shape) { return {data, ort::kFloat, shape}; }

}  // namespace

NchwcConv::NchwcConv(
  const NodeInfo& info, const ConvAttributes& attributes, const Shape& weights, const FusedActivation& taken)
  : kept_(info),
    attributes_(attributes),
    shape_(weights),
    has_bias_(taken.bias.has_value()),
    activation_(taken.activation),
    activation_params_(taken.activation_params) {}

bool NchwcConv::Takes(const ConvAttributes& attributes, const Shape& weights) {
  const bool is_padded_alike = attributes.auto_pad == AutoPad::kNotSet || attributes.auto_pad == AutoPad::kValid;
  if (attributes.transposed || !is_padded_alike || weights.size() != 4) return false;
  if (std::find(weights.begin(), weights.end(), 0) != weights.end()) return false;
  return attributes.groups == 1 || (weights[1] == 1 && IsDepthwise(attributes.groups, attributes.groups, weights[0]));
}

bool NchwcConv::Pays(const Contraction& shape) {
  const int64_t block = 16;  // the largest there is
  const bool is_direct = IsDirect(shape, block);
  if (is_direct && shape.channels_last && !shape.x_channels_first && shape.channels > 1) return false;
  if (!is_direct && shape.channels % kReordered != 0) return false;
  // No more than a third of the work may be for channels that are not there.
  const double grown = double(RoundUp(shape.filters, block)) / double(shape.filters) *
    (is_direct || shape.groups > 1 ? 1.0 : double(RoundUp(shape.channels, block)) / double(shape.channels));
  if (grown > 4.0 / 3) return false;
  if (shape.groups > 1) return true;
  // With channels last Conv has X and the result transposed, unless it is a GEMM.
  if (shape.channels_last && (shape.x_channels_first || ElementCount(shape.kernel()) > 1)) return true;
  // To put X in blocks and the result out of them takes about what is gained in so many multiply-adds for each element.
  constexpr double kLeastIntensity = 56;
  const double made = double(ElementCount(shape.result()));
  const double read = is_direct ? 0.0 : double(ElementCount(shape.x()));
  const double multiply_adds = made * double(shape.channels * ElementCount(shape.kernel()));
  return multiply_adds > kLeastIntensity * (made + read);
}

void NchwcConv::Run(ortplugin::Run& run, const HostScratch& scratch, const Contraction& shape, const float* x,
  const float* weights, const float* bias, float* value) const {
  const int64_t block = Block(run, kept_.info(), scratch);
  RunBlocks(run, scratch, Make(block, weights), shape, block, x, bias, value);
}

const NchwcConv::Operators& NchwcConv::Make(int64_t block, const float* weights) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (made_ != nullptr) return *made_;
  const NodeInfo info = kept_.info();
  const std::vector<StandardOperator::TypeConstraint> types{{"T", ort::kFloat}};
  const bool is_depthwise = attributes_.groups > 1;
  const int64_t channels_last = attributes_.channels_last ? 1 : 0;
  const int64_t x_channels_last = attributes_.channels_last && !attributes_.x_channels_first ? 1 : 0;
  auto made = std::make_unique<Operators>();
  made->into = std::make_unique<StandardOperator>(info, "ReorderInput", kDomain, 1, types,
    std::vector<StandardOperator::Attribute>{{"channels_last", x_channels_last}}, 1, 1);
  made->back = std::make_unique<StandardOperator>(info, "ReorderOutput", kDomain, 1, types,
    std::vector<StandardOperator::Attribute>{{"channels", shape_[0]}, {"channels_last", channels_last}}, 1, 1);
  std::vector<StandardOperator::Attribute> attributes{
    {"group", is_depthwise ? RoundUp(attributes_.groups, block) : int64_t{1}},
    {"kernel_shape", Shape{shape_[2], shape_[3]}}, {"strides", attributes_.strides},
    {"dilations", attributes_.dilations}, {"pads", attributes_.pads}};
  if (!activation_.empty()) {
    attributes.push_back({"activation", activation_});
    attributes.push_back({"activation_params", activation_params_});
  }
  made->convolution =
    std::make_unique<StandardOperator>(info, "Conv", kDomain, 1, types, attributes, size_t{has_bias_ ? 3u : 2u}, 1);
  made->weights = Blocks(weights, shape_, block, is_depthwise || shape_[1] < block);
  made_ = std::move(made);
  return *made_;
}

void NchwcConv::RunBlocks(ortplugin::Run& run, const HostScratch& scratch, const Operators& operators,
  const Contraction& shape, int64_t block, const float* x, const float* bias, float* value) const {
  Shape into = shape.x_first(), made = shape.result_first();
  made[1] = RoundUp(made[1], block);
  HostScratch::Buffer blocks(nullptr, {&scratch});
  if (!IsDirect(shape, block)) {
    into[1] = RoundUp(into[1], block);
    blocks = scratch.Take(size_t(ElementCount(into)) * sizeof(float));
    operators.into->Run(run, {Floats(x, shape.x())}, {Floats(blocks.get(), into)});
  }
  const int64_t columns = shape.groups > 1 ? 1 : into[1];
  const Shape weights{made[1], columns, shape.windows[0].kernel, shape.windows[1].kernel};
  std::vector<Tensor> given{
    Floats(blocks != nullptr ? blocks.get() : x, into), Floats(operators.weights.data(), weights)};
  std::vector<float> all;  // the bias of the channels that are not there too
  if (bias != nullptr) {
    all.assign(bias, bias + shape.filters);
    all.resize(size_t(made[1]), 0.0f);
    given.push_back(Floats(all.data(), {made[1]}));
  }
  const HostScratch::Buffer result = scratch.Take(size_t(ElementCount(made)) * sizeof(float));
  operators.convolution->Run(run, given, {Floats(result.get(), made)});
  operators.back->Run(run, {Floats(result.get(), made)}, {Floats(value, shape.result())});
}

// The channels of a block on this machine; 0 where ONNX Runtime has none, or where blocks are not what they are taken
// for here: its domain is its own affair, so every kind of convolution is tried once on a small image.
int64_t NchwcConv::Block(ortplugin::Run& run, const NodeInfo& info, const HostScratch& scratch) {
  static auto* const mutex = new std::mutex;
  static auto* const known = new std::map<const ort::Api*, int64_t>;
  {
    const std::lock_guard<std::mutex> lock(*mutex);
    const auto found = known->find(info.api());
    if (found != known->end()) return found->second;
  }
  int64_t block = 0;
  try {
    // Four channels become a block, the rest of which is zeros.
    const StandardOperator into(
      info, "ReorderInput", kDomain, 1, {{"T", ort::kFloat}}, {{"channels_last", int64_t{0}}}, 1, 1);
    for (const int64_t size : {16, 8}) {
      constexpr float kUntouched = -1.0f;
      const std::vector<float> channels(kReordered, 1.0f);
      std::vector<float> blocks(64, kUntouched);
      try {
        into.Run(run, {Floats(channels.data(), {1, kReordered, 1, 1})}, {Floats(blocks.data(), {1, size, 1, 1})});
      } catch (const Error&) {
        continue;  // the shape of another size
      }
      const auto written = std::find(blocks.begin(), blocks.end(), kUntouched) - blocks.begin();
      if (written == size && IsRight(run, info, scratch, size, size, 1) && IsRight(run, info, scratch, size, 3, 1) &&
        IsRight(run, info, scratch, size, 2 * size, 2 * size))
        block = size;
      if (written == size) break;
    }
  } catch (const Error&) {  // an ONNX Runtime without these operators
    block = 0;
  }
  const std::lock_guard<std::mutex> lock(*mutex);
  return known->emplace(info.api(), block).first->second;
}

// Whether the convolution of a small image of whole numbers is exact.
bool NchwcConv::IsRight(ortplugin::Run& run, const NodeInfo& info, const HostScratch& scratch, int64_t block,
  int64_t channels, int64_t groups) {
  constexpr int64_t kSize = 5, kTaps = 3;
  ConvAttributes attributes{};
  attributes.groups = groups;
  attributes.pads = {1, 1, 1, 1};
  const int64_t filters = groups > 1 ? channels : 2 * block;
  const Shape shape{filters, channels / groups, kTaps, kTaps};
  const auto numbers = [](int64_t count) {
    std::vector<float> made;
    for (int64_t i = 0; i < count; ++i) made.push_back(float(i * 7 % 11 - 5));
    return made;
  };
  const std::vector<float> weights = numbers(ElementCount(shape)), x = numbers(channels * kSize * kSize),
                           bias = numbers(filters);
  std::vector<float> y(size_t(filters * kSize * kSize), std::numeric_limits<float>::quiet_NaN());
  const Program program = Program::Parse("(float c, float b) => (float y) { y = Add(c, b) }");
  const NchwcConv conv(info, attributes, shape, {size_t{1}, std::nullopt, "", {}, program});
  const Contraction fit = FitConv(attributes, {1, channels, kSize, kSize}, shape);
  conv.RunBlocks(run, scratch, conv.Make(block, weights.data()), fit, block, x.data(), bias.data(), y.data());
  for (int64_t m = 0; m < filters; ++m)
    for (int64_t at = 0; at < kSize * kSize; ++at) {
      float sum = bias[size_t(m)];
      for (int64_t c = 0; c < shape[1]; ++c)
        for (int64_t tap = 0; tap < kTaps * kTaps; ++tap) {
          const int64_t row = at / kSize + tap / kTaps - 1, column = at % kSize + tap % kTaps - 1;
          if (row < 0 || row >= kSize || column < 0 || column >= kSize) continue;
          const int64_t channel = groups > 1 ? m : c;
          sum += x[size_t((channel * kSize + row) * kSize + column)] *
            weights[size_t((m * shape[1] + c) * kTaps * kTaps + tap)];
        }
      if (y[size_t(m * kSize * kSize + at)] != sum) return false;
    }
  return true;
}

}  // namespace ortplugin
