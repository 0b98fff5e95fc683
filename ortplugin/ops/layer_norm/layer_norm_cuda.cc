// FusedLayerNorm on the GPU: which variant of layer_norm.cu a shape gets, its source, and the launch.

#include <algorithm>
#include <numeric>
#include <sstream>

#include "ortplugin/ops/layer_norm/layer_norm.h"
#include "ortplugin/runtime/gpu/cuda.h"
#include "ortplugin/runtime/gpu/kernel_sources.h"
#include "ortplugin/runtime/gpu/plan_cache.h"
#include "ortplugin/runtime/ort/scratch.h"
#include "ortplugin/runtime/round_up.h"

namespace ortplugin {
namespace {

// This operator is as fast as it keeps memory busy. The numbers in this file that no limit of the hardware gives were
// measured for that, on an H200 over the widths of benchmarks/layer_norm.py.
constexpr int kEnoughThreads = 1024;  // of a multiprocessor, to keep memory busy
constexpr int64_t kLongRow = 16384;  // elements of a row that several blocks share where rows are few

// The fewest registers that a lane does with, about.
int RegistersOfLane(const NormProgram& norm, const NormShape& shape, const NormConfig& config) {
  const bool is_double = norm.program.value(norm.summed).dtype == DType::kDouble;
  const int elements = config.items * config.vector;
  int ahead = 0;  // bytes an element of the operands that are loaded ahead
  for (const size_t i : norm.prologue_operands.parameters)
    if (config.prefetch && !shape.accesses[i].is_shared() && !shape.accesses[i].is_scalar())
      ahead += int(SizeOf(shape.accesses[i].dtype));
  const int fixed = (is_double ? 40 : 16) + 4 * int(shape.accesses.size());
  return fixed + config.rows_at_once * elements * ((is_double ? 8 : 4) + ahead) / 4;
}

// What each of so many threads of a multiprocessor may have: registers are handed out by eights to warps, and these are
// spread over four schedulers.
int RegisterLimit(const DeviceFacts& gpu, int threads) {
  return int(std::min(cuda::kRegistersPerThread, gpu.registers_per_multiprocessor / RoundUp(threads, 128) / 8 * 8));
}

constexpr int kWideBytes = 8;  // of an access

// Without a bound the compiler fills the registers with operands read early, and fewer rows are in flight. Beside rows
// that are loaded ahead in accesses of 8 bytes it needs no room for them.
int MinBlocks(
  const NormProgram& norm, const NormShape& shape, const NormConfig& config, const DeviceFacts& gpu, int access_bytes) {
  const int spare = access_bytes < kWideBytes ? 5 * config.items : config.prefetch && access_bytes == 8 ? 0 : 20;
  const int threads = config.lanes * config.groups;
  const int registers = RegistersOfLane(norm, shape, config) + spare;
  const int most = std::clamp(kEnoughThreads / threads, 1, gpu.blocks_per_multiprocessor);
  int blocks = std::clamp(gpu.registers_per_multiprocessor / (threads * registers), 1, most);
  while (blocks > 1 && RegisterLimit(gpu, threads * blocks) < RegistersOfLane(norm, shape, config)) --blocks;
  return blocks;
}

}  // namespace

NormAccess AccessOf(const NormProgram& norm, const NormShape& shape, const DeviceFacts& gpu, bool aligned) {
  NormAccess found{};
  found.is_double = norm.program.value(norm.summed).dtype == DType::kDouble;
  // 16 bytes of the narrowest floating tensor that is read or written along its rows, less where the width asks for it.
  found.narrowest = found.is_double ? 8 : 4;
  int64_t row_bytes = 0, result_bytes = 0;  // that are moved, and written, for each element of a row
  for (const Access& access : shape.accesses) {
    if (!access.is_scalar() && IsFloating(access.dtype))
      found.narrowest = std::min(found.narrowest, int(SizeOf(access.dtype)));
    if (!access.is_shared()) row_bytes += int64_t(SizeOf(access.dtype));
  }
  for (const ValueId result : norm.program.results()) {
    const DType dtype = norm.program.value(result).dtype;
    if (IsFloating(dtype)) found.narrowest = std::min(found.narrowest, int(SizeOf(dtype)));
    result_bytes += int64_t(SizeOf(dtype));
  }
  int64_t lengths = shape.width;  // of what lies side by side
  for (const Access& access : shape.accesses)
    if (access.is_pieced()) lengths = std::gcd(lengths, access.piece);
  found.vector = aligned ? int(std::gcd(lengths, int64_t{16 / found.narrowest})) : 1;
  found.bytes_moved = (row_bytes + result_bytes) * shape.rows * shape.width;
  found.results_fill_cache = result_bytes * shape.rows * shape.width > gpu.l2_bytes;
  return found;
}

std::optional<NormConfig> ConfigureLayerNorm(
  const NormProgram& norm, const NormShape& shape, const DeviceFacts& gpu, bool aligned) {
  if (shape.height > 1 || shape.groups > 1) return std::nullopt;
  if (shape.rows < gpu.multiprocessors / 2 && shape.width >= kLongRow) return std::nullopt;
  NormConfig best{};
  const NormAccess access = AccessOf(norm, shape, gpu, aligned);
  const bool is_double = access.is_double;
  const int narrowest = access.narrowest;
  best.vector = access.vector;
  best.stream_results = access.results_fill_cache;

  // Where the rows' pitch is no multiple of a 32-byte sector, accesses are lined up with the 128-byte lines.
  const int64_t accesses = DivideUp(shape.width, best.vector);
  const int access_bytes = best.vector * narrowest;
  best.line = accesses * access_bytes % 32 != 0 && access_bytes >= 8 && shape.rows > 1 ? 128 / access_bytes : 1;

  // Lanes: the fewest that leave no more than so many elements to each and idle few. First with rows loaded ahead,
  // which needs registers, in whole sets of four warps if that will do.
  const bool is_wide = access_bytes >= kWideBytes;
  const int few = is_wide && accesses <= 320 ? 40 : 24;
  const auto choose = [&](bool prefetch, int most_elements, double most_waste, bool any, int spare_registers) {
    for (int lanes = 32; lanes <= gpu.threads_per_block; lanes += 32) {
      if (!any && lanes > 64 && lanes % 128 != 0) continue;  // warps come in fours
      NormConfig option = best;
      option.lanes = lanes;
      option.prefetch = prefetch;
      option.items = int(DivideUp(accesses + option.line - 1, lanes));
      option.rows_at_once = 1;
      if (option.items * option.vector * (is_double ? 2 : 1) > most_elements + (is_wide && lanes == 32 ? 16 : 0))
        continue;
      if (double(option.items) * lanes > most_waste * double(accesses)) continue;
      if (RegistersOfLane(norm, shape, option) + spare_registers > RegisterLimit(gpu, lanes)) continue;
      best = option;
      return true;
    }
    return false;
  };
  constexpr double kAnyWaste = 1e9;
  if (!choose(true, few, 1.13, false, 0) && !choose(true, few, 1.13, true, 16) &&
    !choose(true, 44, kAnyWaste, true, 24) && !choose(false, 24, kAnyWaste, true, 24)) {
    return std::nullopt;
  }

  // A problem that leaves most of the GPU idle is a matter of latency: more threads a row, nothing loaded ahead.
  const bool is_small = shape.rows * best.lanes < int64_t{256} * gpu.multiprocessors;
  while (is_small && best.items > 1 && best.lanes * 2 <= 512) {
    best.lanes *= 2;
    best.items = int(DivideUp(accesses + best.line - 1, best.lanes));
  }
  best.groups = best.lanes > 32 || is_small ? 1 : is_wide ? 8 : 4;
  // What the L2 cache holds comes fast enough without being loaded ahead.
  best.prefetch = best.prefetch && !is_small && access.bytes_moved > gpu.l2_bytes;
  best.pass_l1 = best.stream_results && best.lanes <= 512;
  // Two rows at once share the reads of what all rows share.
  if (!is_small && best.line == 1 && is_wide &&
    (best.lanes >= 256 || (best.lanes == 32 && best.items * best.vector <= 48))) {
    best.rows_at_once = 2;
    if (RegistersOfLane(norm, shape, best) > RegisterLimit(gpu, best.lanes * best.groups)) best.rows_at_once = 1;
  }
  best.min_blocks = MinBlocks(norm, shape, best, gpu, access_bytes);
  return best;
}

std::string NormOperands(
  const NormProgram& norm, const NormShape& shape, const std::string& sizes, bool stream_results, bool pass_l1) {
  const Program& program = norm.program;
  std::ostringstream text;
  char epsilon[64];
  std::snprintf(epsilon, sizeof epsilon, "%a", norm.epsilon);
  text << "#define LOADS_PASS_L1 " << pass_l1 << "\n"
       << kCommonSource << "\n"
       << kPointwiseSource << "\n"
       << sizes << "#define WIDTH " << shape.width << "\n"
       << "#define IS_RMS " << norm.is_rms << "\n"
       << "#define EPSILON " << epsilon << "\n"
       << "typedef " << ComputeType(program.value(norm.summed).dtype) << " compute_t;\n"
       << "typedef " << (shape.rows < int64_t{1} << 31 ? "unsigned" : "unsigned long long") << " row_t;\n\n";
  text << EmitOperands(program, shape.accesses, {norm.prologue_operands, norm.epilogue_operands}, stream_results);
  const auto phase = [&](const Phase& operands, const std::vector<uint32_t>& statements, const std::string& signature) {
    text << "DEVICE " << signature << " {\n"
         << EmitParameterValues(program, shape.accesses, operands) << EmitCuda(program, statements, "  ")
         << EmitResultValues(program, operands);
  };
  const std::string s = "v" + std::to_string(norm.summed), n = "v" + std::to_string(norm.normalized);
  phase(norm.prologue_operands, norm.prologue,
    "compute_t prologue(const PrologueRow& row, const PrologueShared& shared, int j, PrologueResults& results)");
  text << "  return " << s << ";\n}\n\n";
  phase(norm.epilogue_operands, norm.epilogue,
    "void epilogue(const EpilogueRow& row, const EpilogueShared& shared, int j, compute_t " + s + ", compute_t " + n +
      ", EpilogueResults& results)");
  text << "}\n\n";
  return text.str();
}

std::string LayerNormSource(const NormProgram& norm, const NormShape& shape, const NormConfig& config) {
  const std::string sizes = Defines({{"VECTOR", config.vector}, {"LANES", config.lanes}, {"GROUPS", config.groups},
    {"MIN_BLOCKS", config.min_blocks}, {"ITEMS", config.items}, {"ROWS_AT_ONCE", config.rows_at_once},
    {"PREFETCH", config.prefetch}, {"LINE", config.line}});
  return NormOperands(norm, shape, sizes, config.stream_results, config.pass_l1) + kLayerNormSource;
}

namespace {

class CudaLayerNorm : public Kernel {
 public:
  explicit CudaLayerNorm(const NodeInfo& info)
    : norm_(NormProgram::Read(info, info.string_attribute("program"))),
      scratch_(info),
      device_(cuda::Device(info.device())) {
    Prepare(info);
  }

