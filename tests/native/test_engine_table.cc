// The table of engines for convolutions: who is used on which GPU, and why.

#include <map>
#include <set>
#include <string>
#include <vector>

#include "ortplugin/ops/conv/engines/engine.h"
#include "ortplugin/ops/conv/engines/pixel_shuffle.h"
#include "ortplugin/ops/conv_grad/weight_grad.h"
#include "ortplugin/target/target.h"
#include "tests/native/gpus.h"
#include "tests/native/square_conv.h"

using namespace ortplugin;
using namespace test;

namespace {

struct Case {
  const char* engine;  // that is the fastest on an H200
  Contraction problem;
  bool is_by_construction;  // and so on every GPU that it fits
};

Contraction Square(DType dtype, int64_t batch, int64_t size, int64_t channels, int64_t filters, int64_t kernel,
  int64_t stride = 1, bool transposed = false) {
  const int64_t out = transposed ? size * stride : (size - 1) / stride + 1;
  return SquareConv(dtype, transposed, batch, size, channels, filters, kernel, stride, (kernel - 1) / 2, out);
}

std::vector<Case> Cases() {
  constexpr DType kHalf = DType::kFloat16, kFloat = DType::kFloat;
  std::vector<Case> cases = {{"few_output_channels", Square(kHalf, 8, 32, 64, 3, 4, 2, true), true},
    {"few_output_channels", Square(kFloat, 8, 32, 64, 3, 4, 2, true), true},
    {"depthwise", Square(kHalf, 8, 28, 96, 96, 5), true}, {"grouped", Square(kHalf, 8, 28, 112, 136, 1), true},
    {"grouped", Square(kHalf, 8, 28, 256, 256, 3), false}, {"stem", Square(kHalf, 8, 224, 4, 32, 3, 2), false},
    {"stem", Square(kHalf, 8, 224, 3, 32, 3, 2), true}, {"gemv", Square(kHalf, 1, 1, 512, 1000, 1), true},
    {"gemv", Square(kHalf, 4, 1, 512, 1000, 1), false}, {"split_k", Square(kHalf, 1, 14, 256, 256, 3), false},
    {"conv_1x1", Square(kHalf, 8, 56, 64, 64, 1), false}, {"gemm", Square(kHalf, 1024, 1, 768, 3072, 1), false},
    {"patch", Square(kHalf, 8, 112, 64, 64, 3), false}, {"implicit_gemm", Square(kHalf, 8, 56, 128, 128, 3), false},
    {"polyphase", Square(kHalf, 8, 28, 128, 128, 4, 2, true), false},
    {"gemm", Square(kFloat, 1024, 1, 768, 3072, 1), false}, {"nchw_few", Square(kFloat, 8, 28, 8, 8, 1), true},
    {"nchw_gemm", Square(kHalf, 8, 28, 196, 196, 1), true}, {"direct", Square(kFloat, 100, 28, 1, 16, 3), false}};
  cases[2].problem.groups = 96;
  cases[3].problem.groups = cases[4].problem.groups = 4;
  cases[6].problem.x_channels_first = true;
  for (size_t i = cases.size() - 3; i < cases.size(); ++i) cases[i].problem.channels_last = false;
  return cases;
}

Program Identity(DType dtype) {
  const std::string type = NameOf(dtype);
  return Program::Parse("(" + type + " c) => (" + type + " c) {}");
}

// Which engine FindEngineKernel takes; "library" where there is none.
std::string Taken(const Contraction& problem, const DeviceFacts& device, bool only_where_fast) {
  const auto kernel = FindEngineKernel(Identity(problem.dtype()), problem, device, only_where_fast);
  if (!kernel) return "library";
  return std::string(kernel->entry) == "conv_direct" ? "direct" : kernel->entry;
}

// Frames in which nothing moves are images, and images in which nothing moves are rows.
void TestFrames() {
  Contraction volume = Square(DType::kFloat, 2, 14, 64, 64, 3);
  volume.windows.insert(volume.windows.begin(), {1, 1, 1, 0, 0, 5, 5});
  volume.operands = {{64}, volume.result(), {2, 5, 1, 1, 64}, {5, 1, 1, 64}};
  volume.allow_tf32 = true;
  CHECK(volume.WithMergedFrames().windows.size() == 3);  // whose last operand is of frames
  volume.operands.pop_back();
  Contraction half = volume;
  half.dtypes = Contraction::AllOf(DType::kFloat16);
  CHECK(half.WithMergedFrames().windows.size() == 3);
  const Contraction images = volume.WithMergedFrames();
  CHECK(images.x() == (Shape{10, 14, 14, 64}) && images.w() == (Shape{64, 3, 3, 64}));
  CHECK(images.operands == (Shapes{{1, 1, 1, 64}, images.result(), {10, 1, 1, 64}}));

  Contraction in_time = volume;
  in_time.windows = {{3, 2, 1, 1, 1, 8, 4}, {1, 1, 1, 0, 0, 14, 14}, {1, 1, 1, 0, 0, 7, 7}};
  in_time.operands = {{64}, in_time.result(), {2, 1, 1, 1, 1}};
  const Contraction rows = in_time.WithMergedFrames();
  CHECK(
    rows.x() == (Shape{2, 8, 98, 64}) && rows.w() == (Shape{64, 3, 1, 64}) && rows.result() == (Shape{2, 4, 98, 64}));
  CHECK(rows.operands == (Shapes{{1, 1, 1, 64}, rows.result(), {2, 1, 1, 1}}));
  in_time.operands[1] = {7, 1};
  CHECK(in_time.WithMergedFrames().windows.size() == 3);
  in_time.operands.clear();
  for (void (*change)(Contraction*) : {+[](Contraction* c) { c->windows[2].stride = 2; },
         +[](Contraction* c) { c->windows[1].pad_end = 1, ++c->windows[1].out; },
         +[](Contraction* c) { c->channels_last = false; }, +[](Contraction* c) { c->x_channels_first = true; }}) {
    Contraction other = in_time;
    change(&other);
    CHECK(other.WithMergedFrames().windows.size() == 3);
  }
}

void TestLines() {
  std::set<std::string> names;
  for (const Engine& engine : EngineTable()) {
    CHECK_WITH(names.insert(engine.name).second, engine.name);
    CHECK_WITH(std::string(engine.reason).size() > 40, engine.name);
  }
  std::set<std::string> met;
  for (const Case& each : Cases()) met.insert(each.engine);
  CHECK(met == names);  // each line has a case below
}

void TestWhoIsFastest() {
  for (const Gpu& gpu : kGpus) {
    CHECK_WITH((FindTarget(gpu.facts) != nullptr) == (std::string(gpu.name) == "H200"), gpu.name);
    for (const Case& each : Cases()) {
      const std::string what = gpu.name + std::string(": ") + each.engine, taken = Taken(each.problem, gpu.facts, true);
      const Program program = Identity(each.problem.dtype());
      for (const Engine& engine : EngineTable()) {
        if (std::string(engine.name) != each.engine) continue;
        // Without an entry: by construction or not at all.
        const bool fits = engine.fits(program, each.problem, gpu.facts);
        const bool is_used = fits && (FindTarget(gpu.facts) != nullptr || each.is_by_construction);
        CHECK_WITH(taken == (is_used ? each.engine : "library"), what + ": " + taken);
        // Who times engines is offered it all the same, or a more general one.
        CHECK_WITH(!fits || Taken(each.problem, gpu.facts, false) != "library", what);
      }
    }
  }
}

// No engine of a GPU without an entry is used for what its reason does not claim "by construction".
void TestReasons() {
  std::map<std::string, bool> by_construction;
  for (const Case& each : Cases()) by_construction[each.engine] |= each.is_by_construction;
  for (const Engine& engine : EngineTable()) {
    const std::string reason = engine.reason;
    CHECK_WITH((reason.find("y construction") != std::string::npos) == by_construction[engine.name], reason);
  }
}

// Of 256 sizes of images each engine has few kernels, in which no size stands.
void TestOpenSizes() {
  for (Case each : Cases()) {
    Contraction& problem = each.problem;
    if (problem.is_empty() || !problem.channels_last || problem.rows().size == 1) continue;  // pixels are filters; none
    problem.has_open_sizes = true;
    const Program program = Identity(problem.dtype());
    std::set<std::string> sources;
    for (int64_t height = 20; height < 820; height += 50)
      for (int64_t width = 20; width < 820; width += 50) {
        const auto resize = [&](Window& window, int64_t size) {
          window.size = size;
          window.out = problem.transposed
            ? size * window.stride
            : (size + window.pad_begin + window.pad_end - window.extent()) / window.stride + 1;
        };
        resize(problem.rows(), height);
        resize(problem.columns(), width);
        for (const Engine& engine : EngineTable())
          if (std::string(engine.name) == each.engine && engine.fits(program, problem, H200()))
            sources.insert(engine.make(program, problem, H200())->source);
      }
    CHECK_WITH(!sources.empty() && sources.size() <= 32, each.engine + (" has " + std::to_string(sources.size())));
  }
}

// As sizes.cuh divides.
void TestDivision() {
  const std::vector<int64_t> sizes = {1, 2, 3, 5, 7, 12, 56, 63, 64, 65, 224, 641, 1000, 4095, 4096, 4097, 65537,
    (1 << 30) - 1, 1 << 30, (1 << 30) + 1, 2147483646, 2147483647};
  for (const int64_t size : sizes) {
    const uint64_t argument = OpenSize(size);
    const auto value = uint32_t(argument), reciprocal = uint32_t(argument >> 32);
    CHECK(value == size);
    int shift = 32;
    while (shift > 0 && (value - 1) >> (shift - 1) == 0) --shift;  // 32 - clz(value - 1)
    int64_t wrong = 0;
    const auto divide = [&](int64_t x) {
      const uint64_t high = (uint64_t{2} * uint64_t(x) * reciprocal) >> 32;
      wrong += int64_t(high >> shift) != x / size;
    };
    for (const int64_t factor : {int64_t{1}, int64_t{2}, int64_t{3}, int64_t{1000}, 2147483647 / size})
      for (int64_t x = factor * size - 3; x <= factor * size + 3; ++x)
        if (x >= 0 && x <= 2147483647) divide(x);
    for (int64_t x = 0; x < 2147483647; x += 104729) divide(x);
    CHECK_WITH(wrong == 0, std::to_string(size));
  }
}

void TestCapabilities() {
  DeviceFacts h100 = H200();
  h100.multiprocessors = 114;
  CHECK(FindTarget(h100) == FindTarget(H200()));  // the same multiprocessors, but fewer
  CHECK(&LimitsNear(h100) == &FindTarget(h100)->limits);
  for (const Gpu& gpu : kGpus)
    if (FindTarget(gpu.facts) == nullptr) CHECK_WITH(&LimitsNear(gpu.facts) == &DefaultTarget().limits, gpu.name);
}

// What stands behind the table and in ConvGrad asks as well.
void TestOthers() {
  Contraction shuffle = Square(DType::kFloat16, 8, 16, 64, 32, 2, 2, true);
  shuffle.program = std::make_shared<const Program>(Identity(DType::kFloat16));
  const WeightGrad grad{Square(DType::kFloat, 100, 28, 16, 16, 3), DType::kFloat, false, false};
  for (const Gpu& gpu : kGpus) {
    const bool is_known = FindTarget(gpu.facts) != nullptr;
    CHECK_WITH(FitsPixelShuffle(shuffle) && IsPixelShuffleFast(shuffle, gpu.facts) == is_known, gpu.name);
    CHECK_WITH(IsWeightGradFast(grad, gpu.facts) == is_known, gpu.name);
  }
}

}  // namespace

int main() {
  TestFrames();
  TestLines();
  TestWhoIsFastest();
  TestReasons();
  TestOpenSizes();
  TestDivision();
  TestCapabilities();
  TestOthers();
  return Summary();
}
