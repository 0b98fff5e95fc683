// FusedSumTo on the GPU: what is summed in one launch, which variant of sum_to.cu it gets, its source, and the
// launches.

#include <algorithm>
#include <numeric>
#include <sstream>

#include "ortplugin/ops/sum_to/sum_to.h"
#include "ortplugin/runtime/gpu/kernel_sources.h"
#include "ortplugin/runtime/gpu/plan_cache.h"
#include "ortplugin/runtime/ort/scratch.h"
#include "ortplugin/runtime/round_up.h"

namespace ortplugin {
namespace {

int64_t PowerDown(int64_t n) { return n < 1 ? 1 : PowerUp(n + 1) / 2; }

constexpr int kThreads = 256;  // the most of a block

DType SumType(const SumProgram& sums, size_t s) { return sums.program.value(sums.sums[s].value).dtype; }

// What a group's tensor number `t` needs: an element, one for each k, or a vector for each r.
bool IsScalar(const SumGroup& group, size_t t) { return group.axes.is_scalar(t); }
bool IsKept(const SumGroup& group, size_t t) {
  return std::all_of(
    group.summed.begin(), group.summed.end(), [&](size_t axis) { return group.axes.strides[t][axis] == 0; });
}
bool IsVector(const SumGroup& group, size_t t) { return group.axes.strides[t].back() != 0; }

// Some of a group's axes, for an index over these.
Axes Part(const SumGroup& group, const std::vector<size_t>& axes) {
  Axes part;
  for (const size_t axis : axes) part.sizes.push_back(group.axes.sizes[axis]);
  for (const Shape& strides : group.axes.strides) {
    part.strides.emplace_back();
    for (const size_t axis : axes) part.strides.back().push_back(strides[axis]);
    if (axes.empty()) part.strides.back().push_back(0);
  }
  if (axes.empty()) part.sizes.push_back(1);
  return part;
}

// The tensors that an index leads into.
std::vector<size_t> Tensors(const SumGroup& group) {
  std::vector<size_t> tensors;
  for (size_t t = 0; t < group.parameters.size(); ++t)
    if (!IsScalar(group, t)) tensors.push_back(t);
  if (!group.results.empty()) tensors.push_back(group.parameters.size());
  return tensors;
}
IndexMap KeptMap(const SumGroup& group, const SumConfig& config) {
  return IndexMap("k", Part(group, group.kept), config.along ? 1 : config.vector, Tensors(group), config.wide);
}
IndexMap SummedMap(const SumGroup& group, const SumConfig& config) {
  return IndexMap("r", Part(group, group.summed), config.along ? config.vector : 1, Tensors(group), config.wide);
}

// Threads that add the chunks of one sum.
int64_t Adders(const SumPieces& pieces) { return std::min(PowerUp(DivideUp(pieces.chunks, 4)), int64_t{kThreads / 2}); }

}  // namespace

std::vector<SumGroup> GroupSums(const SumProgram& sums, const SumShape& shape, const Shapes& inputs) {
  const Program& program = sums.program;
  const size_t parameters = program.parameters().size();
  std::vector<SumGroup> groups;
  for (size_t s = 0; s < sums.sums.size(); ++s) {
    // Sums whose strides agree have the same axes, those of length 1 left aside.
    const auto strides = [&](size_t sum) { return shape.axes.strides[parameters + sum]; };
    const auto found = std::find_if(
      groups.begin(), groups.end(), [&](const SumGroup& group) { return strides(group.sums[0]) == strides(s); });
    if (found != groups.end()) {
      found->sums.push_back(s);
    } else {
      groups.emplace_back();
      groups.back().sums.push_back(s);
    }
  }
  groups[0].results = sums.whole;
  for (SumGroup& group : groups) {
    std::vector<ValueId> targets;
    for (const size_t s : group.sums) targets.push_back(sums.sums[s].operand);
    for (const size_t r : group.results) targets.push_back(program.results()[r]);
    group.statements = program.Closure(targets, {});
    for (const uint32_t index : group.statements) {
      const std::vector<ValueId>& operands = program.statements()[index].operands;
      targets.insert(targets.end(), operands.begin(), operands.end());
    }
    Shapes tensors;
    for (size_t i = 0; i < parameters; ++i) {
      if (std::find(targets.begin(), targets.end(), program.parameters()[i]) == targets.end()) continue;
      group.parameters.push_back(i);
      tensors.push_back(inputs[i]);
    }
    Shape kept = shape.shape;
    for (const int64_t axis : sums.sums[group.sums[0]].axes) kept[size_t(axis)] = 1;
    tensors.push_back(kept);
    group.axes = JoinAxes(shape.shape, tensors);
    group.kept_elements = group.summed_elements = 1;
    for (size_t axis = 0; axis < group.axes.count(); ++axis) {
      const bool is_summed = group.axes.strides.back()[axis] == 0;
      (is_summed ? group.summed : group.kept).push_back(axis);
      (is_summed ? group.summed_elements : group.kept_elements) *= group.axes.sizes[axis];
    }
    Shape& linear = group.axes.strides.back();
    int64_t stride = 1;
    for (size_t axis = group.axes.count(); axis-- > 0; stride *= group.axes.sizes[axis]) linear[axis] = stride;
  }
  return groups;
}

SumConfig ConfigureSums(const SumProgram& sums, const SumGroup& group, const DeviceFacts& gpu, bool aligned) {
  SumConfig best{};
  const size_t last = group.axes.count() - 1;
  best.along = !group.summed.empty() && group.summed.back() == last;
  int64_t widest = 1, narrowest = 8;  // bytes of an element of the tensors that vectors are taken of
  int64_t moved = 0, loaded = 0, held = 0;  // bytes of an element
  for (size_t t = 0; t < group.parameters.size(); ++t) {
    const auto size = int64_t(SizeOf(sums.program.parameter(group.parameters[t]).dtype));
    if (IsScalar(group, t) || !IsVector(group, t)) continue;
    widest = std::max(widest, size);
    narrowest = std::min(narrowest, size);
    held += size;
    if (IsKept(group, t)) continue;
    loaded += size;
    if (group.axes.is_linear(t)) moved += size;
  }
  for (const size_t r : group.results) {
    const auto size = int64_t(SizeOf(sums.program.result(r).dtype));
    widest = std::max(widest, size);
    narrowest = std::min(narrowest, size);
    moved += size;
    held += size;
  }
  int64_t terms = 0;
  for (const size_t s : group.sums) terms += SizeOf(SumType(sums, s)) == 8 ? 8 : 4;
  best.stream = moved * group.kept_elements * group.summed_elements > gpu.l2_bytes;

  // As in FusedPointwise: accesses of 16 bytes to the widest tensors and of no less than 4 to the narrowest, and so
  // many of a thread at once that 64 bytes are under way, as far as registers and code allow.
  constexpr int64_t kWanted = 64, kMostHeld = 256, kMostCode = 1024;
  const int64_t code = 2 + int64_t(group.statements.size());
  int64_t vector = aligned ? std::max(16 / widest, 4 / narrowest) : 1;
  while (vector > 1 && (vector * (held + 2 * terms) > kMostHeld || vector * code > kMostCode)) vector /= 2;
  vector = std::gcd(vector, group.axes.sizes[last]);
  best.vector = int(vector);
  const int64_t kept = best.along ? group.kept_elements : group.kept_elements / vector;
  const int64_t summed = best.along ? group.summed_elements / vector : group.summed_elements;
  int64_t items = 1;
  while (items < 8 && items < summed && 2 * items * vector * std::max<int64_t>(1, loaded) <= kWanted &&
    2 * items * vector * (held + terms) <= kMostHeld && 2 * items * vector * code <= kMostCode)
    items *= 2;
  // Threads of one k: as few as need no second step, so that short rows share blocks; no fewer than make accesses of
  // 128 bytes.
  const int64_t enough = 4 * gpu.multiprocessors;
  const int64_t steps = DivideUp(summed, items);
  if (best.along) {
    const int64_t least = std::min(PowerUp(summed), 128 / std::min<int64_t>(128, vector * widest));
    best.summed_threads = int(std::min<int64_t>(kThreads, std::max(PowerUp(steps), least)));
    best.kept_threads = kThreads / best.summed_threads;
  } else {
    // Some 64 vectors of k side by side, with few threads idle at the end; fewer where that makes enough blocks to do
    // without chunks, more where there is little to add up.
    int64_t side = std::min<int64_t>(kept, 64);
    if (kept >= 8 * enough) {
      while (side > 8 && DivideUp(kept, side) < enough) side /= 2;
    } else if (kept > 64) {
      for (int64_t option = 63; option >= 24; --option)
        if (RoundUp(kept, option) < RoundUp(kept, side)) side = option;
    }
    best.summed_threads = int(std::min(PowerDown(kThreads / side), PowerUp(steps)));
    if (best.summed_threads * side < kThreads / 2) side = std::min<int64_t>(kept, kThreads / best.summed_threads);
    best.kept_threads = int(side);
  }
  best.items = int(std::min(items, PowerUp(DivideUp(summed, best.summed_threads))));

  // Room for the indices of the last vectors that are asked for.
  constexpr int64_t kNarrow = (int64_t{1} << 31) - 16 * kThreads;
  best.wide = kept >= kNarrow || summed >= kNarrow || KeptMap(group, best).largest_stride() > UINT32_MAX ||
    SummedMap(group, best).largest_stride() > UINT32_MAX;
  return best;
}

SumPieces CutSums(const SumGroup& group, const SumConfig& config, int64_t resident) {
  const int64_t kept = group.kept_elements / (config.along ? 1 : config.vector);
  const int64_t summed = group.summed_elements / (config.along ? config.vector : 1);
  const int64_t blocks = DivideUp(kept, config.kept_threads);
  const int64_t step = int64_t{config.summed_threads} * config.items,
                steps = std::max<int64_t>(1, DivideUp(summed, step));
  // One wave of blocks, or several of blocks that still have enough to do each: the last to finish are then shorter.
  constexpr int64_t kFew = 4, kMany = 8, kWaves = 4;
  const int64_t wave = resident / blocks;
  int64_t chunks = steps <= kFew ? 1 : std::clamp<int64_t>(wave, 1, steps);
  if (steps / kMany * blocks >= kWaves * resident) chunks = std::max(chunks, kWaves * resident / blocks);
  const int64_t size = DivideUp(steps, chunks) * step;
  return {blocks, size, std::max<int64_t>(1, DivideUp(summed, size))};
}

std::vector<uint64_t> SumNumbers(const SumGroup& group, const SumConfig& config, const SumPieces& pieces) {
  const int64_t unit = config.vector;
  std::vector<uint64_t> numbers;
  for (const int64_t number :
    {group.kept_elements / (config.along ? 1 : unit), group.summed_elements / (config.along ? unit : 1),
      pieces.kept_blocks, pieces.chunk_size, pieces.chunks, group.kept_elements, Adders(pieces)})
    numbers.push_back(uint64_t(number));
  for (const IndexMap& map : {KeptMap(group, config), SummedMap(group, config)}) {
    const std::vector<uint64_t> each = map.Numbers();
    numbers.insert(numbers.end(), each.begin(), each.end());
  }
  return numbers;
}

namespace {

// Writes the text in front of sum_to.cu: sizes as macros, operands and results, and the program.
class SourceWriter {
 public:
  SourceWriter(const SumProgram& sums, const SumGroup& group, const SumConfig& config)
    : sums_(sums),
      program_(sums.program),
      group_(group),
      config_(config),
      kept_(KeptMap(group, config)),
      summed_(SummedMap(group, config)),
      inputs_(group.parameters.size()) {}

