// The kernels of FusedPool and FusedResize, in the variants that a configuration can take: no local memory.

#include <iostream>

#include "ortplugin/ops/pool/pool.h"
#include "tests/native/kernel_remarks.h"

using namespace ortplugin;
using namespace test;

namespace {

struct Case {
  std::string name, source;
  const char* kernel;
  int threads, vector, wanted_vector;
  bool wide, wanted_wide;
  int64_t blocks;
  int cluster, wanted_cluster;
};

PoolAttributes Windows(
  bool is_max, bool channels_last, std::vector<int64_t> kernel, std::vector<int64_t> strides, int64_t pad) {
  PoolAttributes attributes;
  attributes.is_max = is_max;
  attributes.channels_last = channels_last;
  attributes.auto_pad = "NOTSET";
  attributes.dilations.assign(kernel.size(), 1);
  attributes.pads.assign(2 * kernel.size(), pad);
  attributes.kernel = std::move(kernel);
  attributes.strides = std::move(strides);
  return attributes;
}

PoolAttributes Global(bool is_max, bool channels_last) {
  PoolAttributes attributes;
  attributes.is_max = is_max;
  attributes.is_global = true;
  attributes.channels_last = channels_last;
  return attributes;
}

// Without clusters the configuration is another one.
std::vector<Case> Cases(const DeviceFacts& gpu) {
  std::vector<Case> cases;
  const auto pool = [&](const std::string& name, const PoolAttributes& attributes, const Shape& input, DType dtype,
                      int vector, bool wide = false, int cluster = 1, int alignment = 16) {
    const PoolShape shape = FitCudaPool(attributes, input);
    const PoolConfig config = ConfigurePool(shape, dtype, gpu, alignment);
    cases.push_back({name + " " + NameOf(dtype), PoolSource(attributes, shape, dtype, config),
      shape.is_global ? "pool_global" : "pool", config.threads, config.vector, vector, config.wide, wide, config.blocks,
      config.cluster, gpu.has_clusters() ? cluster : 1});
  };
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kFloat, DType::kDouble}) {
    const int most = 16 / int(SizeOf(dtype));
    pool("stem", Windows(true, true, {3, 3}, {2, 2}, 1), {8, 112, 112, 64}, dtype, most);
    pool("halves", Windows(false, true, {2, 2}, {2, 2}, 0), {8, 56, 56, 128}, dtype, most);
    pool("padded average", Windows(false, true, {3, 3}, {1, 1}, 1), {8, 35, 35, 192}, dtype, most);
    pool("channels first", Windows(false, false, {3, 3}, {2, 2}, 1), {8, 64, 112, 112}, dtype, 1);
    pool("squeeze", Global(false, true), {8, 112, 112, 32}, dtype, most, false, 8);
    pool("end", Global(false, true), {8, 7, 7, 2048}, dtype, most);
    pool("squeeze, channels first", Global(false, false), {8, 64, 56, 56}, dtype, most);
    pool("no pixels", Global(false, true), {2, 0, 7, 5}, dtype, 1);
    pool("no pixels, channels first", Global(true, false), {2, 5, 7, 0}, dtype, most);
  }
  for (const DType dtype : {DType::kFloat16, DType::kInt8, DType::kUInt8}) {
    const int most = 16 / int(SizeOf(dtype));
    pool("bytes", Windows(true, true, {2, 2}, {2, 2}, 0), {8, 56, 56, 128}, dtype, most);
    pool("largest", Global(true, true), {8, 112, 112, 32}, dtype, most, false, 8);
    pool("largest, channels first", Global(true, false), {64, 3, 61, 67}, dtype, 1);
  }
  pool("large window", Windows(false, true, {9, 11}, {2, 3}, 4), {8, 64, 64, 64}, DType::kFloat16, 8);
  pool("volume", Windows(false, true, {3, 3, 3}, {2, 2, 2}, 1), {2, 32, 64, 64, 32}, DType::kFloat16, 8);
  pool("odd channels", Windows(true, true, {3, 3}, {2, 2}, 1), {8, 112, 112, 21}, DType::kFloat16, 1);
  pool("odd addresses", Windows(true, true, {3, 3}, {2, 2}, 1), {8, 112, 112, 64}, DType::kFloat16, 2, false, 1, 4);
  pool("huge", Windows(true, true, {2, 2}, {2, 2}, 0), {70000, 112, 112, 64}, DType::kFloat16, 8, true);
  pool("huge, all", Global(false, true), {2, 65536, 32768, 8}, DType::kFloat16, 8, true, 8);

  const auto resize = [&](const std::string& name, bool is_linear, bool channels_last, Coordinates coordinates,
                        const Shape& input, const Shape& sizes, DType dtype, int vector, bool wide = false,
                        NearestMode nearest = NearestMode::kRoundPreferFloor) {
    ResizeAttributes attributes;
    attributes.nearest = nearest;
    attributes.is_linear = is_linear;
    attributes.channels_last = channels_last;
    attributes.coordinates = coordinates;
    attributes.sizes = sizes;
    const ResizeShape shape = FitResize(attributes, input);
    const ResizeConfig config = ConfigureResize(attributes, shape, dtype, gpu, 16);
    cases.push_back({name + " " + NameOf(dtype), ResizeSource(attributes, shape, dtype, config), "resize",
      config.threads, config.vector, vector, config.wide, wide, config.blocks, 1, 1});
  };
  for (const DType dtype : {DType::kFloat16, DType::kFloat, DType::kDouble}) {
    const int most = 16 / int(SizeOf(dtype));
    const Coordinates half = Coordinates::kHalfPixel;
    resize("twice", true, true, half, {4, 56, 56, 64}, {112, 112}, dtype, most);
    resize("twice, channels first", true, false, half, {4, 64, 56, 56}, {112, 112}, dtype, std::min(most, 4));
    resize("volume twice", true, true, half, {2, 16, 28, 28, 32}, {32, 56, 56}, dtype, most);
    resize("line twice", true, false, half, {2, 32, 28}, {57}, dtype, 1);
    resize("nearest", false, true, Coordinates::kAsymmetric, {4, 56, 56, 64}, {112, 112}, dtype, most);
    resize(
      "nearest, channels first", false, false, Coordinates::kAlignCorners, {4, 64, 56, 56}, {112, 112}, dtype, most);
  }
  for (const NearestMode mode : {NearestMode::kRoundPreferCeil, NearestMode::kFloor, NearestMode::kCeil})
    resize("nearest, rounded another way", false, true, Coordinates::kHalfPixel, {4, 56, 56, 64}, {112, 112},
      DType::kFloat, 4, false, mode);
  resize(
    "huge nearest", false, true, Coordinates::kAsymmetric, {70000, 56, 56, 64}, {112, 112}, DType::kInt8, 16, true);
  return cases;
}

