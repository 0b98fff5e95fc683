// norm_tiles.cu: how a shape is cut into tiles and these among blocks, and the source.

#include <algorithm>
#include <numeric>

#include "ortplugin/ops/layer_norm/layer_norm.h"
#include "ortplugin/runtime/gpu/kernel_sources.h"
#include "ortplugin/runtime/round_up.h"

namespace ortplugin {
namespace {

constexpr int kThreads = 384, kThreadsOfManyParts = 192;  // of a block; where accesses hold more than two parts
constexpr int64_t kSegment = 64;  // bytes of a tile's row, at least: two sectors
constexpr int64_t kTile = 16 << 10;  // bytes that make a block worth its launch
constexpr int64_t kMostAccesses = 128, kMostGroups = 128;  // of a tile's row
constexpr int kMostCluster = 8;  // blocks, on every GPU with clusters

// What s is kept as: an input as it lies.
DType HeldDType(const NormProgram& norm) {
  const DType dtype = norm.program.value(norm.summed).dtype;
  if (norm.prologue.empty()) return dtype;
  return dtype == DType::kDouble ? dtype : DType::kFloat;
}

int64_t SpanOf(const NormShape& shape, int vector) {
  return shape.groups == 1 ? vector : std::gcd(int64_t{vector}, shape.run);
}

// Groups side by side, as few as make whole accesses; more to read whole sectors, and enough for a block.
void ChooseTile(const NormShape& shape, const DeviceFacts& gpu, int64_t size, NormTiles* config) {
  const auto least = [&] { return config->vector / SpanOf(shape, config->vector); };
  while (config->vector > 1 && least() > 1 && least() * shape.run / config->vector > kThreadsOfManyParts)
    config->vector /= 2;
  config->groups = least();
  const auto wider = [&] {
    const int64_t bytes = config->groups * shape.run * size;
    if (bytes < kSegment) return true;
    return bytes * shape.height < kTile &&
      shape.outer * DivideUp(shape.groups, 2 * config->groups) >= 4 * int64_t{gpu.multiprocessors};
  };
  while (config->groups < shape.groups && wider() && 2 * config->groups <= kMostGroups &&
    2 * config->groups * shape.run / config->vector <= kMostAccesses)
    config->groups *= 2;
  config->groups = std::min(config->groups, shape.groups);
  config->accesses = config->groups * shape.run / config->vector;
  config->tiles = DivideUp(shape.groups, config->groups);
}

// Threads of a block for so many accesses of a tile. Of several groups each thread keeps to its columns.
int ThreadsFor(const NormTiles& config, int64_t parts, bool is_double, int64_t accesses) {
  const int64_t most = parts > 2 || is_double ? kThreadsOfManyParts : kThreads;
  if (config.groups == 1) return int(std::min(most, RoundUp(accesses, 32)));
  return int(std::min(most / config.accesses * config.accesses, accesses));
}

}  // namespace

NormTiles ConfigureNormTiles(const NormProgram& norm, const NormShape& shape, const DeviceFacts& gpu, bool aligned) {
  NormTiles config{};
  const NormAccess access = AccessOf(norm, shape, gpu, aligned);
  config.vector = access.vector;
  config.stream_results = access.results_fill_cache;
  ChooseTile(shape, gpu, access.narrowest, &config);

  const int64_t parts = config.vector / SpanOf(shape, config.vector), of_tile = shape.height * config.accesses;
  const int64_t unit = config.groups > 1 ? config.accesses : 1;
  config.threads = ThreadsFor(config, parts, access.is_double, of_tile);
  // s of all accesses under way is in registers: 16 elements, fewer where each access is several tensors'.
  size_t tensors = 0;
  for (const Access& each : shape.accesses)
    if (!each.is_shared() && !each.is_scalar()) ++tensors;
  config.batch = access.is_double || tensors > 3 ? 1 : std::clamp(16 / config.vector, 1, tensors > 1 ? 2 : 4);
  const auto cut = [&](int64_t chunks) {
    config.chunk = RoundUp(DivideUp(of_tile, chunks), unit);
    config.chunks = DivideUp(of_tile, config.chunk);
    config.blocks = shape.outer * config.tiles * config.chunks;
    const int64_t lanes = config.groups > 1 ? config.accesses : 1, compute = access.is_double ? 8 : 4;
    config.static_bytes = std::max<int64_t>(config.threads / 2, lanes) * parts * 3 * compute +
      config.groups * compute * (2 + 2 * config.chunks);
    // A Vector takes whole words.
    config.held_bytes = config.chunk * RoundUp(config.vector * int64_t(SizeOf(HeldDType(norm))), 4);
  };

  // One read: as few blocks for a tile as leave room for two on a multiprocessor and work for all of these.
  const int most = gpu.has_clusters() && !access.is_double ? kMostCluster : 1;
  const auto shared = [&] { return config.static_bytes + config.held_bytes + gpu.reserved_shared_per_block; };
  const int64_t work = int64_t{config.threads} * config.batch;
  for (int chunks = 1; chunks <= most; chunks *= 2) {
    if (chunks > 1 && DivideUp(of_tile, chunks) < work / 2) break;
    cut(chunks);
    if (2 * shared() <= gpu.shared_per_multiprocessor && config.blocks >= gpu.multiprocessors) break;
  }
  config.one_read = config.static_bytes + config.held_bytes <= gpu.shared_per_block;
  // Two, where they keep more of the GPU busy.
  const int64_t wanted =
    DivideUp(int64_t{2} * gpu.multiprocessors * kThreads / config.threads, shape.outer * config.tiles);
  const int64_t chunks = std::clamp<int64_t>(of_tile / (2 * work), 1, wanted);
  if (!config.one_read || (3 * config.blocks < gpu.multiprocessors && chunks > 2 * config.chunks)) {
    cut(chunks);
    config.one_read = false;
    config.static_bytes -= config.groups * (access.is_double ? 8 : 4) * 2 * config.chunks;
    config.held_bytes = 0;
    config.moments_bytes = config.blocks * config.groups * 2 * (access.is_double ? 8 : 4);
  }
  config.min_blocks = std::max(1, 2 * kThreads / config.threads);
  if (config.one_read)
    config.min_blocks = int(std::clamp<int64_t>(gpu.shared_per_multiprocessor / shared(), 1, config.min_blocks));
  config.min_blocks = std::min({config.min_blocks, gpu.blocks_per_multiprocessor,
    gpu.threads_per_multiprocessor / int(RoundUp(config.threads, 32)), 4});
  return config;
}

std::string NormTilesSource(const NormProgram& norm, const NormShape& shape, const NormTiles& config) {
  const std::string sizes = Defines({{"HEIGHT", shape.height}, {"RUN", shape.run}, {"VECTOR", config.vector},
    {"SPAN", SpanOf(shape, config.vector)}, {"THREADS", config.threads}, {"BATCH", config.batch},
    {"MIN_BLOCKS", config.min_blocks}, {"GROUPS", config.groups}, {"ACCESSES", config.accesses},
    {"TILES", config.tiles}, {"CHUNK", config.chunk}, {"CHUNKS", config.chunks}, {"ONE_READ", config.one_read},
    {"HELD_BYTES", config.held_bytes}, {"CLUSTER", config.one_read ? config.chunks : 1}});
  return NormOperands(norm, shape, sizes, config.stream_results, true) + "typedef " + StorageType(HeldDType(norm)) +
    " held_t;\n" + kClusterSource + kNormTilesSource;
}

}  // namespace ortplugin