  void Compute(Run& run) const override {
    const auto [inputs, shapes] = ReadParameters(norm_.program, run);
    bool aligned = AreAligned(inputs);
    const cuda::Stream stream = run.stream();
    const size_t results = norm_.program.results().size();
    // Outputs bound by the caller may start anywhere, which is known once the shape is.
    NormShape fit;
    std::shared_ptr<const NormPlan> plan = plans_.Find(shapes, aligned);
    const Shape& shape = plan != nullptr ? plan->shape.shape : (fit = FitShapes(norm_, shapes)).shape;
    std::vector<void*> outputs;
    for (size_t r = 0; r < results; ++r) {
      outputs.push_back(run.output(r, shape));
      aligned = aligned && reinterpret_cast<uintptr_t>(outputs[r]) % 16 == 0;
    }
    if (ElementCount(shape) == 0) return;
    if (!aligned) plan = plans_.Find(shapes, aligned);
    if (plan == nullptr) {
      cuda::RefuseCapture(device_, stream);
      plan = Make(shapes, aligned);
    }

    std::vector<void*> addresses;
    for (const Tensor& input : inputs) addresses.push_back(const_cast<void*>(input.data));
    addresses.insert(addresses.end(), outputs.begin(), outputs.end());
    scratch_.Lend(run, plan->scratch_bytes, [&](char* memory) { plan->Run(device_, stream, addresses, memory); });
  }

