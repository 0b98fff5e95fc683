// FusedPointwise on the GPU: which variant of pointwise.cu a program and its shapes get, its source, and the launch.

#include <algorithm>
#include <numeric>
#include <sstream>

#include "ortplugin/ops/pointwise/pointwise.h"
#include "ortplugin/runtime/gpu/cuda.h"
#include "ortplugin/runtime/gpu/kernel_sources.h"
#include "ortplugin/runtime/gpu/plan_cache.h"
#include "ortplugin/runtime/round_up.h"

namespace ortplugin {
namespace {

// Like layer norm this operator is as fast as it keeps memory busy; what no limit of the hardware gives was measured
// for that, on an H200 over the cases of benchmarks/pointwise.py.
constexpr int kThreads = 256;  // the most of a block

// Instructions of a statement on one element, about: what an unrolled loop multiplies, and a compiler has to chew.
// Without a default, so that the compiler asks it of every new operator.
int Weight(Op op, bool is_double) {
  switch (op) {
    case Op::kAbs:
    case Op::kNeg:
    case Op::kFloor:
    case Op::kCeil:
    case Op::kRound:
    case Op::kSign:
    case Op::kRelu:
    case Op::kAdd:
    case Op::kSub:
    case Op::kMul:
    case Op::kMin:
    case Op::kMax:
    case Op::kPRelu:
    case Op::kLeakyRelu:
    case Op::kThresholdedRelu:
    case Op::kShrink:
    case Op::kClip:
    case Op::kHardSigmoid:
    case Op::kHardSwish:
    case Op::kBitwiseAnd:
    case Op::kBitwiseOr:
    case Op::kBitwiseXor:
    case Op::kBitwiseNot:
    case Op::kBitShift:
    case Op::kEqual:
    case Op::kLess:
    case Op::kLessOrEqual:
    case Op::kGreater:
    case Op::kGreaterOrEqual:
    case Op::kAnd:
    case Op::kOr:
    case Op::kXor:
    case Op::kNot:
    case Op::kWhere:
    case Op::kIsNaN:
    case Op::kIsInf:
    case Op::kCast: return 2;
    case Op::kPow: return is_double ? 500 : 120;
    case Op::kSin:
    case Op::kCos:
    case Op::kTan: return is_double ? 300 : 120;
    case Op::kReciprocal:
    case Op::kSqrt:
    case Op::kExp:
    case Op::kLog:
    case Op::kAsin:
    case Op::kAcos:
    case Op::kAtan:
    case Op::kSinh:
    case Op::kCosh:
    case Op::kTanh:
    case Op::kAsinh:
    case Op::kAcosh:
    case Op::kAtanh:
    case Op::kErf:
    case Op::kSigmoid:
    case Op::kSoftplus:
    case Op::kSoftsign:
    case Op::kMish:
    case Op::kElu:
    case Op::kCelu:
    case Op::kSelu:
    case Op::kSwish:
    case Op::kQuickGelu:
    case Op::kGelu:
    case Op::kDiv:
    case Op::kMod:
    case Op::kLayerNormalization:
    case Op::kRMSNormalization:
    case Op::kSumTo: break;
  }
  return is_double ? 120 : 25;
}

int Weight(const Program& program, const Statement& statement) {
  const Value& last = program.value(statement.operands.back());
  if (statement.op == Op::kPow && last.kind == Value::Kind::kLiteral && (last.literal == 2 || last.literal == 3))
    return 2;
  return Weight(statement.op, last.dtype == DType::kDouble);
}

bool IsLinear(const PointwiseShape& shape, size_t parameter) { return shape.axes.is_linear(parameter); }
bool IsScalar(const PointwiseShape& shape, size_t parameter) { return shape.axes.is_scalar(parameter); }
bool IsRepeated(const PointwiseShape& shape, size_t parameter) {
  return !IsLinear(shape, parameter) && !IsScalar(shape, parameter);
}

std::vector<size_t> RepeatedParameters(const PointwiseShape& shape) {
  std::vector<size_t> parameters;
  for (size_t i = 0; i < shape.axes.strides.size(); ++i)
    if (IsRepeated(shape, i)) parameters.push_back(i);
  return parameters;
}

// Offsets of the tensors that are repeated: from the number of a vector, or of an element where vectors cross rows.
IndexMap MapOf(const PointwiseShape& shape, const PointwiseConfig& config) {
  return IndexMap(config.across ? "element" : "index", shape.axes, config.across ? 1 : config.vector,
    RepeatedParameters(shape), config.wide);
}

}  // namespace

PointwiseConfig ConfigurePointwise(
  const Program& program, const PointwiseShape& shape, const DeviceFacts& gpu, int most_vector) {
  PointwiseConfig best{};
  int64_t widest = 0, narrowest = 8;  // bytes of an element of the tensors of the full shape
  int64_t written = 0, held = 0;  // bytes of an element: in memory, in registers
  for (size_t i = 0; i < program.parameters().size(); ++i) {
    const auto size = int64_t(SizeOf(program.parameter(i).dtype));
    if (!IsScalar(shape, i)) held += size;
    if (!IsLinear(shape, i)) continue;
    widest = std::max(widest, size);
    narrowest = std::min(narrowest, size);
  }
  for (size_t r = 0; r < program.results().size(); ++r) {
    const auto size = int64_t(SizeOf(program.result(r).dtype));
    widest = std::max(widest, size);
    narrowest = std::min(narrowest, size);
    written += size;
  }
  held += written;
  int64_t weight = 0;
  for (const Statement& statement : program.statements()) weight += Weight(program, statement);

  // Accesses of 16 bytes to the widest tensors and of no less than 4 to the narrowest, as far as registers and code
  // allow.
  constexpr int64_t kMostHeld = 256, kMostCode = 4096;
  int64_t vector = std::min<int64_t>(most_vector, std::max(16 / widest, 4 / narrowest));
  while (vector > 1 && (vector * held > kMostHeld || vector * weight > kMostCode)) vector /= 2;
  if (shape.axes.count() > 1) {
    // Vectors that end with the rows have one offset each.
    const int64_t whole = std::gcd(vector, shape.axes.sizes.back());
    best.across = whole < vector && whole * widest < 8;
    if (!best.across) vector = whole;
  }
  best.vector = int(vector);
  best.tail = shape.count % vector != 0;

  // One vector a thread keeps memory busiest; narrower ones come in such numbers that they make up 16 bytes, and where
  // offsets are worked out for every element a second one hides them.
  int64_t items = std::clamp<int64_t>(16 / (vector * widest), best.across && vector >= 8 ? 2 : 1, 8);
  best.threads = items > 1 || best.across ? kThreads / 2 : kThreads;
  const int64_t vectors = shape.count / vector;
  // A small problem is spread over the whole GPU instead.
  while (items > 1 &&
    (items * vector * held > kMostHeld || items * vector * weight > kMostCode / 2 ||
      vectors < items * best.threads * 4 * gpu.multiprocessors))
    items /= 2;
  best.items = int(items);
  best.tiles = std::max<int64_t>(1, DivideUp(vectors, best.threads * items));

  // Room for the index of the last tile's last vector.
  constexpr int64_t kNarrow = (int64_t{1} << 31) - 8 * kThreads * kMostVector;
  best.wide = (best.across || shape.axes.count() == 1 ? shape.count : vectors) >= kNarrow ||
    MapOf(shape, best).largest_stride() > UINT32_MAX;
  return best;
}

std::string PointwiseSource(const Program& program, const PointwiseShape& shape, const PointwiseConfig& config) {
  const size_t inputs = program.parameters().size(), outputs = program.results().size();
  const IndexMap map = MapOf(shape, config);
  const std::vector<size_t> repeated = RepeatedParameters(shape);
  // Along the last axis a tensor of the rows has one element.
  const auto is_row_value = [&](size_t i) {
    return IsRepeated(shape, i) && !config.across && shape.axes.strides[i].back() == 0;
  };
  const auto storage = [&](size_t i) { return StorageType(program.parameter(i).dtype); };
  const auto pointer = [&](size_t i) { return "(const " + storage(i) + "*)a.in[" + std::to_string(i) + "]"; };
  std::ostringstream text;
  text << kCommonSource << "\n"
       << kPointwiseSource << "\n"
       << Defines({{"VECTOR", config.vector}, {"ITEMS", config.items}, {"THREADS", kThreads}, {"TAIL", config.tail}})
       << "typedef unsigned " << (config.wide ? "long long" : "int") << " index_t;\n\n"
       << "struct Arguments {\n  const void* in[" << inputs << "];\n  void* out[" << outputs
       << "];\n  unsigned long long vectors, count;\n"
       << map.EmitMembers() << "};\n\n";

  std::vector<ScalarOperand> scalars;
  for (size_t i = 0; i < inputs; ++i)
    if (IsScalar(shape, i)) scalars.push_back({i, storage(i), pointer(i)});
  text << EmitScalars(scalars);

  text << "template <int N>\nstruct Operands {\n";
  for (size_t i = 0; i < inputs; ++i)
    if (!IsScalar(shape, i))
      text << "  Vector<" << storage(i) << ", " << (is_row_value(i) ? "1" : "N") << "> p" << i << ";\n";
  text << "  DEVICE void load(const Arguments& a, index_t index) {\n";
  for (size_t i = 0; i < inputs; ++i)
    if (IsLinear(shape, i))
      text << "    p" << i << ".load_ordered(" << pointer(i) << " + (unsigned long long)index * N);\n";
  if (config.across && !repeated.empty()) {
    text << "#pragma unroll\n    for (int j = 0; j < N; ++j) {\n      const index_t element = index * N + j;\n"
         << map.EmitOffsets("      ");
    for (const size_t i : repeated)
      text << "      Vector<" << storage(i) << ", 1> x" << i << ";\n      x" << i << ".load(" << pointer(i) << " + "
           << map.OffsetOf(i) << ");\n      p" << i << ".set(j, x" << i << "[0]);\n";
    text << "    }\n";
  } else if (!repeated.empty()) {
    text << map.EmitOffsets("    ");
    for (const size_t i : repeated)
      text << "    p" << i << ".load(" << pointer(i) << " + " << map.OffsetOf(i) << ");\n";
  }
  text << "  }\n};\n\n";

  text << "template <int N>\nstruct Results {\n";
  for (size_t r = 0; r < outputs; ++r) {
    const std::string type = StorageType(program.result(r).dtype);
    text << "  Vector<" << type << ", N> r" << r << ";\n  DEVICE void set" << r << "(int j, "
         << ComputeType(program.result(r).dtype) << " x) {\n    " << type
         << " stored;\n    from_compute(x, stored);\n    r" << r << ".set(j, stored);\n  }\n";
  }
  text << "  DEVICE void store(const Arguments& a, index_t index) const {\n";
  for (size_t r = 0; r < outputs; ++r)
    text << "    r" << r << ".store((" << StorageType(program.result(r).dtype) << "*)a.out[" << r
         << "] + (unsigned long long)index * N);\n";
  text << "  }\n};\n\n";

  text << "template <int N>\nDEVICE void apply(const Operands<N>& operands, const Scalars& scalars, "
          "int j, Results<N>& results) {\n";
  for (size_t i = 0; i < inputs; ++i)
    text << "  const " << ComputeType(program.parameter(i).dtype) << " v" << program.parameters()[i] << " = to_compute("
         << (IsScalar(shape, i) ? "scalars.p" : "operands.p") << i
         << (IsScalar(shape, i) || is_row_value(i) ? "[0]" : "[j]") << ");\n";
  std::vector<uint32_t> statements(program.statements().size());
  std::iota(statements.begin(), statements.end(), 0);
  text << EmitCuda(program, statements, "  ");
  for (size_t r = 0; r < outputs; ++r) text << "  results.set" << r << "(j, v" << program.results()[r] << ");\n";
  text << "}\n\n" << kFusedPointwiseSource;
  return text.str();
}

int MostVector(const void* address, size_t size) {
  // Accesses of 16 bytes and more take multiples of 16.
  const auto number = reinterpret_cast<uintptr_t>(address);
  if (number % 16 == 0) return kMostVector;
  return std::max(1, int((number & (~number + 1)) / size));
}

PointwisePlan PlanPointwise(
  const Program& program, const PointwiseShape& shape, const DeviceFacts& gpu, int most_vector) {
  const PointwiseConfig config = ConfigurePointwise(program, shape, gpu, most_vector);
  PointwisePlan plan;
  plan.arguments.resize(program.parameters().size() + program.results().size());
  plan.arguments.push_back(uint64_t(shape.count / config.vector));
  plan.arguments.push_back(uint64_t(shape.count));
  const std::vector<uint64_t> numbers = MapOf(shape, config).Numbers();
  plan.arguments.insert(plan.arguments.end(), numbers.begin(), numbers.end());
  constexpr size_t kMostArguments = 4096 / sizeof(uint64_t);
  if (plan.arguments.size() > kMostArguments)
    Fail("the inputs broadcast along too many axes in too many ways for the ", kMostArguments,
      " numbers that a kernel takes: ", plan.arguments.size(), ". Split the node");
  plan.kernel = cuda::Load(gpu, PointwiseSource(program, shape, config), "pointwise", cuda::Warn);
  constexpr int64_t kMostBlocks = (int64_t{1} << 31) - 1;
  plan.launch = {std::min(config.tiles, kMostBlocks), config.threads};
  return plan;
}

void RunPointwise(const PointwisePlan& plan, const DeviceFacts& gpu, cuda::Stream stream,
  const std::vector<const void*>& inputs, const std::vector<void*>& outputs) {
  std::vector<uint64_t> arguments = plan.arguments;
  for (size_t i = 0; i < inputs.size(); ++i) arguments[i] = reinterpret_cast<uintptr_t>(inputs[i]);
  for (size_t r = 0; r < outputs.size(); ++r) arguments[inputs.size() + r] = reinterpret_cast<uintptr_t>(outputs[r]);
  void* parameters[] = {arguments.data()};
  cuda::Launch(gpu, plan.kernel, plan.launch, stream, parameters);
}

namespace {

struct NodePlan {
  Shape shape;
  PointwisePlan launch;
};

class CudaPointwise : public Kernel {
 public:
  explicit CudaPointwise(const NodeInfo& info)
    : program_(ParsePointwise(info.string_attribute("program"))), device_(cuda::Device(info.device())) {
    // Compiles for the shapes that the model declares, so that errors come with the session and runs find the kernel
    // there. Where a guessed dimension is wrong or fits nothing, the first run compiles.
    const auto shapes = GuessShapes(CheckPointwise(program_, info));
    if (!shapes) return;
    const PointwiseShape fit = FitPointwise(program_, *shapes);
    if (fit.count > 0) Make(*shapes, fit, kMostVector);
  }