// What lies up to 1e-6 from the middle counts as the middle; every float is exact beside it.
void TestNearest() {
  using Pair = std::pair<int64_t, int64_t>;
  const auto both = [](float at) {
    return std::pair{
      NearestOf(NearestMode::kRoundPreferFloor, at, 1 << 30), NearestOf(NearestMode::kRoundPreferCeil, at, 1 << 30)};
  };
  CHECK(both(3.5f) == (Pair{3, 4}));
  CHECK(both(2 / (4 / 7.0f)) == (Pair{3, 4}));  // 3.4999998
  CHECK(both(3.5000007f) == (Pair{3, 4}));
  CHECK(both(3.499998f) == (Pair{3, 3}));
  CHECK(both(3.500002f) == (Pair{4, 4}));
  CHECK(both(-0.5f) == (Pair{0, 0}));
  CHECK(both(8388609.0f) == (Pair{8388609, 8388609}));
  CHECK(NearestOf(NearestMode::kFloor, 2.9999998f, 8) == 2 && NearestOf(NearestMode::kCeil, 2.0000002f, 8) == 3);
  CHECK(NearestOf(NearestMode::kCeil, 2.0f, 8) == 2 && NearestOf(NearestMode::kCeil, 7.5f, 8) == 7);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string argument = argc == 2 ? argv[1] : "";
  const bool show = argument.rfind("sm_", 0) != 0;
  if (!show) TestNearest();
  const DeviceFacts& gpu = show ? H200() : DeviceOf(argument);
  for (const Case& test_case : Cases(gpu)) {
    if (show) {
      if (test_case.name == argument) std::cout << test_case.source;
      continue;
    }
    if (!IsTaken(argument, test_case.name)) continue;
    Compiled compiled(test_case.source, argument);
    const std::string text = Joined(argument, " ", test_case.name, ": vector ", test_case.vector, " wide ",
      test_case.wide, " blocks ", test_case.blocks, " cluster ", test_case.cluster);
    compiled.Check(text);
    compiled.CheckLaunch(gpu, test_case.kernel, test_case.threads);
    CHECK_WITH(test_case.vector == test_case.wanted_vector && test_case.wide == test_case.wanted_wide &&
        test_case.cluster == test_case.wanted_cluster,
      text);
    if (argument == "sm_90") compiled.CheckWaits();
    CHECK_WITH(test_case.blocks > 0 && test_case.blocks % test_case.cluster == 0, text);
  }
  return Summary();
}