 private:
  // Compiles for the shapes that the model declares, so that errors come with the session and runs find the kernel
  // there. Where a guessed dimension is wrong or fits nothing, the first run compiles. (What is known and does not fit,
  // CheckNode has refused.)
  void Prepare(const NodeInfo& info) {
    const TensorTypes types = CheckNode(norm_, info);
    auto shapes = norm_.ordered.empty() ? GuessShapes(types) : Shapes();
    for (const TensorType& type : types) {
      if (norm_.ordered.empty()) break;
      const auto guess = GuessShapes({type});  // they need not broadcast as they lie
      if (!guess) return;
      shapes->push_back(guess->front());
    }
    if (!shapes) return;
    NormShape fit;
    try {
      fit = FitShapes(norm_, *shapes);
    } catch (const Error&) {
      return;
    }
    if (ElementCount(fit.shape) > 0) Make(*shapes, true);
  }

  std::shared_ptr<const NormPlan> Make(const Shapes& shapes, bool aligned) const {
    return plans_.Keep(shapes, aligned, std::make_unique<NormPlan>(PlanNorm(norm_, shapes, aligned, device_)));
  }

  NormProgram norm_;
  DeviceScratch scratch_;
  const DeviceFacts& device_;
  mutable PlanCache<NormPlan, bool> plans_;  // by whether all tensors are aligned
};

}  // namespace

NormPlan PlanNorm(const NormProgram& norm, const Shapes& shapes, bool aligned, const DeviceFacts& device) {
  NormPlan plan;
  plan.shape = FitShapes(norm, shapes);
  const NormShape& shape = plan.shape;
  if (shape.elements() >= int64_t{1} << 30 || shape.width >= int64_t{1} << 30)
    Fail(
      "rows of ", std::max(shape.elements(), shape.width), " elements are longer than the 2^30 that the kernel counts");
  plan.arguments = ArgumentBlock(shape.accesses, norm.program.results().size(), shape.rows, 0);
  if (const auto config = ConfigureLayerNorm(norm, shape, device, aligned)) {
    plan.first = cuda::Load(device, LayerNormSource(norm, shape, *config), "layer_norm", cuda::Warn);
    const int threads = config->lanes * config->groups;
    const int resident = cuda::BlocksPerMultiprocessor(device, plan.first, threads);
    if (resident == 0) Fail("the kernel does not fit a multiprocessor of this GPU");
    // Blocks stay and take row after row, so that what rows share is read once by each.
    const int64_t pieces = DivideUp(shape.rows, int64_t{config->groups} * config->rows_at_once);
    const int64_t blocks = std::min<int64_t>(pieces, int64_t{resident} * device.multiprocessors);
    plan.launch = {blocks, threads};
  } else {
    const NormTiles tiles = ConfigureNormTiles(norm, shape, device, aligned);
    if (tiles.blocks >= int64_t{1} << 31)
      Fail(tiles.blocks, " blocks for the shape ", ToString(shape.shape), " are more than a launch has");
    const std::string source = NormTilesSource(norm, shape, tiles);
    plan.first = cuda::Load(device, source, tiles.one_read ? "norm_tiles" : "tile_moments", cuda::Warn);
    if (!tiles.one_read) plan.second = cuda::Load(device, source, "normalize_tiles", cuda::Warn);
    plan.launch = {tiles.blocks, tiles.threads, tiles.held_bytes};
    if (tiles.static_bytes + tiles.held_bytes > cuda::kStaticSharedBytes)
      cuda::AllowShared(device, plan.first, unsigned(tiles.held_bytes));
    plan.scratch_bytes = size_t(tiles.moments_bytes);
  }
  return plan;
}

void NormPlan::Run(
  const DeviceFacts& device, cuda::Stream stream, const std::vector<void*>& addresses, char* scratch) const {
  std::vector<uint64_t> given = arguments;
  for (size_t i = 0; i < addresses.size(); ++i) given[i] = reinterpret_cast<uintptr_t>(addresses[i]);
  void* parameters[] = {given.data(), &scratch};
  cuda::Launch(device, first, launch, stream, parameters);
  if (second != nullptr) cuda::Launch(device, second, launch, stream, parameters);
}

std::unique_ptr<Kernel> CreateCudaLayerNorm(const NodeInfo& info) { return std::make_unique<CudaLayerNorm>(info); }

}  // namespace ortplugin
