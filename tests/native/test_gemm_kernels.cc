// Our engine for matrix products: no spills, and tensor cores don't wait for each MMA.

#include <algorithm>
#include <array>
#include <sstream>
#include <string>

#include "ortplugin/ops/conv/engines/gemm.h"
#include "ortplugin/ops/conv/engines/gemv.h"
#include "ortplugin/ops/conv/engines/patch.h"
#include "tests/native/kernel_main.h"
#include "tests/native/wgmma_cases.h"

using namespace ortplugin;
using namespace test;

namespace {

constexpr const char* kGelu = "(float16 c, float16 b) => (float16 y) { s = Add(c, b) y = Gelu(s) }";
constexpr const char* kGated =
  "(float16 c, float16 v, float16 b, float16 r) => (float16 y) { g = Sigmoid(v) a = Add(c, b) m = Mul(a, g) "
  "y = Add(m, r) }";

Contraction Product(DType dtype, int64_t rows, int64_t channels, int64_t filters) {
  Contraction problem = SquareConv(dtype, false, rows, 1, channels, filters, 1, 1, 0, 1);
  problem.constant_weights = rows % 2 == 0;
  problem.allow_tf32 = dtype == kFloat;
  return problem;
}

std::vector<ConvCase> Cases() {
  std::vector<ConvCase> cases;
  // So that every tile configuration is one's.
  cases.push_back({kRelu, Product(kHalf, 16384, 1024, 5632)});  // in bands of columns
  for (const int64_t rows : {1, 128, 256, 1024, 1576, 12608})
    for (const auto& [channels, filters] : {std::pair{768, 2304}, {768, 768}, {3072, 768}}) {
      for (const DType dtype : {kHalf, kFloat}) {
        cases.push_back({kRelu, Product(dtype, rows, channels, filters)});
        if (filters == 768 || dtype == kFloat) cases.push_back({kResidual, Product(dtype, rows, channels, filters)});
      }
    }
  cases.push_back({kIdentity, Product(kBrain, 25088, 96, 288)});
  for (const auto& [rows, channels, filters] :
    {std::array{256, 1024, 1536}, {1024, 512, 1536}, {256, 1024, 32000}, {1024, 768, 3072}, {1576, 768, 3072}})
    for (const char* program : {kIdentity, kGelu}) cases.push_back({program, Product(kHalf, rows, channels, filters)});
  for (const int64_t filters : {50257, 1002, 12})
    for (const DType dtype : {kHalf, kFloat}) cases.push_back({kResidual, Product(dtype, 256, 768, filters)});
  for (const int64_t channels : {768, 3072})  // of SqueezeBERT: two copies of 256 bytes in a group, or six of 128
    for (const DType dtype : {kHalf, kFloat}) {
      cases.push_back({kResidual, Product(dtype, 1024, channels, 768)});
      cases.back().problem.groups = 4;
    }
  cases.push_back({kMixed, SquareConv(kBrain, false, 3, 14, 72, 200, 1, 1, 0, 14)});
  for (const auto& [rows, channels, filters] :
    {std::array{1, 768, 768}, {256, 768, 2304}, {1024, 3072, 768}, {12608, 768, 3072}, {256, 768, 1002}})
    for (const char* program : {kRelu, kResidual}) {  // without TF32
      cases.push_back({program, Product(kFloat, rows, channels, filters)});
      cases.back().problem.allow_tf32 = false;
    }
  return WithOperands(cases);
}

// Of several taps, with strides and dilations, of groups, and with channels that fill no copy.
std::vector<ConvCase> ImplicitCases() {
  std::vector<ConvCase> cases;
  for (const DType dtype : {kHalf, kFloat})
    for (const auto& [size, channels, filters] :
      {std::array{224, 64, 64}, {56, 256, 256}, {28, 512, 512}, {14, 512, 512}})
      for (const char* program : {kRelu, kResidual}) {
        cases.push_back({program, SquareConv(dtype, false, 8, size, channels, filters, 3, 1, 1, size)});
        cases.back().problem.allow_tf32 = size > 28;
      }
  cases.push_back({kRelu, SquareConv(kHalf, false, 8, 56, 72, 100, 5, 2, 2, 28)});
  cases.push_back({kMixed, SquareConv(kBrain, false, 8, 56, 128, 64, 1, 2, 0, 28)});
  cases.push_back({kResidual, SquareConv(kHalf, false, 8, 56, 256, 256, 3, 1, 2, 56)});
  for (Window& window : cases.back().problem.windows) window.dilation = 2;
  cases.back().problem.groups = 4;
  return WithOperands(cases);
}

// Of one and several tiles of filters, which fill none; images that fill no tile.
std::vector<ConvCase> PatchCases() {
  std::vector<ConvCase> cases;
  for (const char* program : {kRelu, kResidual}) {
    cases.push_back({program, SquareConv(kHalf, false, 8, 224, 64, 64, 3, 1, 1, 224)});
    cases.push_back({program, SquareConv(kHalf, false, 8, 113, 48, 132, 3, 1, 1, 113)});
    cases.back().problem.constant_weights = true;
  }
  cases.push_back({kMixed, SquareConv(kBrain, false, 2, 100, 64, 128, 2, 1, 0, 99)});
  return WithOperands(cases);
}

}  // namespace