  std::string Write() {
    WriteSizes();
    WriteArguments();
    WriteScalars();
    WriteKept();
    WriteOperands();
    WriteResults();
    WriteProgram();
    WriteStoreSums();
    text_ << kSumToSource;
    return text_.str();
  }

 private:
  DType TypeOf(size_t t) const { return sums_.program.parameter(group_.parameters[t]).dtype; }
  std::string Storage(size_t t) const { return StorageType(TypeOf(t)); }
  std::string Pointer(size_t t) const { return "(const " + Storage(t) + "*)a.in[" + std::to_string(t) + "]"; }
  std::string VectorOf(size_t t) const {
    return "Vector<" + Storage(t) + ", " + (IsVector(group_, t) ? "VECTOR" : "1") + "> p" + std::to_string(t);
  }

  void WriteSizes() {
    text_ << kCommonSource << "\n"
          << kPointwiseSource << "\n"
          << Defines({{"VECTOR", config_.vector}, {"ITEMS", config_.items}, {"ALONG", config_.along},
               {"KEPT_THREADS", config_.kept_threads}, {"SUMMED_THREADS", config_.summed_threads}})
          // Left to itself the compiler keeps some of so many sums, or of the addresses of single elements, in memory.
          << "#define BOUNDS KEPT_THREADS * SUMMED_THREADS"
          << (group_.sums.size() > 4   ? ", 1"
                 : config_.vector == 1 ? ", 4"
                                       : "")
          << "\n"
          << "#define EACH_SUM(DO)";
    for (size_t n = 0; n < group_.sums.size(); ++n)
      text_ << " DO(" << n << ", " << ComputeType(SumType(sums_, group_.sums[n])) << ")";
  }

