// No engine's plan asks for more than its GPU has: threads, blocks, shared memory that is asked for at launch, and
// instructions. Over many problems and the GPUs of gpus.h, without NVRTC; registers and static shared memory are in
// NVRTC's remarks, which the tests of each engine's kernels compare with the GPU (Lacking in kernel_remarks.h).

#include <algorithm>
#include <map>
#include <set>

#include "ortplugin/ops/conv/engines/direct.h"
#include "ortplugin/ops/conv/engines/engine.h"
#include "ortplugin/ops/conv_grad/weight_grad.h"
#include "ortplugin/ops/layer_norm/layer_norm.h"
#include "ortplugin/ops/pool/pool.h"
#include "ortplugin/ops/transpose/transpose.h"
#include "tests/native/kernel_remarks.h"
#include "tests/native/square_conv.h"

using namespace ortplugin;
using namespace test;

namespace {

const std::set<std::string> kWgmmaEngines = {"conv_1x1", "gemm", "implicit_gemm", "patch", "split_k", "polyphase"};

// What blocks of so many threads, so many of them at the same time on a multiprocessor, exceed.
void CheckThreads(const Gpu& gpu, int64_t threads, int64_t min_blocks, const std::string& name) {
  const std::string text = Joined(gpu.name, ": ", name, ", ", min_blocks, " blocks of ", threads, " threads");
  CHECK_WITH(threads > 0 && threads <= gpu.facts.threads_per_block, text);
  CHECK_WITH(min_blocks > 0 && min_blocks <= gpu.facts.blocks_per_multiprocessor, text);
  CHECK_WITH(min_blocks * threads <= gpu.facts.threads_per_multiprocessor, text);
}

void CheckEngine(const Gpu& gpu, const EngineKernel& kernel, const std::string& name) {
  const std::string entry = std::string(kernel.entry) + " " + name;
  CheckThreads(gpu, kernel.launch.threads, Defined(kernel.source, "MIN_BLOCKS", 1), entry);
  CHECK_WITH(kernel.launch.blocks > 0 && kernel.launch.shared_bytes <= gpu.facts.shared_per_block,
    gpu.name + std::string(": ") + entry);
  const bool has_wgmma = kernel.source.find("wgmma.mma_async") != std::string::npos;
  CHECK_WITH(has_wgmma == (kWgmmaEngines.count(kernel.entry) > 0), entry);
  CHECK_WITH(gpu.facts.has_wgmma() || !has_wgmma, gpu.name + std::string(": ") + entry);
  CHECK_WITH(
    gpu.facts.has_clusters() || Defined(kernel.source, "SPLIT_K", 1) == 1, gpu.name + std::string(": ") + entry);
}

// Square images and filters, "same" padding; grouped and depthwise ones, those of images and of single pixels among
// them.
std::vector<Contraction> Problems() {
  std::vector<Contraction> problems;
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kFloat})
    for (const bool transposed : {false, true})
      for (const int64_t batch : {1, 8, 256})
        for (const int64_t size : {1, 7, 33, 56, 224})
          for (const int64_t channels : {3, 8, 36, 64, 256, 512})
            for (const int64_t filters : {3, 8, 32, 80, 96, 128, 256})
              for (const auto& [kernel, stride] : {std::pair{1, 1}, {1, 2}, {2, 2}, {3, 1}, {3, 2}, {4, 2}, {7, 2}}) {
                const int64_t out = transposed ? size * stride : (size - 1) / stride + 1;
                Contraction problem =
                  SquareConv(dtype, transposed, batch, size, channels, filters, kernel, stride, (kernel - 1) / 2, out);
                problems.push_back(problem);
                problem.groups = 4;
                if (channels % 4 == 0 && filters % 4 == 0 && batch == 8) problems.push_back(problem);
                problem.groups = problem.filters = problem.channels;
                if (filters == 3) problems.push_back(problem);
              }
  return problems;
}

