#include "ortplugin/ops/conv/engines/engine.h"

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <sstream>

#include "ortplugin/runtime/gpu/kernel_sources.h"
#include "ortplugin/runtime/round_up.h"

namespace ortplugin {
namespace {

// An operand's strides along N, H, W and M of the output, in elements: terms like "96 * OUT_W", or empty where it is
// repeated.
struct Operand {
  DType dtype;
  std::array<std::string, 4> strides;
  bool is_linear;  // has the output's shape
  bool is_of_pixel() const { return is_linear || !strides[1].empty() || !strides[2].empty(); }
  // " + n * 96": where the program's vector of it begins.
  std::string Offset() const {
    if (is_linear) return " + offset";
    const char* const coordinates[] = {"n", "y", "x", "m"};
    std::string text;
    for (size_t i = 0; i < 4; ++i)
      if (!strides[i].empty()) text += std::string(" + ") + coordinates[i] + " * " + strides[i];
    return text;
  }
};

// Of the program's parameters from `first` on.
std::vector<Operand> Operands(const Program& program, size_t first, const Shapes& shapes, const Shape& full) {
  std::vector<Operand> operands;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const Shape& shape = shapes[i];
    Operand operand{program.parameter(first + i).dtype, {}, true};
    if (shape.size() > 4) Fail("the shape ", ToString(shape), " does not broadcast to ", ToString(full));
    int64_t stride = 1;
    std::string sizes;
    for (size_t axis = 4; axis-- > 0;) {
      const size_t lead = 4 - shape.size();
      const int64_t size = axis < lead ? 1 : shape[axis - lead];
      if (size != full[axis] && size != 1)
        Fail("the shape ", ToString(shape), " does not broadcast to ", ToString(full));
      operand.is_linear = operand.is_linear && size == full[axis];
      if (size == 1) continue;
      operand.strides[axis] = std::to_string(stride) + sizes;
      if (axis == 3)
        stride = size;
      else
        sizes += axis == 2 ? " * OUT_W" : " * OUT_H";
    }
    operands.push_back(operand);
  }
  return operands;
}

// A program, or the part of one behind its norm, as an engine's kernel applies it: engine.h has the text's shape.
struct Stage {
  std::string name;  // what the names of its text begin with
  const Program& program;
  std::vector<uint32_t> statements;
  std::vector<std::pair<std::string, ValueId>> given;  // what `apply` is called with
  size_t first;  // of the program's parameters, that `operands` are
  std::vector<Operand> operands;
  size_t input;  // the number of the first of them
  bool is_of_tf32;

  std::string Emit() const;
};

std::string Stage::Emit() const {
  const size_t outputs = program.results().size();
  std::ostringstream text;
  for (const bool of_pixel : {false, true}) {
    text << "template <int N>\nstruct " << name << (of_pixel ? "PixelOperands" : "TileOperands") << " {\n";
    for (size_t i = 0; i < operands.size(); ++i)
      if (operands[i].is_of_pixel() == of_pixel)
        text << "  Vector<" << StorageType(operands[i].dtype) << ", " << (operands[i].strides[3].empty() ? "1" : "N")
             << "> p" << i << ";\n";
    text << "  DEVICE void load(const Arguments& a, int n, " << (of_pixel ? "int y, int x, int m, int offset" : "int m")
         << ") {\n";
    for (size_t i = 0; i < operands.size(); ++i)
      if (operands[i].is_of_pixel() == of_pixel)
        // Ordered: what has the output's shape may be overwritten by it, and nothing may be read before the wait for
        // the kernel that writes it.
        text << "    p" << i << ".load_ordered((const " << StorageType(operands[i].dtype) << "*)a.in[" << i + input
             << "]" << operands[i].Offset() << ");\n";
    text << "  }\n};\n\n";
  }
  text << "template <int N>\nstruct " << name << "Results {\n";
  for (size_t r = 0; r < outputs; ++r) {
    const DType dtype = program.result(r).dtype;
    text << "  Vector<" << StorageType(dtype) << ", N> r" << r << ";\n  DEVICE void set" << r << "(int j, "
         << ComputeType(dtype) << " x) {\n    " << StorageType(dtype) << " stored;\n    from_compute(x, stored);\n    r"
         << r << ".set(j, stored);\n  }\n";
  }
  text << "  DEVICE void store(const Arguments& a, int offset, int first = 0) const {\n";
  for (size_t r = 0; r < outputs; ++r)
    text << "    r" << r << ".store((" << StorageType(program.result(r).dtype) << "*)a.out[first + " << r
         << "] + offset);\n";
  text << "  }\n};\n\n";
  const std::string before =
    "DEVICE void apply(const " + name + "TileOperands<N>& tile, const " + name + "PixelOperands<N>& pixel, int j, ";
  std::string parameters, arguments;
  for (const auto& [each, value] : given) {
    parameters += ComputeType(program.value(value).dtype) + " " + each + ", ";
    arguments += each + ", ";
  }
  text << "template <int N, int R>\n" << before << parameters << name << "Results<R>& results, int to) {\n";
  for (const auto& [each, value] : given)
    text << "  const " << ComputeType(program.value(value).dtype) << " v" << value << " = " << each << ";\n";
  for (size_t i = 0; i < operands.size(); ++i)
    text << "  const " << ComputeType(operands[i].dtype) << " v" << program.parameters()[first + i] << " = to_compute("
         << (operands[i].is_of_pixel() ? "pixel.p" : "tile.p") << i << (operands[i].strides[3].empty() ? "[0]" : "[j]")
         << ");\n";
  text << EmitCuda(program, statements, "  ", is_of_tf32);
  for (size_t r = 0; r < outputs; ++r) text << "  results.set" << r << "(to, v" << program.results()[r] << ");\n";
  text << "}\ntemplate <int N>\n"
       << before << parameters << name << "Results<N>& results) {\n  apply(tile, pixel, j, " << arguments
       << "results, j);\n}\n\n";
  return text.str();
}

}  // namespace