  void WriteArguments() {
    size_t sum_results = 0;
    for (const size_t s : group_.sums) sum_results += sums_.sums[s].results.size();
    text_ << "\ntypedef unsigned " << (config_.wide ? "long long" : "int") << " index_t;\n\n"
          << "struct Arguments {\n  const void* in[" << std::max<size_t>(1, inputs_) << "];\n  void* out["
          << group_.results.size() + sum_results << "];\n  void* partial[" << group_.sums.size()
          << "];\n  unsigned long long kept, summed, kept_blocks, chunk_size, chunks, sums, adders;\n"
          << kept_.EmitMembers() << summed_.EmitMembers() << "};\n\n";
  }

  void WriteScalars() {
    std::vector<ScalarOperand> scalars;
    for (size_t t = 0; t < inputs_; ++t)
      if (IsScalar(group_, t)) scalars.push_back({t, Storage(t), Pointer(t)});
    text_ << EmitScalars(scalars);
  }

  void WriteKept() {
    text_ << "struct Kept {\n";
    for (const size_t t : Tensors(group_)) text_ << "  unsigned long long at" << t << ";\n";
    for (size_t t = 0; t < inputs_; ++t)
      if (!IsScalar(group_, t) && IsKept(group_, t)) text_ << "  " << VectorOf(t) << ";\n";
    text_ << "  DEVICE Kept(const Arguments& a, index_t k) {\n" << kept_.EmitOffsets("    ");
    for (const size_t t : Tensors(group_)) text_ << "    at" << t << " = " << kept_.OffsetOf(t) << ";\n";
    for (size_t t = 0; t < inputs_; ++t)
      if (!IsScalar(group_, t) && IsKept(group_, t))
        text_ << "    p" << t << ".load(" << Pointer(t) << " + at" << t << ");\n";
    text_ << "  }\n};\n\n";
  }

