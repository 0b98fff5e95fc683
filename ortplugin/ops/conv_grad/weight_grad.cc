// Weight gradients of few channels: which variant of weight_grad.cu a shape gets, its source and its launches.

#include "ortplugin/ops/conv_grad/weight_grad.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <set>
#include <sstream>

#include "ortplugin/runtime/gpu/kernel_sources.h"
#include "ortplugin/runtime/round_up.h"
#include "ortplugin/target/target.h"

namespace ortplugin {
namespace {

double Number(int64_t n) { return double(n); }

constexpr int64_t kAddThreads = 256;

using Config = WeightGradConfig;

int64_t InRows(const WeightGrad& grad, const Config& s) {
  return (s.rows - 1) * grad.rows().stride + grad.rows().kernel;
}
int64_t InColumns(const WeightGrad& grad) {
  return (grad.columns().out - 1) * grad.columns().stride + grad.columns().kernel;
}
int64_t Strips(const WeightGrad& grad, const Config& s) { return DivideUp(grad.columns().out, s.strip); }
int64_t Tail(const WeightGrad& grad, const Config& s) { return grad.columns().out - (Strips(grad, s) - 1) * s.strip; }
int64_t Full(const WeightGrad& grad, const Config& s) {
  return Tail(grad, s) == s.strip ? Strips(grad, s) : Strips(grad, s) - 1;
}
int64_t ZStrip(const Config& s) { return RoundUp(s.strip, 4); }
int64_t ZRow(const WeightGrad& grad, const Config& s) {
  return (Strips(grad, s) - 1) * ZStrip(s) + RoundUp(Tail(grad, s), 4);
}
int64_t MapLanes(const Config& s) { return s.block_maps / s.maps; }
int64_t ColumnLanes(const WeightGrad& grad, const Config& s) {
  return s.block_channels / s.depth * (grad.rows().kernel / s.tap_rows);
}
int64_t Lanes(const WeightGrad& grad, const Config& s) { return MapLanes(s) * ColumnLanes(grad, s); }
int64_t Parts(const WeightGrad& grad, const Config& s) { return s.threads / Lanes(grad, s); }
int64_t MultiplyAdds(const WeightGrad& grad, const Config& s) {
  return s.maps * s.depth * s.tap_rows * grad.columns().kernel;
}
int64_t Entries(const WeightGrad& grad, const Config& s) {
  return MultiplyAdds(grad, s) + (grad.makes_bias ? DivideUp(s.maps, ColumnLanes(grad, s)) : 0);
}
int64_t WindowElements(const WeightGrad& grad, const Config& s, int64_t pixels) {
  return s.depth * s.tap_rows * ((pixels - 1) * grad.columns().stride + grad.columns().kernel);
}
int64_t SharedBytes(const Config& s) {
  const int64_t tile = int64_t{s.images} * (s.block_maps * s.z_pitch + s.block_channels * s.x_pitch);
  return 4 * std::max<int64_t>(tile, s.threads);
}
// Of a thread: its sums, and what it multiplies or has under way.
int64_t Registers(const WeightGrad& grad, const Config& s) {
  constexpr int64_t kStaged = 40;
  return RoundUp(Entries(grad, s) + std::max(WindowElements(grad, s, s.strip) + ZStrip(s), kStaged) + 34, 8);
}
int64_t Resident(const WeightGrad& grad, const Config& s, const DeviceFacts& gpu) {
  return gpu.ResidentBlocks(s.threads, Registers(grad, s), SharedBytes(s));
}

// Cycles of a multiprocessor, about, that a warp takes for the multiply-adds of a tile.
double MultiplyCycles(const WeightGrad& grad, const Config& s, int64_t segment) {
  const bool slides = s.tap_rows <= 3 && grad.rows().stride < s.tap_rows;
  const int64_t biases = Entries(grad, s) - MultiplyAdds(grad, s);
  const auto cycles_of = [&](int64_t pixels) {
    const int64_t row = WindowElements(grad, s, pixels) / s.tap_rows, vectors = (s.maps + biases) * DivideUp(pixels, 4);
    const auto cycles = [&](int64_t rows_of_x, int64_t rows) {
      const int64_t x = row * rows_of_x, z = vectors * rows;
      const double issued = Number((MultiplyAdds(grad, s) + biases) * pixels * rows + x + z) / 4,
                   shared = Number(x + 3 * z);
      return std::max(issued, shared) + std::min(issued, shared) / 2;
    };
    return slides ? cycles((segment - 1) * grad.rows().stride + s.tap_rows, segment) + 10 + 3 * Number(segment)
                  : cycles(segment * s.tap_rows, segment) + 10 + 3 * Number(segment);
  };
  const int64_t parts = Parts(grad, s), jobs = s.images * DivideUp(s.rows, segment);
  double all = Number(DivideUp(jobs * Full(grad, s), parts)) * cycles_of(s.strip);
  if (Tail(grad, s) < s.strip) all += Number(DivideUp(jobs, parts)) * cycles_of(Tail(grad, s));
  return all;
}

// Cycles, about, that the whole problem takes on this GPU. Fitted to an H200.
double Cost(const WeightGrad& grad, const Config& s, int64_t operand_bytes, const DeviceFacts& gpu) {
  int64_t resident = Resident(grad, s, gpu);
  if (resident == 0) return 1e30;
  const int64_t of_one = DivideUp(s.tiles * s.blocks, gpu.multiprocessors);  // tiles of a multiprocessor
  resident = std::min(resident, of_one);
  // Tiles of a block: the last to finish has no others beside it.
  const double rounds = (Number(DivideUp(of_one, resident)) + Number(of_one) / Number(resident)) / 2;
  const int64_t parts = Parts(grad, s), pixels = int64_t{s.rows} * grad.columns().out;
  const int64_t z = s.images * pixels * s.block_maps;
  const int64_t x = s.images * InRows(grad, s) * InColumns(grad) * s.block_channels;
  const double warps = Number(s.threads) / 32;
  const double staged = (9.0 * Number(z) + 8.0 * Number(x)) / s.threads / 4;
  const double of_tile = warps * (MultiplyCycles(grad, s, s.segment) + staged);
  // Loads of z that wait for each other; x comes meanwhile.
  const int64_t vectors = std::max<int64_t>(1, pixels / 4), owners = std::min<int64_t>(vectors, s.threads);
  const int64_t batches = DivideUp(vectors, owners) * DivideUp(s.images * s.block_maps, s.threads / owners * 3);
  const double latency = 900 + 800.0 * Number(batches);
  // Few warps leave gaps.
  const double gaps = 1.05 + 1.2 / std::max(1.0, warps * Number(resident) / 4);
  constexpr double kBytesOfCycle = 17;
  const double memory = Number(z * operand_bytes + x * 4) / kBytesOfCycle * Number(resident);
  const double busy = std::max(gaps * of_tile * Number(resident), memory);
  const double round = std::max(latency + gaps * of_tile, busy) + 0.7 * std::min(latency, busy);
  // What is left to be added up.
  const double last_sums = Number(Entries(grad, s)) * (8 + 4.0 * Number(parts) * Number(Lanes(grad, s)) / s.threads);
  const double chunks = Number(std::min(s.tiles, int64_t{gpu.multiprocessors} * resident / s.blocks + 1));
  const double sums = Number(s.blocks * Entries(grad, s) * Lanes(grad, s)) * 4;
  return rounds * round + last_sums + chunks * sums * 2 / 4000;
}

// How many wavefronts shared memory takes for `lanes` addresses that are asked for together, each of `width` elements.
int64_t Wavefronts(const std::vector<int64_t>& lanes, int64_t width) {
  const int64_t banks = 32 / width;
  std::array<int64_t, 32> met{};
  for (const int64_t at : std::set<int64_t>(lanes.begin(), lanes.end())) ++met[size_t(at / width % banks)];
  return *std::max_element(met.begin(), met.end());
}

// Rows and channels are put so far apart in shared memory that the threads of a warp read different banks.
void SpreadOverBanks(const WeightGrad& grad, Config* s) {
  const int64_t lanes = Lanes(grad, *s), columns = ColumnLanes(grad, *s), full = Full(grad, *s);
  const int64_t channel_lanes = s->block_channels / s->depth, threads = Parts(grad, *s) * lanes;
  const auto strip_of = [&](int64_t thread) {  // the thread's first, counted from the top
    const int64_t job = thread / lanes % (full * DivideUp(s->rows, s->segment));
    return job / full * s->segment * full + job % full;
  };
  const auto wavefronts = [&](int64_t group, int64_t width, const auto& address) {
    int64_t all = 0;
    for (int64_t first = 0; first < threads; first += group) {
      std::vector<int64_t> met;
      for (int64_t i = first; i < std::min(first + group, threads); ++i) met.push_back(address(i));
      all += Wavefronts(met, width);
    }
    return all;
  };
  int64_t best = INT64_MAX;
  const int64_t narrowest = s->x_row, least_z = s->z_pitch;
  for (int64_t row = narrowest; row < narrowest + 3; ++row)
    for (int64_t pitch = InRows(grad, *s) * row; pitch < InRows(grad, *s) * row + 32; ++pitch) {
      Config option = *s;
      option.x_row = int(row);
      option.x_pitch = int(pitch);
      if (SharedBytes(option) > cuda::kStaticSharedBytes) break;
      const int64_t met = wavefronts(32, 1, [&](int64_t i) {
        const int64_t column = i % lanes % columns, strip = strip_of(i);
        return column % channel_lanes * pitch + column / channel_lanes * s->tap_rows * row +
          strip / full * grad.rows().stride * row + strip % full * s->strip * grad.columns().stride;
      });
      if (met < best) best = met, *s = option;
    }
  best = INT64_MAX;
  for (int64_t pitch = least_z; pitch < least_z + 32; pitch += 4) {
    Config option = *s;
    option.z_pitch = int(pitch);
    if (SharedBytes(option) > cuda::kStaticSharedBytes) break;
    const int64_t met = wavefronts(8, 4, [&](int64_t i) {
      const int64_t strip = strip_of(i);
      return i % lanes / columns * pitch + strip / full * ZRow(grad, *s) + strip % full * ZStrip(*s);
    });
    if (met < best) best = met, *s = option;
  }
}

int64_t OperandBytes(const Program& program) {
  int64_t bytes = 0;
  for (const ValueId parameter : program.parameters()) bytes += int64_t(SizeOf(program.value(parameter).dtype));
  return bytes;
}

// What follows from the choice of a tile.
void Finish(const WeightGrad& grad, const Program& program, const DeviceFacts& gpu, Config* s) {
  SpreadOverBanks(grad, s);
  s->min_blocks = int(std::max<int64_t>(1, Resident(grad, *s, gpu)));
  int64_t widest = int64_t(SizeOf(program.result(0).dtype));
  for (const ValueId parameter : program.parameters())
    widest = std::max(widest, int64_t(SizeOf(program.value(parameter).dtype)));
  const int64_t pixels = grad.rows().out * grad.columns().out;
  const int64_t together = grad.channels_last ? std::gcd(int64_t{s->block_maps}, grad.filters)
                                              : std::gcd(pixels, s->rows * grad.columns().out);
  s->vector = int(std::gcd(std::min<int64_t>(4, 16 / widest), together));
  // As far as registers are left. NVRTC takes more of them for the newest GPUs.
  const int64_t registers =
    std::min<int64_t>(gpu.registers_per_multiprocessor / (s->threads * s->min_blocks), 168) / 8 * 8;
  const int64_t left = registers - Entries(grad, *s) - (gpu.major >= 12 ? 60 : 48);
  const int64_t of_vector = DivideUp(s->vector * OperandBytes(program), 4) + 3;
  s->batch = int(std::clamp<int64_t>(left / of_vector, 1, std::max<int64_t>(2, 48 / of_vector)));
  s->sums = s->blocks * Entries(grad, *s) * Lanes(grad, *s);
  // As many blocks as run at once, each of which takes about as many tiles; more where a thread would add up very many
  // products one after another.
  constexpr int64_t kMostPixels = 1 << 14;
  const int64_t at_once = std::max<int64_t>(1, int64_t{s->min_blocks} * gpu.multiprocessors / s->blocks);
  const int64_t of_tile = int64_t{s->images} * s->rows * grad.columns().out / Parts(grad, *s);
  const int64_t most = std::max<int64_t>(1, kMostPixels / std::max<int64_t>(1, of_tile));  // tiles of a block
  const int64_t rounds = DivideUp(s->tiles, at_once);
  s->chunks = DivideUp(s->tiles, rounds <= most ? rounds : DivideUp(rounds, DivideUp(rounds, most)));
  s->adders = 1;
  while (s->adders < 32 && s->adders * 8 < s->chunks) s->adders *= 2;
}

bool IsLinear(const Axes& axes, size_t i) { return axes.is_linear(i); }

// The first result is held in its dtype exactly: as the gradient of Relu, which is one of two operands.
bool IsExact(const Program& program) {
  const Value& result = program.result(0);
  if (result.dtype == DType::kFloat || result.kind == Value::Kind::kParameter) return true;
  if (result.kind == Value::Kind::kLiteral) return false;
  const Statement& maker = program.statements()[result.index];
  return maker.op == Op::kWhere && std::all_of(maker.operands.begin() + 1, maker.operands.end(), [&](ValueId operand) {
    const Value& value = program.value(operand);
    return value.kind == Value::Kind::kParameter || (value.kind == Value::Kind::kLiteral && value.literal == 0);
  });
}

}  // namespace

bool IsWeightGradProgram(const Program& program, const Axes& axes, bool makes_bias) {
  if (program.results().size() != 1) return false;
  if (makes_bias && !IsExact(program)) return false;
  for (size_t i = 0; i < program.parameters().size(); ++i)
    if (!IsLinear(axes, i) && !axes.is_scalar(i)) return false;
  return true;
}

bool FitsWeightGrad(const WeightGrad& grad) {
  // Indices run a little past the end before they are compared with it.
  constexpr int64_t kMost = (int64_t{1} << 31) - (int64_t{1} << 20), kMostWide = 4096;
  const DType dtype = grad.dtype();
  if (dtype != DType::kFloat && dtype != DType::kFloat16 && dtype != DType::kBFloat16) return false;
  if (grad.windows.size() != 2 || grad.groups != 1) return false;
  for (const Window& window : grad.windows)
    if (window.kernel > 16 || window.stride > 8 || window.dilation != 1 || window.out < 1 || window.out > kMostWide ||
      window.size > kMostWide || window.pad_begin > kMostWide)
      return false;
  return grad.channels <= 512 && grad.filters <= 512 && grad.batch >= 1 && grad.batch < (1 << 24) &&
    grad.batch * grad.channels * grad.rows().size * grad.columns().size < kMost &&
    grad.batch * grad.filters * grad.rows().out * grad.columns().out < kMost;
}

bool IsWeightGradFast(const WeightGrad& grad, const DeviceFacts& gpu) {
  const MeasuredGpu* const target = FindTarget(gpu);
  if (target == nullptr) return false;
  const TargetLimits& limits = target->limits;
  const int64_t taps = grad.rows().kernel * grad.columns().kernel, channel_pairs = grad.channels * grad.filters;
  if (grad.dtype() != DType::kFloat || grad.allow_tf32)
    return channel_pairs * taps <= limits.weight_grad_most_weights_tensor_cores;
  if (std::max(grad.channels, grad.filters) <= limits.weight_grad_most_channels) return true;
  const bool is_sparse = taps == 1 || grad.rows().stride * grad.columns().stride > 1;
  return is_sparse && std::min(grad.channels, grad.filters) <= limits.weight_grad_most_channels &&
    channel_pairs <= limits.weight_grad_most_pairs;
}

std::optional<WeightGradConfig> ConfigureWeightGrad(
  const WeightGrad& grad, const Program& program, const DeviceFacts& gpu) {
  constexpr int64_t kMostSums = 80;
  const int64_t bytes = OperandBytes(program) + (grad.stores_z ? 4 : 0);
  Config best{};
  double least = 1e30;
  const int64_t all_rows = grad.rows().kernel * grad.columns().kernel <= 9 ? grad.rows().kernel : 1;
  const auto sizes = [](int64_t count, int64_t most) {  // how many parts of a thread or block there are at most
    std::vector<int64_t> found;
    for (int64_t parts = 1, size = count; found.empty() || found.back() > 1; size = DivideUp(count, parts *= 2))
      if (size <= most) found.push_back(size);
    found.erase(std::unique(found.begin(), found.end()), found.end());
    return found;
  };
  Config s{};
  s.tap_rows = int(all_rows);
  for (const int64_t maps : sizes(grad.filters, 8))
    for (const int64_t depth : sizes(grad.channels, 8))
      for (const int64_t map_lanes : sizes(DivideUp(grad.filters, maps), 16))
        for (const int64_t channel_lanes : sizes(DivideUp(grad.channels, depth), 64)) {
          s.maps = int(maps);
          s.depth = int(depth);
          s.block_maps = int(maps * map_lanes);
          s.block_channels = int(depth * channel_lanes);
          if (MultiplyAdds(grad, s) > kMostSums && maps * depth > 1) continue;
          s.blocks = DivideUp(grad.filters, s.block_maps) * DivideUp(grad.channels, s.block_channels);
          for (const int threads : {128, 256}) {
            s.threads = threads;
            if (Lanes(grad, s) > threads || 2 * Parts(grad, s) * Lanes(grad, s) < threads) continue;
            for (int64_t strip = 1; strip <= std::min<int64_t>(8, grad.columns().out); ++strip) {
              s.strip = int(strip);
              if (Registers(grad, s) > 168 || (strip < 4 && grad.columns().out >= 4)) continue;
              for (int64_t parts = 1; parts <= std::min<int64_t>(grad.rows().out, 64); ++parts) {
                const int64_t rows = DivideUp(grad.rows().out, parts);
                if (parts > 1 && rows == DivideUp(grad.rows().out, parts - 1)) continue;
                s.rows = int(rows);
                s.x_row = int(InColumns(grad));
                s.x_pitch = int(InRows(grad, s) * s.x_row);
                s.z_pitch = int(rows * ZRow(grad, s));
                for (const int images : {1, 2, 3, 4, 6, 8, 16}) {
                  if (images > 1 && (parts > 1 || images > grad.batch)) break;
                  s.images = images;
                  if (SharedBytes(s) > cuda::kStaticSharedBytes) break;
                  s.tiles = DivideUp(grad.batch, images) * DivideUp(grad.rows().out, rows);
                  s.segment = s.rows;
                  double least_cycles = 1e30;
                  for (int64_t segments = 1; segments <= rows; ++segments) {
                    const int64_t segment = DivideUp(rows, segments);
                    if (segments > 1 && segment == DivideUp(rows, segments - 1)) continue;
                    const double cycles = MultiplyCycles(grad, s, segment);
                    if (cycles < least_cycles) least_cycles = cycles, s.segment = int(segment);
                  }
                  const double cost = Cost(grad, s, bytes, gpu);
                  if (cost < least) least = cost, best = s;
                }
              }
            }
          }
        }
  if (least >= 1e30) return std::nullopt;
  Finish(grad, program, gpu, &best);
  return best;
}

std::string WeightGradSource(
  const WeightGrad& grad, const Program& program, const Axes& axes, const WeightGradConfig& config) {
  const size_t inputs = program.parameters().size();
  const DType dtype = program.result(0).dtype;
  const auto type = [&](size_t i) { return program.parameter(i).dtype; };
  const auto vector = [&](size_t i) { return "Vector<" + StorageType(type(i)) + ", VECTOR> p" + std::to_string(i); };
  const auto pointer = [&](size_t i) { return "(const " + StorageType(type(i)) + "*)a.in[" + std::to_string(i) + "]"; };
  std::ostringstream text;
  text << kCommonSource << "\n"
       << kPointwiseSource << "\n"
       << Defines({{"CHANNELS", grad.channels}, {"OUTPUTS", grad.filters}}) << WindowMacros(grad)
       << Defines({{"CHANNELS_LAST", grad.channels_last}, {"STORES_Z", grad.stores_z}, {"HAS_BIAS", grad.makes_bias},
            {"IMAGES", config.images}, {"ROWS", config.rows}, {"MAPS", config.maps}, {"DEPTH", config.depth},
            {"TAP_ROWS", config.tap_rows}, {"STRIP", config.strip}, {"SEGMENT", config.segment},
            {"BLOCK_MAPS", config.block_maps}, {"BLOCK_CHANNELS", config.block_channels}, {"X_ROW", config.x_row},
            {"X_PITCH", config.x_pitch}, {"Z_PITCH", config.z_pitch}, {"VECTOR", config.vector},
            {"THREADS", config.threads}, {"MIN_BLOCKS", config.min_blocks}, {"ADDERS", config.adders},
            {"BATCH", config.batch}})
       << "typedef " << StorageType(dtype) << " storage_t;\ntypedef " << StorageType(grad.weight_dtype)
       << " weight_t;\ntypedef " << ComputeType(grad.weight_dtype) << " weight_compute_t;\n\n"
       << "struct Arguments {\n  const void* x;\n  const void* in[" << inputs
       << "];\n  void *z, *dw, *db, *partial;\n  unsigned long long images, chunks;\n};\n\n";

  std::vector<ScalarOperand> scalars;
  for (size_t i = 0; i < inputs; ++i)
    if (!IsLinear(axes, i)) scalars.push_back({i, StorageType(type(i)), pointer(i)});
  text << EmitScalars(scalars) << "struct Operands {\n";
  for (size_t i = 0; i < inputs; ++i)
    if (IsLinear(axes, i)) text << "  " << vector(i) << ";\n";
  text << "  DEVICE void load(const Arguments& a, unsigned element) {\n";
  for (size_t i = 0; i < inputs; ++i)
    if (IsLinear(axes, i)) text << "    p" << i << ".load(" << pointer(i) << " + element);\n";
  text << "  }\n};\n\n"
       << "DEVICE void apply(const Operands& operands, const Scalars& scalars, int j, storage_t& z) "
          "{\n";
  for (size_t i = 0; i < inputs; ++i)
    text << "  const " << ComputeType(type(i)) << " v" << program.parameters()[i] << " = to_compute("
         << (IsLinear(axes, i) ? "operands.p" : "scalars.p") << i << (IsLinear(axes, i) ? "[j]" : "[0]") << ");\n";
  std::vector<uint32_t> statements(program.statements().size());
  std::iota(statements.begin(), statements.end(), 0);
  text << EmitCuda(program, statements, "  ") << "  from_compute(v" << program.results()[0] << ", z);\n}\n\n"
       << kWeightGradSource;
  return text.str();
}

WeightGradPlan PlanWeightGrad(const WeightGrad& grad, const Program& program, const Axes& axes,
  const WeightGradConfig& config, const DeviceFacts& gpu) {
  const std::string source = WeightGradSource(grad, program, axes, config);
  WeightGradPlan plan{};
  plan.multiply = cuda::Load(gpu, source, "weight_grad", cuda::Warn);
  plan.add = cuda::Load(gpu, source, "add_weights", cuda::Warn);
  plan.multiply_launch = {config.chunks * config.blocks, config.threads};
  plan.add_launch = {DivideUp(config.sums, kAddThreads / config.adders), kAddThreads};
  plan.scratch_bytes = size_t(config.chunks * config.sums) * sizeof(float);
  plan.images = grad.batch;
  plan.chunks = config.chunks;
  return plan;
}

void RunWeightGrad(const WeightGradPlan& plan, const DeviceFacts& gpu, cuda::Stream stream, const void* x,
  const std::vector<const void*>& operands, void* z, void* dw, void* db, void* scratch) {
  std::vector<uint64_t> arguments{reinterpret_cast<uintptr_t>(x)};
  for (const void* each : operands) arguments.push_back(reinterpret_cast<uintptr_t>(each));
  for (void* each : {z, dw, db, scratch}) arguments.push_back(reinterpret_cast<uintptr_t>(each));
  arguments.push_back(uint64_t(plan.images));
  arguments.push_back(uint64_t(plan.chunks));
  void* parameters[] = {arguments.data()};
  cuda::Launch(gpu, plan.multiply, plan.multiply_launch, stream, parameters);
  cuda::Launch(gpu, plan.add, plan.add_launch, stream, parameters);
}

}  // namespace ortplugin