void TestKernels(const std::string&, const DeviceFacts& device) {
  const auto check = [&](const Program& program, const Contraction& problem) {
    const GemmConfig config = ConfigureGemm(problem, device);
    const cuda::LaunchShape launch = GemmLaunch(problem, config, device);
    const std::string source = GemmSource(program, problem, config);
    std::ostringstream numbers;
    numbers << "tile " << config.tile_m() << "x" << config.tile_n << "x" << config.tile_k << " consumers "
            << config.consumers << " turns " << config.take_turns << " split " << config.split_k << " stages "
            << config.stages;
    const std::string variant = CheckCompiles(device, source, "gemm", problem, launch, numbers.str());
    // Constant weights, which no kernel writes, and the maps, which are the kernel's own parameters, are read early.
    CHECK_WITH(BeforeWait(source, problem.constant_weights ? "prefetch.tensormap|bulk" : "prefetch.tensormap").empty(),
      variant + BeforeWait(source));
  };
  ForEachCase(Cases(), device, FitsGemm, check, 12);
  const auto check_implicit = [&](const Program& program, const Contraction& problem) {
    const EngineKernel kernel = MakeImplicitGemm(program, problem, device);
    const std::string variant = CheckCompiles(
      device, kernel.source, kernel.entry, problem, kernel.launch, Joined(kernel.launch.threads, " threads"));
    CHECK_WITH(BeforeWait(kernel.source, "prefetch.tensormap").empty(), variant);
    CHECK_WITH(kernel.maps[0].im2col && kernel.maps[0].sizes[3] == uint64_t(problem.batch) &&
        kernel.maps[1].sizes ==
          (std::vector<uint64_t>{uint64_t(problem.group_channels()), uint64_t(problem.filters),
            uint64_t(problem.rows().kernel * problem.columns().kernel), 1}),
      variant);
  };
  ForEachCase(ImplicitCases(), device, FitsImplicitGemm, check_implicit, 3);
  const auto check_patch = [&](const Program& program, const Contraction& problem) {
    const EngineKernel kernel = MakePatch(program, problem, device);
    const std::string variant = CheckCompiles(device, kernel.source, kernel.entry, problem, kernel.launch, "");
    CHECK_WITH(
      BeforeWait(kernel.source, problem.constant_weights ? "prefetch.tensormap|bulk" : "prefetch.tensormap").empty(),
      variant);
  };
  ForEachCase(PatchCases(), device, FitsPatch, check_patch, 3);
  if (device.has_wgmma())
    for (const auto& [size, channels, filters] : {std::array{56, 64, 64}, {112, 48, 100}, {112, 64, 64}, {96, 40, 24}})
      CHECK(std::string(FindEngineKernel(Program::Parse(kIdentity),
              SquareConv(kHalf, false, 8, size, channels, filters, 3, 1, 1, size), device, true)
                ->entry) == "patch");
  const auto norm_of = [](const char* text) { return NormProgram::Parse(text); };
  const NormProgram layer = norm_of(
    "(float16 x, float16 g, float16 b) => (float16 y) { n = LayerNormalization(x) m = Mul(n, g) y = Add(m, b) }");
  // With a norm of X, in one warp and in several, of up to eight steps.
  for (const auto& [rows, channels, gated] :
    {std::array{1, 24, 0}, {1, 768, 0}, {4, 1024, 0}, {2, 2060, 0}, {1, 8192, 0}, {1, 40000, 0}, {1, 768, 1},
      {4, 256, 1}, {8, 512, 0}, {8, 2304, 1}, {8, 2560, 1}, {1, 4096, 1}, {1, 8192, 1}}) {
    Contraction problem = Product(kHalf, rows, channels, 96);
    problem.constant_weights = rows == 1;
    problem.gated = gated == 1;
    if (problem.gated) problem.operands = {{96}, problem.result()};
    const NormTail tail{&layer, {{1, 1, 1, channels}, {1, 1, 1, 1}}, false, true};
    const auto kernel = MakeGemvNorm(ProgramOf({gated == 1 ? kGated : kIdentity, problem}), problem, tail, device);
    CHECK(rows == 8 || kernel.has_value() == (channels << (device.has_mma_m16n8k16() ? 0 : gated) <= 8192));
    if (!kernel) continue;
    CHECK(kernel->arguments.size() == size_t(12 + 3 * gated) && kernel->source.find("out[1];") != std::string::npos &&
      kernel->source.find(Joined("in[", 4 + 3 * gated, "];")) != std::string::npos);
    const std::string variant =
      CheckCompiles(device, kernel->source, kernel->entry, problem, kernel->launch, "norm of X");
    CHECK_WITH(rows == 1 || BeforeWait(kernel->source).empty(), variant + BeforeWait(kernel->source));
  }
  for (const int64_t rows : {1, 3, 8})
    for (const int64_t channels : {72, 2304, 11008})
      for (const bool gated : {false, true}) {
        Contraction problem = Product(kHalf, rows, channels, 96);
        problem.gated = gated;
        problem.operands = {{96}, problem.result()};
        const EngineKernel kernel = MakeGemv(ProgramOf({gated ? kGated : kResidual, problem}), problem, device);
        CheckCompiles(device, kernel.source, "gemv", problem, kernel.launch, "alone");
      }
  if (!device.has_wgmma()) return;

  // Configurations of all sizes: they fit, and there is something to do ahead.
  for (const int64_t rows : {1, 7, 197, 1024, 100000})
    for (const int64_t channels : {8, 64, 200, 4096})
      for (const int64_t filters : {8, 40, 768, 32000})
        for (const int multiprocessors : {1, 7, 132}) {
          DeviceFacts other = device;
          other.multiprocessors = multiprocessors;
          const Contraction problem = Product(rows % 2 == 0 ? kHalf : kFloat, rows, channels, filters);
          const GemmConfig config = ConfigureGemm(problem, other);
          const cuda::LaunchShape launch = GemmLaunch(problem, config, other);
          CHECK_WITH(config.stages >= 3 && launch.shared_bytes <= device.shared_per_block && launch.blocks > 0 &&
              launch.blocks % config.together() == 0 && int(launch.blocks) <= multiprocessors,
            ToString(problem.result()));
        }

  // Pairs, but where a block would have more tiles than by itself.
  CHECK(ConfigureGemm(Product(kHalf, 16384, 1024, 5632), device).is_pair);
  CHECK(!ConfigureGemm(Product(kHalf, 12608, 768, 2304), device).is_pair);

  // With a gate, whose columns are half of a tile's.
  for (const auto& [rows, channels, filters] : {std::array{256, 768, 2816}, {2048, 768, 2816}, {300, 768, 72},
         {12608, 768, 3072}, {37, 768, 1002}, {64, 3072, 776}})
    for (const DType dtype : {kHalf, kFloat}) {
      Contraction problem = WithRowsAsBatch(Product(dtype, rows, channels, filters));
      problem.gated = true;
      problem.operands = {{filters}, problem.result()};
      const Program program = ProgramOf({kGated, problem});
      if (TakesTurn(Joined("gated, turns ", ConfigureGemm(problem, device).take_turns), 5)) check(program, problem);
      const EngineKernel kernel = MakeGemm(program, problem, device);
      CHECK(kernel.maps.size() == 3 && kernel.maps[2].box_rows == kernel.maps[1].box_rows &&
        kernel.arguments.size() == kernel.maps[2].word + cuda::kTensorMapWords);
      const auto alone = FindEngineKernel(program, problem, device, false);
      CHECK(alone && std::string(alone->entry) == "gemm");
    }

  // With a norm of the rows: of every size of a cluster, several operands, and where there is none.
  const NormProgram rms = norm_of(
    "(float x, float g, float m) => (float y) { n = RMSNormalization(x) a = Mul(n, g) "
    "y = Add(a, m) }");
  const NormProgram cast = norm_of(
    "(float16 x, float16 g) => (float16 y, float z) { s = Cast<to=float>(x) z = "
    "RMSNormalization(s) c = Cast<to=float16>(z) y = Mul(g, c) }");
  int wide = 0;
  for (const auto& [rows, channels, filters] : {std::array{1024, 768, 768}, {1576, 3072, 768}, {256, 1024, 1024},
         {100, 64, 64}, {300, 128, 512}, {256, 512, 512}, {128, 320, 640}, {37, 40, 192}})
    for (const NormProgram* norm : {&layer, &rms, &cast}) {
      const DType dtype = norm == &rms ? kFloat : kHalf;
      Contraction problem = WithRowsAsBatch(Product(dtype, rows, channels, filters));
      problem.operands = {{filters}, problem.result()};
      Shapes operands{{filters}};
      if (norm != &cast) operands.push_back(norm == &layer ? Shape{1} : problem.result());
      const Program program = ProgramOf({kResidual, problem});
      const NormTail tail{norm, operands, rows % 2 == 0};
      const auto config = ConfigureGemmNorm(program, problem, tail, 8, false, device);
      CHECK_WITH(config && config->cluster * config->tile_n == filters, ToString(problem.result()));
      wide = std::max(wide, config->cluster);
      const EngineKernel kernel = MakeGemmNorm(program, problem, *config, tail, device);
      CHECK(kernel.launch.blocks <= unsigned(device.multiprocessors) && config->stages >= 3);
      if (!TakesTurn(Joined("norm ", config->cluster, " ", config->consumers), 7)) continue;
      const std::string variant = CheckCompiles(device, kernel.source, "gemm", problem, kernel.launch, "norm");
      CHECK_WITH(
        BeforeWait(kernel.source, problem.constant_weights ? "prefetch.tensormap|bulk" : "prefetch.tensormap").empty(),
        variant);
    }
  CHECK(wide == 8);
  const auto refuses = [&](const char* text, int64_t rows, int64_t filters) {
    const NormProgram norm = norm_of(text);
    const Contraction problem = WithRowsAsBatch(Product(kHalf, rows, 64, filters));
    return !ConfigureGemmNorm(Program::Parse(kIdentity), problem, {&norm, {}, false}, 8, false, device);
  };
  const char* const bare = "(float16 x) => (float16 y) { y = LayerNormalization(x) }";
  CHECK(!refuses(bare, 64, 768));
  CHECK(refuses(bare, 64, 8192) && refuses(bare, 64, 80) && refuses(bare, 100000, 768));
  CHECK(refuses("(float16 x) => (float16 y) { y = LayerNormalization<axes=\"1\">(x) }", 64, 768));
  CHECK(refuses("(float16 x) => (float16 y) { y = LayerNormalization<axis=-2>(x) }", 64, 768));
  CHECK(refuses("(float16 x) => (float16 y, float16 s) { s = Neg(x) y = LayerNormalization(s) }", 64, 768));
  CHECK(refuses("(float16 x) => (float16 y) { s = Neg(x) n = LayerNormalization(s) y = Add(n, x) }", 64, 768));

  const auto is_fast = [&](int64_t rows, int64_t channels, int64_t filters, int most_cluster) {
    const NormProgram norm = norm_of(bare);
    const Contraction problem = WithRowsAsBatch(Product(kHalf, rows, channels, filters));
    return ConfigureGemmNorm(Program::Parse(kIdentity), problem, {&norm, {}, false}, most_cluster, true, device)
      .has_value();
  };
  CHECK(is_fast(1024, 3072, 768, 8) && is_fast(1024, 3072, 768, 7) && is_fast(1576, 768, 768, 8));
  CHECK(!is_fast(1024, 3072, 768, 4) && !is_fast(256, 2816, 1024, 8) && !is_fast(64, 64, 768, 8));

  // The rows of an image are a batch where operands allow it, so that its size is in no kernel's text.
  const Program residual = Program::Parse(kResidual);
  Contraction image = SquareConv(kHalf, false, 2, 14, 64, 128, 1, 1, 0, 14);
  image.operands = {{128}, image.result()};
  CHECK(WithRowsAsBatch(image).batch == 2 * 14 * 14 && WithRowsAsBatch(image).operands[1] == (Shape{392, 1, 1, 128}));
  for (bool Contraction::* first : {&Contraction::x_channels_first, &Contraction::y_channels_first}) {
    Contraction other = image;
    other.*first = true;
    CHECK(WithRowsAsBatch(other).batch == 2);
  }
  Contraction first = image;
  first.channels_last = false;
  first.operands = {{1}};
  CHECK(WithRowsAsBatch(first).batch == 2);
  image.operands[1] = {2, 1, 1, 128};
  CHECK(WithRowsAsBatch(image).batch == 2);
  image.operands = {{1, 1, 128}, {2, 14, 14, 1}};
  CHECK(WithRowsAsBatch(image).operands == (Shapes{{128}, {392, 1, 1, 1}}));
  const EngineKernel kernel = MakeGemm(residual, image, device);
  CHECK(kernel.maps.size() == 2 && kernel.maps[0].word % 8 == 0 && kernel.maps[0].sizes[1] == 392 &&
    kernel.maps[1].sizes[1] == 128 && kernel.arguments.size() == kernel.maps[1].word + cuda::kTensorMapWords);

  const auto entry = [&](const Contraction& problem, bool only_where_fast) {
    const auto found = FindEngineKernel(ProgramOf({kIdentity, problem}), problem, device, only_where_fast);
    return std::string(found ? found->entry : "library");
  };
  CHECK(entry(Product(kHalf, 1024, 768, 3072), true) == "gemm");
  CHECK(entry(Product(kFloat, 1024, 12, 3072), false) == "gemm");
  // Few rows: gemv for as many weights as it reads in the time of a tile, split_k where sums are long.
  CHECK(entry(Product(kHalf, 2, 768, 768), true) == "gemv" && entry(Product(kHalf, 4, 768, 2304), true) == "gemm");
  CHECK(entry(Product(kHalf, 4, 3072, 768), true) == "split_k" && entry(Product(kHalf, 64, 768, 768), true) == "gemm");
  // Where tiles are few and sums long, a cluster has one: of two blocks, which leave no multiprocessor over, and more.
  const auto split_k = [&](int64_t rows, int64_t channels, int64_t filters) {
    const Contraction problem = Product(kHalf, rows, channels, filters);
    CHECK(entry(problem, true) == "gemm");
    const GemmConfig config = ConfigureGemm(problem, device);
    CHECK(GemmLaunch(problem, config, device).blocks % config.split_k == 0);
    return config.split_k;
  };
  CHECK(split_k(256, 2816, 1024) == 2 && split_k(128, 3072, 768) == 4 && split_k(64, 4096, 1024) == 6);
  CHECK(split_k(256, 768, 768) == 1 && split_k(1024, 3072, 768) == 1);
  CHECK(
    entry(Product(kHalf, 25088, 96, 288), true) == "gemm" && entry(Product(kHalf, 25088, 96, 384), true) == "conv_1x1");
  // Two warpgroups share wide tiles where sums are long, and take turns only where each has tiles.
  CHECK(ConfigureGemm(Product(kHalf, 4096, 3072, 768), device).tile_n == 192);
  CHECK(!ConfigureGemm(Product(kHalf, 1576, 768, 768), device).take_turns);
  CHECK(ConfigureGemm(Product(kHalf, 1576, 3072, 768), device).tile_n == 96);
  CHECK(entry(SquareConv(kHalf, false, 64, 14, 1024, 512, 1, 1, 0, 14), true) == "library");
  CHECK(entry(SquareConv(kHalf, false, 8, 14, 1024, 512, 1, 1, 0, 14), true) == "gemm");

  const Contraction known = Product(kHalf, 128, 96, 256);
  const auto fits = [&](const Contraction& other) { return FitsGemm(Program::Parse(kIdentity), other, device); };
  const Refusals implicit(SquareConv(kHalf, false, 8, 56, 64, 64, 3, 1, 1, 56),
    [&](const Contraction& other) { return FitsImplicitGemm(Program::Parse(kIdentity), other, device); });
  implicit.Check("groups of half a copy", [](auto* conv) { conv->groups = 2; });
  implicit.Check("12 channels", [](auto* conv) { conv->channels = 12; });
  implicit.Check("transposed", [](auto* conv) { conv->transposed = true; });
  implicit.Check("Y with channels first", [](auto* conv) { conv->y_channels_first = true; });
  implicit.Check("pointwise", [](auto* conv) { conv->windows.assign(2, {1, 1, 1, 0, 0, 56, 56}); });
  implicit.Check("a small image", [](auto* conv) { conv->batch = 1, conv->rows().size = 18; });
  implicit.Check("a stride", [](auto* conv) { conv->columns().stride = 9; });
  implicit.Check("a pad", [](auto* conv) { conv->rows().pad_end = 128; });
  implicit.Check("taps far apart", [](auto* conv) { conv->rows().dilation = 64; });
  const Refusals refusals = RefusalsOfWgmma(known, fits, true);
  refusals.Check("a transposed one", [](Contraction* changed) { changed->transposed = true; });
  refusals.Check("X with channels first", [](Contraction* changed) { changed->x_channels_first = true; });
  refusals.Check("strides", [](Contraction* changed) { changed->rows().stride = 2; });
  refusals.Check("pads", [](Contraction* changed) { changed->rows().pad_begin = 1; });
  refusals.Check("channels that are no octets", [](Contraction* changed) { changed->channels = 100; });
  refusals.Check("no rows", [](Contraction* changed) { changed->batch = 0; });
}