  void WriteOperands() {
    text_ << "struct Operands {\n";
    for (size_t t = 0; t < inputs_; ++t)
      if (!IsKept(group_, t)) text_ << "  " << VectorOf(t) << ";\n";
    text_ << "  DEVICE void load(const Arguments& a, const Kept& at, index_t r) {\n" << summed_.EmitOffsets("    ");
    for (size_t t = 0; t < inputs_; ++t)
      if (!IsKept(group_, t))
        text_ << "    p" << t << (config_.stream && group_.axes.is_linear(t) ? ".load_once(" : ".load(") << Pointer(t)
              << " + at.at" << t << " + " << summed_.OffsetOf(t) << ");\n";
    text_ << "  }\n};\n\n";
  }

  void WriteResults() {
    text_ << "struct Results {\n";
    for (size_t n = 0; n < group_.results.size(); ++n) {
      const DType type = sums_.program.result(group_.results[n]).dtype;
      text_ << "  Vector<" << StorageType(type) << ", VECTOR> r" << n << ";\n  DEVICE void set" << n << "(int j, "
            << ComputeType(type) << " x) {\n    " << StorageType(type)
            << " stored;\n    from_compute(x, stored);\n    r" << n << ".set(j, stored);\n  }\n";
    }
    text_ << "  DEVICE void store(const Arguments& a, const Kept& at, index_t r) const {\n";
    if (!group_.results.empty()) text_ << summed_.EmitOffsets("    ");
    for (size_t n = 0; n < group_.results.size(); ++n)
      text_ << "    r" << n << (config_.stream ? ".store_once((" : ".store((")
            << StorageType(sums_.program.result(group_.results[n]).dtype) << "*)a.out[" << n << "] + at.at" << inputs_
            << " + " << summed_.OffsetOf(inputs_) << ");\n";
    text_ << "  }\n};\n\n";
  }