  void Compute(Run& run) const override {
    std::vector<const void*> addresses;
    Shapes shapes;
    int most_vector = kMostVector;
    for (size_t i = 0; i < program_.parameters().size(); ++i) {
      Tensor input = run.input(i);
      CheckType(program_, i, input.type);
      if (ElementCount(input.shape) > 1)
        most_vector = std::min(most_vector, MostVector(input.data, SizeOf(program_.parameter(i).dtype)));
      addresses.push_back(input.data);
      shapes.push_back(std::move(input.shape));
    }
    const cuda::Stream stream = run.stream();
    // Outputs bound by the caller may start anywhere, which is known once the shape is.
    PointwiseShape fit;
    std::shared_ptr<const NodePlan> plan = plans_.Find(shapes, most_vector);
    if (plan == nullptr) fit = FitPointwise(program_, shapes);
    const Shape& shape = plan != nullptr ? plan->shape : fit.shape;
    std::vector<void*> outputs;
    int most_vector_of_all = most_vector;
    for (size_t r = 0; r < program_.results().size(); ++r) {
      outputs.push_back(run.output(r, shape));
      most_vector_of_all = std::min(most_vector_of_all, MostVector(outputs[r], SizeOf(program_.result(r).dtype)));
    }
    if (ElementCount(shape) == 0) return;
    if (most_vector_of_all != most_vector) plan = plans_.Find(shapes, most_vector_of_all);
    if (plan == nullptr) {
      cuda::RefuseCapture(device_, stream);
      plan = Make(shapes, FitPointwise(program_, shapes), most_vector_of_all);
    }

    RunPointwise(plan->launch, device_, stream, addresses, outputs);
  }

 private:
  std::shared_ptr<const NodePlan> Make(const Shapes& shapes, const PointwiseShape& fit, int most_vector) const {
    auto plan = std::make_unique<NodePlan>();
    plan->shape = fit.shape;
    plan->launch = PlanPointwise(program_, fit, device_, most_vector);
    return plans_.Keep(shapes, most_vector, std::move(plan));
  }

  Program program_;
  const DeviceFacts& device_;
  mutable PlanCache<NodePlan, int> plans_;
};

}  // namespace

std::unique_ptr<Kernel> CreateCudaPointwise(const NodeInfo& info) { return std::make_unique<CudaPointwise>(info); }

}  // namespace ortplugin