void TestEngines() {
  const std::vector<Contraction> problems = Problems();
  std::map<DType, Program> programs;
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kFloat}) {
    const std::string type = NameOf(dtype);
    programs.emplace(dtype, Program::Parse("(" + type + " c) => (" + type + " y) {\n  y = Relu(c)\n}"));
  }
  for (const Gpu& gpu : kGpus) {
    std::map<std::string, int> met;
    for (const Contraction& problem : problems) {
      const std::string name = std::to_string(problem.channels) + " to " + ToString(problem.result()) + " of " +
        std::to_string(problem.rows().kernel);
      if (!IsTaken(std::string(gpu.name) + NameOf(problem.dtype()), name)) continue;
      const auto kernel = FindEngineKernel(programs.at(problem.dtype()), problem, gpu.facts, false);
      if (!kernel) continue;
      ++met[kernel->entry];
      CheckEngine(gpu, *kernel, name);
    }
    for (const char* entry : {"depthwise", "gemv", "few_output_channels"}) CHECK_WITH(met[entry] > 0, entry);
    for (const char* entry : {"stem", "grouped"})
      CHECK_WITH((met[entry] > 0) == gpu.facts.has_mma_m16n8k16(), gpu.name + std::string(": ") + entry);
    for (const std::string& entry : kWgmmaEngines)
      CHECK_WITH((met[entry] > 0) == gpu.facts.has_wgmma(), gpu.name + std::string(": ") + entry);
  }
}

void TestFewChannels() {
  const Program relu =
    Program::Parse("(float dy, float y) => (float dz) {\n  p = Greater(y, 0)\n  dz = Where(p, dy, 0)\n}");
  for (const Gpu& gpu : kGpus)
    for (const int64_t images : {1, 100, 1000})
      for (const int64_t channels : {1, 5, 16, 32})
        for (const int64_t outputs : {1, 7, 16, 64})
          for (const int64_t size : {5, 14, 28, 56})
            for (const auto& [kernel, stride] : {std::pair{1, 1}, {3, 1}, {5, 2}}) {
              const Contraction conv = SquareConv(DType::kFloat, false, images, size, channels, outputs, kernel, stride,
                kernel / 2, (size - 1) / stride + 1);
              const WeightGrad grad{conv, DType::kFloat, false, true};
              const std::string name = Joined(images, " images [", channels, ", ", size, ", ", size, "] to ", outputs);
              if (!IsTaken(gpu.name, name, 4)) continue;
              const std::optional<DirectConfig> direct = ConfigureDirect(conv, gpu.facts, 4);
              CHECK_WITH(direct.has_value(), name);
              if (direct) CheckThreads(gpu, direct->threads, direct->min_blocks, "direct, " + name);
              const std::optional<WeightGradConfig> weights = ConfigureWeightGrad(grad, relu, gpu.facts);
              CHECK_WITH(weights.has_value(), name);
              if (weights) CheckThreads(gpu, weights->threads, weights->min_blocks, "weights, " + name);
            }
}

// The tiles of a norm: what norm_tiles.cu says of its sizes, and the limits of shared memory.
void CheckTiles(const Gpu& gpu, const NormShape& shape, const NormTiles& tiles, const std::string& name) {
  CheckThreads(gpu, tiles.threads, tiles.min_blocks, name);
  const int64_t of_tile = shape.height * tiles.accesses;
  CHECK_WITH(tiles.groups * tiles.tiles >= shape.groups && tiles.groups * (tiles.tiles - 1) < shape.groups, name);
  CHECK_WITH(tiles.accesses * tiles.vector == tiles.groups * shape.run && shape.width % tiles.vector == 0, name);
  CHECK_WITH(tiles.chunk * tiles.chunks >= of_tile && tiles.chunk * (tiles.chunks - 1) < of_tile, name);
  CHECK_WITH(tiles.blocks == shape.outer * tiles.tiles * tiles.chunks, name);
  CHECK_WITH(tiles.groups == 1 || (tiles.threads % tiles.accesses == 0 && tiles.chunk % tiles.accesses == 0), name);
  CHECK_WITH(tiles.groups > 1 || shape.run % tiles.vector == 0 || shape.groups == 1, name);
  CHECK_WITH(tiles.one_read || tiles.groups <= tiles.threads, name);
  CHECK_WITH(tiles.static_bytes <= cuda::kStaticSharedBytes, name);
  CHECK_WITH(tiles.static_bytes + tiles.held_bytes <= gpu.facts.shared_per_block, name);
  CHECK_WITH(!tiles.one_read || tiles.chunks == 1 || (gpu.facts.has_clusters() && tiles.chunks <= 8), name);
}