  void WriteProgram() {
    text_ << "template <typename T>\nDEVICE void apply(const Operands& operands, const Kept& at, "
             "const Scalars& scalars, int j, Results& results, T& terms) {\n";
    for (size_t t = 0; t < inputs_; ++t)
      text_ << "  const " << ComputeType(TypeOf(t)) << " v" << program_.parameters()[group_.parameters[t]]
            << " = to_compute("
            << (IsScalar(group_, t)    ? "scalars.p"
                   : IsKept(group_, t) ? "at.p"
                                       : "operands.p")
            << t << (!IsScalar(group_, t) && IsVector(group_, t) ? "[j]" : "[0]") << ");\n";
    text_ << EmitCuda(program_, group_.statements, "  ");
    for (size_t n = 0; n < group_.results.size(); ++n)
      text_ << "  results.set" << n << "(j, v" << program_.results()[group_.results[n]] << ");\n";
    for (size_t n = 0; n < group_.sums.size(); ++n)
      text_ << "  terms.s" << n << "[j] = v" << sums_.sums[group_.sums[n]].operand << ";\n";
    text_ << "}\n\n";
  }

  void WriteStoreSums() {
    text_ << "DEVICE void store_sums(const Arguments& a, unsigned long long element";
    for (const size_t s : group_.sums) text_ << ", " << ComputeType(SumType(sums_, s)) << " v" << sums_.sums[s].value;
    text_ << ") {\n";
    size_t out = group_.results.size();
    for (const size_t s : group_.sums) {
      text_ << EmitCuda(program_, sums_.sums[s].casts, "  ");
      for (const size_t r : sums_.sums[s].results)
        text_ << "  from_compute(v" << program_.results()[r] << ", ((" << StorageType(sums_.program.result(r).dtype)
              << "*)a.out[" << out++ << "])[element]);\n";
    }
    text_ << "}\n\n";
  }

  const SumProgram& sums_;
  const Program& program_;
  const SumGroup& group_;
  const SumConfig& config_;
  const IndexMap kept_, summed_;
  const size_t inputs_;  // and the number of the whole results' tensor
  std::ostringstream text_;
};

}  // namespace

std::string SumSource(const SumProgram& sums, const SumGroup& group, const SumConfig& config) {
  return SourceWriter(sums, group, config).Write();
}

namespace {

SumStage MakeStage(
  const SumProgram& sums, const SumGroup& group, const DeviceFacts& gpu, bool aligned, size_t& scratch_bytes) {
  const SumConfig config = ConfigureSums(sums, group, gpu, aligned);
  const std::string source = SumSource(sums, group, config);
  SumStage stage{};
  stage.sum = cuda::Load(gpu, source, "sum_to", cuda::Warn);
  const int threads = config.kept_threads * config.summed_threads;
  const int resident = cuda::BlocksPerMultiprocessor(gpu, stage.sum, threads);
  if (resident == 0) Fail("the kernel does not fit a multiprocessor of this GPU");
  const SumPieces pieces = CutSums(group, config, int64_t{resident} * gpu.multiprocessors);
  constexpr int64_t kMostBlocks = (int64_t{1} << 31) - 1;
  stage.sum_launch = {std::min(pieces.kept_blocks * pieces.chunks, kMostBlocks), threads};
  if (pieces.chunks > 1) {
    const int64_t adders = Adders(pieces);
    stage.add = cuda::Load(gpu, source, "add_chunks", cuda::Warn);
    stage.add_launch = {std::min(DivideUp(group.kept_elements, kThreads / adders), kMostBlocks), kThreads};
  }
  stage.inputs = group.parameters;
  stage.outputs = group.results;
  for (const size_t s : group.sums) {
    const std::vector<size_t>& results = sums.sums[s].results;
    stage.outputs.insert(stage.outputs.end(), results.begin(), results.end());
    stage.partial.push_back(scratch_bytes);
    if (pieces.chunks > 1) scratch_bytes += size_t(pieces.chunks * group.kept_elements) * 8;
  }
  stage.arguments.resize(std::max<size_t>(1, stage.inputs.size()) + stage.outputs.size() + stage.partial.size());
  const std::vector<uint64_t> numbers = SumNumbers(group, config, pieces);
  stage.arguments.insert(stage.arguments.end(), numbers.begin(), numbers.end());
  constexpr size_t kMostArguments = 4096 / sizeof(uint64_t);
  if (stage.arguments.size() > kMostArguments)
    Fail("the inputs broadcast along too many axes in too many ways for the ", kMostArguments,
      " numbers that a kernel takes: ", stage.arguments.size(), ". Split the node");
  return stage;
}

}  // namespace

SumPlan PlanSums(const SumProgram& sums, const Shapes& inputs, const DeviceFacts& gpu, bool aligned) {
  const SumShape fit = FitSums(sums, inputs);
  SumPlan plan{fit.results, {}, 0};
  for (const SumGroup& group : GroupSums(sums, fit, inputs))
    if (group.kept_elements > 0) plan.stages.push_back(MakeStage(sums, group, gpu, aligned, plan.scratch_bytes));
  return plan;
}

void RunSums(const SumPlan& plan, const DeviceFacts& gpu, cuda::Stream stream, const std::vector<const void*>& inputs,
  const std::vector<void*>& outputs, char* scratch) {
  for (const SumStage& stage : plan.stages) {
    std::vector<uint64_t> arguments = stage.arguments;
    size_t at = 0;
    for (const size_t i : stage.inputs) arguments[at++] = reinterpret_cast<uintptr_t>(inputs[i]);
    at = std::max<size_t>(at, 1);
    for (const size_t r : stage.outputs) arguments[at++] = reinterpret_cast<uintptr_t>(outputs[r]);
    for (const size_t offset : stage.partial) arguments[at++] = reinterpret_cast<uintptr_t>(scratch + offset);
    void* parameters[] = {arguments.data()};
    cuda::Launch(gpu, stage.sum, stage.sum_launch, stream, parameters);
    if (stage.add != nullptr) cuda::Launch(gpu, stage.add, stage.add_launch, stream, parameters);
  }
}

namespace {

class CudaSumTo : public Kernel {
 public:
  explicit CudaSumTo(const NodeInfo& info)
    : sums_(SumProgram::Parse(info.string_attribute("program"))), scratch_(info), device_(cuda::Device(info.device())) {
    Prepare(info);
  }