bool FitsEngines(const Program& program, const Contraction& problem, bool takes_gate) {
  const DType dtype = problem.dtype();
  if (!problem.channels_last) return false;
  if (dtype != DType::kFloat16 && dtype != DType::kBFloat16 && dtype != DType::kFloat) return false;
  if (problem.gated && !takes_gate) return false;
  if (program.parameters().size() != problem.operands.size() + 1 + problem.gated) return false;
  const int64_t x = problem.batch * problem.rows().size * problem.columns().size * problem.channels;
  const int64_t y = ElementCount(problem.result());
  const int64_t w =
    problem.filters * problem.rows().kernel * problem.columns().kernel * (problem.channels / problem.groups);
  // Indices run a little past the end before they are compared with it.
  constexpr int64_t kMost = (int64_t{1} << 31) - (int64_t{1} << 20);
  return x > 0 && y > 0 && x < kMost && y < kMost && w < kMost;
}

std::string ConvPreamble(const Program& program, const Contraction& problem, const NormTail* tail) {
  const Shape full = problem.result();
  std::vector<uint32_t> statements(program.statements().size());
  std::iota(statements.begin(), statements.end(), 0);
  // A depthwise convolution multiplies without rounding.
  const bool is_of_tf32 = problem.dtype() == DType::kFloat && problem.allow_tf32 && problem.groups < problem.channels;
  const size_t values = 1u + problem.gated;
  std::vector<Stage> stages{{"", program, statements, {{"value", program.parameters()[0]}}, values,
    Operands(program, values, problem.operands, full), 1 + values, is_of_tf32}};
  if (problem.gated) stages[0].given.emplace_back("gate", program.parameters()[1]);
  if (tail != nullptr) {
    const NormProgram& norm = *tail->norm;
    const size_t first = tail->of_input ? 1 : program.results().size();
    Shape of_norm = full;
    if (tail->of_input) of_norm.back() = problem.channels;
    stages.push_back({"Norm", norm.program, norm.epilogue, {{"s", norm.summed}, {"n", norm.normalized}}, first,
      Operands(norm.program, first, tail->operands, of_norm), 1 + values + problem.operands.size(), is_of_tf32});
  }
  size_t inputs = 1 + values, outputs = 0;
  bool of_image = false;
  for (const Stage& stage : stages) {
    inputs += stage.operands.size();
    if (stage.name.empty() || !tail->of_input) outputs += stage.program.results().size();
    of_image = of_image || std::any_of(stage.operands.begin(), stage.operands.end(), [](const Operand& operand) {
      return !operand.strides[0].empty() && !operand.is_of_pixel();
    });
  }
  std::ostringstream text;
  text << kCommonSource << "\n"
       << kPointwiseSource << "\n"
       << Defines({{"OPEN_SIZES", problem.has_open_sizes}}) << kSizesSource << "\n"
       << "typedef " << StorageType(problem.dtype()) << " storage_t;\n\n"
       << "struct Arguments {\n  const void* in[" << inputs << "];\n  void* out[" << outputs
       << "];\n  unsigned long long batch;\n  Size image_h, image_w, out_h, out_w, tiles_h, tiles_w;\n};\n\n"
       << Defines({{"CHANNELS", problem.channels}, {"FILTERS", problem.filters}})
       << WindowMacros(problem, problem.has_open_sizes);
  for (const Stage& stage : stages) text << stage.Emit();
  if (tail != nullptr) {
    const NormProgram& norm = *tail->norm;
    text << "DEVICE float prologue(float x) {\n  const float v" << norm.program.parameters()[0] << " = x;\n"
         << EmitCuda(norm.program, norm.prologue, "  ", is_of_tf32) << "  return v" << norm.summed << ";\n}\n\n";
  }
  text << Defines({{"CONSTANT_WEIGHTS", problem.constant_weights}, {"OF_IMAGE", of_image}, {"GATED", problem.gated}})
       << kCopySource;
  return text.str();
}

std::string NormConstants(const NormProgram& norm) {
  char epsilon[64];
  std::snprintf(epsilon, sizeof epsilon, "%a", norm.epsilon);
  return "#define IS_RMS " + std::to_string(norm.is_rms) + "\n#define EPSILON " + epsilon + "\n";
}

// sizes.cuh has the kernel's side.
uint64_t OpenSize(int64_t size) {
  int log = 0;
  while ((int64_t{1} << log) < size) ++log;
  return uint64_t(size) | uint64_t(DivideUp(int64_t{1} << (31 + log), size)) << 32;
}

std::vector<uint64_t> ConvArguments(
  const Program& program, const Contraction& problem, int64_t tile_h, int64_t tile_w, const NormTail* tail) {
  size_t addresses = problem.operands.size() + 2 + problem.gated + program.results().size();
  if (tail != nullptr) addresses += tail->operands.size() + (tail->of_input ? 0 : tail->norm->program.results().size());
  std::vector<uint64_t> arguments(addresses, 0);
  const Window &h = problem.rows(), &w = problem.columns();
  arguments.push_back(uint64_t(problem.batch));
  for (const int64_t size : {h.size, w.size, h.out, w.out, DivideUp(h.out, tile_h), DivideUp(w.out, tile_w)})
    arguments.push_back(problem.has_open_sizes ? OpenSize(size) : uint64_t(size));
  return arguments;
}

}  // namespace ortplugin