void TestNormTiles() {
  for (const std::string dtype : {"float16", "double"}) {
    const NormProgram norm = NormProgram::Parse("(" + dtype + " x, " + dtype + " g) => (" + dtype +
      " y) {\n  n = LayerNormalization<axes=\"1 3\">(x)\n  y = Mul(n, g)\n}");
    for (const Gpu& gpu : kGpus)
      for (const int64_t outer : {1, 8, 3000})
        for (const int64_t height : {2, 49, 3136, 1 << 20})
          for (const int64_t groups : {2, 7, 32, 97, 2048})
            for (const int64_t run : {1, 3, 8, 20, 1001, 4096}) {
              if (outer * height * groups * run > int64_t{1} << 40) continue;
              const Shape input{outer, height, groups, run};
              if (!IsTaken(gpu.name, dtype + ToString(input), 4)) continue;
              const NormShape shape = FitShapes(norm, {input, {groups, run}});
              for (const bool aligned : {false, true})
                CheckTiles(gpu, shape, ConfigureNormTiles(norm, shape, gpu.facts, aligned),
                  gpu.name + (" " + dtype) + ToString(shape.shape));
            }
  }
}

void TestNorms() {
  for (const std::string dtype : {"float16", "float", "double"}) {
    const NormProgram norm = NormProgram::Parse("(" + dtype + " x, " + dtype + " r, " + dtype + " b) => (" + dtype +
      " y, " + dtype + " s) {\n  s = Add(x, r)\n" + "  n = LayerNormalization<epsilon=1e-05>(s)\n  y = Mul(n, b)\n}");
    for (const Gpu& gpu : kGpus)
      for (const int64_t rows : {1, 100, 8192})
        for (int64_t width = 1; width < 50000; width = width * 5 / 4 + 1)
          for (const bool aligned : {false, true}) {
            const NormShape shape = FitShapes(norm, {{rows, width}, {rows, width}, {width}});
            const std::string name = dtype + " [" + std::to_string(rows) + ", " + std::to_string(width) + "]";
            if (!IsTaken(gpu.name, name, 4)) continue;
            if (const auto config = ConfigureLayerNorm(norm, shape, gpu.facts, aligned))
              CheckThreads(gpu, config->lanes * config->groups, config->min_blocks, name);
            CheckTiles(gpu, shape, ConfigureNormTiles(norm, shape, gpu.facts, aligned), name);
          }
  }
}

void TestPools() {
  PoolAttributes global;
  global.is_global = true;
  for (const Gpu& gpu : kGpus) {
    int widest = 1;
    for (const bool channels_last : {false, true})
      for (const int64_t images : {1, 8, 64})
        for (const int64_t size : {7, 56, 112})
          for (const int64_t channels : {3, 32, 2048}) {
            const Shape input =
              channels_last ? Shape{images, size, size, channels} : Shape{images, channels, size, size};
            global.channels_last = channels_last;
            const PoolConfig config = ConfigurePool(FitPool(global, input), DType::kFloat16, gpu.facts, 16);
            CheckThreads(gpu, config.threads, 1, ToString(input));
            widest = std::max(widest, config.cluster);
          }
    CHECK_WITH((widest > 1) == gpu.facts.has_clusters(), gpu.name);
  }
}

void TestTransposes() {
  const Shape whole{INT64_MAX, INT64_MAX, INT64_MAX};
  for (const Gpu& gpu : kGpus)
    for (const int64_t element : {1, 2, 4, 8, 16})
      for (const int64_t outside : {1, 8, 3000})
        for (int64_t rows = 2; rows < 5000; rows = rows * 5 / 3 + 1)
          for (int64_t columns = 2; columns < 5000; columns = columns * 5 / 3 + 1) {
            const Shape input{outside, rows, columns};
            if (!IsTaken(gpu.name, std::to_string(element) + ToString(input), 4)) continue;
            const TransposeConfig config =
              ConfigureTranspose(FitTranspose({{0, 2, 1}, {0, 0, 0}, whole}, input, element), gpu.facts, 16);
            CheckThreads(gpu, config.threads, 1, ToString(input));
            CHECK_WITH(config.blocks > 0 && config.shared_bytes <= cuda::kStaticSharedBytes, ToString(input));
          }
}

}  // namespace

int main() {
  TestEngines();
  TestFewChannels();
  TestNorms();
  TestNormTiles();
  TestPools();
  TestTransposes();
  return Summary();
}