  void Compute(Run& run) const override {
    const auto [tensors, shapes] = ReadParameters(sums_.program, run);
    const bool aligned = AreAligned(tensors);
    std::vector<const void*> inputs;
    for (const Tensor& tensor : tensors) inputs.push_back(tensor.data);
    const cuda::Stream stream = run.stream();
    // Outputs bound by the caller may start anywhere, which is known once the shapes are.
    Shapes fit;
    std::shared_ptr<const SumPlan> plan = plans_.Find(shapes, aligned);
    if (plan == nullptr) fit = FitSums(sums_, shapes).results;
    const Shapes& results = plan != nullptr ? plan->results : fit;
    std::vector<void*> outputs;
    bool all_aligned = aligned, any = false;
    for (size_t r = 0; r < results.size(); ++r) {
      outputs.push_back(run.output(r, results[r]));
      all_aligned = all_aligned && reinterpret_cast<uintptr_t>(outputs[r]) % 16 == 0;
      any = any || ElementCount(results[r]) > 0;
    }
    if (!any) return;
    if (all_aligned != aligned) plan = plans_.Find(shapes, all_aligned);
    if (plan == nullptr) {
      cuda::RefuseCapture(device_, stream);
      plan = Make(shapes, all_aligned);
    }
    scratch_.Lend(
      run, plan->scratch_bytes, [&](char* memory) { RunSums(*plan, device_, stream, inputs, outputs, memory); });
  }

 private:
  // Compiles for the shapes that the model declares, so that errors come with the session and runs find the kernels
  // there. Where a guessed dimension is wrong or fits nothing, the first run compiles.
  void Prepare(const NodeInfo& info) {
    const auto shapes = GuessShapes(CheckSums(sums_, info));
    if (!shapes) return;
    const SumShape fit = FitSums(sums_, *shapes);
    if (std::any_of(fit.results.begin(), fit.results.end(), [](const Shape& each) { return ElementCount(each) > 0; }))
      Make(*shapes, true);
  }

  std::shared_ptr<const SumPlan> Make(const Shapes& shapes, bool aligned) const {
    return plans_.Keep(shapes, aligned, std::make_unique<SumPlan>(PlanSums(sums_, shapes, device_, aligned)));
  }

  SumProgram sums_;
  DeviceScratch scratch_;
  const DeviceFacts& device_;
  mutable PlanCache<SumPlan, bool> plans_;
};

}  // namespace

std::unique_ptr<Kernel> CreateCudaSumTo(const NodeInfo& info) { return std::make_unique<CudaSumTo>(info); }

}  // namespace ortplugin
