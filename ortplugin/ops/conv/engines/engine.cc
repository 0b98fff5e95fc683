#include "ortplugin/ops/conv/engines/engine.h"

#include <algorithm>
#include <numeric>
#include <sstream>

#include "ortplugin/runtime/gpu/kernel_sources.h"

namespace ortplugin {
namespace {

// An operand's strides along N, H, W and M of the output, in elements; 0 where it is repeated.
struct Operand {
  DType dtype;
  std::array<int64_t, 4> strides;
  bool is_linear;  // has the output's shape
  bool is_of_pixel() const { return is_linear || strides[1] != 0 || strides[2] != 0; }
  // " + n * 96": where the program's vector of it begins.
  std::string Offset() const {
    if (is_linear) return " + offset";
    const char* const coordinates[] = {"n", "y", "x", "m"};
    std::string text;
    for (size_t i = 0; i < 4; ++i)
      if (strides[i] != 0) text += std::string(" + ") + coordinates[i] + " * " + std::to_string(strides[i]);
    return text;
  }
};

std::vector<Operand> Operands(const Program& program, const Contraction& problem) {
  const Shape full = problem.result();
  std::vector<Operand> operands;
  for (size_t i = 0; i < problem.operands.size(); ++i) {
    const Shape& shape = problem.operands[i];
    Operand operand{program.value(program.parameters()[i + 1]).dtype, {}, true};
    if (shape.size() > 4) Fail("the shape ", ToString(shape), " does not broadcast to ", ToString(full));
    int64_t stride = 1;
    for (size_t axis = 4; axis-- > 0;) {
      const size_t lead = 4 - shape.size();
      const int64_t size = axis < lead ? 1 : shape[axis - lead];
      if (size != full[axis] && size != 1)
        Fail("the shape ", ToString(shape), " does not broadcast to ", ToString(full));
      operand.strides[axis] = size == 1 ? 0 : stride;
      operand.is_linear = operand.is_linear && size == full[axis];
      stride *= size;
    }
    operands.push_back(operand);
  }
  return operands;
}

}  // namespace

bool FitsEngines(const Program& program, const Contraction& problem) {
  const DType dtype = problem.dtype();
  if (!problem.channels_last) return false;
  if (dtype != DType::kFloat16 && dtype != DType::kBFloat16 && dtype != DType::kFloat) return false;
  if (program.parameters().size() != problem.operands.size() + 1) return false;
  const int64_t x = problem.batch * problem.rows().size * problem.columns().size * problem.channels;
  const int64_t y = ElementCount(problem.result());
  const int64_t w =
    problem.filters * problem.rows().kernel * problem.columns().kernel * (problem.channels / problem.groups);
  // Indices run a little past the end before they are compared with it.
  constexpr int64_t kMost = (int64_t{1} << 31) - (int64_t{1} << 20);
  return x > 0 && y > 0 && x < kMost && y < kMost && w < kMost;
}

std::string ConvPreamble(const Program& program, const Contraction& problem) {
  const std::vector<Operand> operands = Operands(program, problem);
  const size_t outputs = program.results().size();
  const bool of_image = std::any_of(operands.begin(), operands.end(),
    [](const Operand& operand) { return operand.strides[0] != 0 && !operand.is_of_pixel(); });
  std::ostringstream text;
  text << kCommonSource << "\n"
       << kPointwiseSource << "\n"
       << "typedef " << StorageType(problem.dtype()) << " storage_t;\n\n"
       << "struct Arguments {\n  const void* in[" << operands.size() + 2 << "];\n  void* out[" << outputs
       << "];\n  unsigned long long batch;\n};\n\n";
  for (const bool of_pixel : {false, true}) {
    text << "template <int N>\nstruct " << (of_pixel ? "PixelOperands" : "TileOperands") << " {\n";
    for (size_t i = 0; i < operands.size(); ++i)
      if (operands[i].is_of_pixel() == of_pixel)
        text << "  Vector<" << StorageType(operands[i].dtype) << ", " << (operands[i].strides[3] != 0 ? "N" : "1")
             << "> p" << i << ";\n";
    text << "  DEVICE void load(const Arguments& a, int n, " << (of_pixel ? "int y, int x, int m, int offset" : "int m")
         << ") {\n";
    for (size_t i = 0; i < operands.size(); ++i)
      if (operands[i].is_of_pixel() == of_pixel)
        // Ordered: what has the output's shape may be overwritten by it, and nothing may be read before the wait for
        // the kernel that writes it.
        text << "    p" << i << ".load_ordered((const " << StorageType(operands[i].dtype) << "*)a.in[" << i + 2 << "]"
             << operands[i].Offset() << ");\n";
    text << "  }\n};\n\n";
  }
  text << "template <int N>\nstruct Results {\n";
  for (size_t r = 0; r < outputs; ++r) {
    const DType dtype = program.value(program.results()[r]).dtype;
    text << "  Vector<" << StorageType(dtype) << ", N> r" << r << ";\n  DEVICE void set" << r << "(int j, "
         << ComputeType(dtype) << " x) {\n    " << StorageType(dtype) << " stored;\n    from_compute(x, stored);\n    r"
         << r << ".set(j, stored);\n  }\n";
  }
  text << "  DEVICE void store(const Arguments& a, int offset) const {\n";
  for (size_t r = 0; r < outputs; ++r)
    text << "    r" << r << ".store((" << StorageType(program.value(program.results()[r]).dtype) << "*)a.out[" << r
         << "] + offset);\n";
  text << "  }\n};\n\n"
       << "template <int N, int R>\nDEVICE void apply(const TileOperands<N>& tile, const "
          "PixelOperands<N>& pixel, int j, float value, Results<R>& results, int to) {\n  const float v"
       << program.parameters()[0] << " = value;\n";
  for (size_t i = 0; i < operands.size(); ++i)
    text << "  const " << ComputeType(operands[i].dtype) << " v" << program.parameters()[i + 1] << " = to_compute("
         << (operands[i].is_of_pixel() ? "pixel.p" : "tile.p") << i << (operands[i].strides[3] != 0 ? "[j]" : "[0]")
         << ");\n";
  std::vector<uint32_t> statements(program.statements().size());
  std::iota(statements.begin(), statements.end(), 0);
  // A depthwise convolution multiplies without rounding.
  const bool is_of_tf32 = problem.dtype() == DType::kFloat && problem.allow_tf32 && problem.groups < problem.channels;
  text << EmitCuda(program, statements, "  ", is_of_tf32);
  for (size_t r = 0; r < outputs; ++r) text << "  results.set" << r << "(to, v" << program.results()[r] << ");\n";
  text
    << "}\ntemplate <int N>\nDEVICE void apply(const TileOperands<N>& tile, const "
       "PixelOperands<N>& pixel, int j, float value, Results<N>& results) {\n  apply(tile, pixel, j, value, results, "
       "j);\n}\n\n"
    << "#define CHANNELS " << problem.channels << "\n"
    << "#define FILTERS " << problem.filters << "\n"
    << "#define IMAGE_H " << problem.rows().size << "\n"
    << "#define IMAGE_W " << problem.columns().size << "\n"
    << "#define OUT_H " << problem.rows().out << "\n"
    << "#define OUT_W " << problem.columns().out << "\n"
    << "#define KERNEL_H " << problem.rows().kernel << "\n"
    << "#define KERNEL_W " << problem.columns().kernel << "\n"
    << "#define STRIDE_H " << problem.rows().stride << "\n"
    << "#define STRIDE_W " << problem.columns().stride << "\n"
    << "#define PAD_TOP " << problem.rows().pad_begin << "\n"
    << "#define PAD_LEFT " << problem.columns().pad_begin << "\n"
    << "#define CONSTANT_WEIGHTS " << problem.constant_weights << "\n"
    << "#define OF_IMAGE " << of_image << "\n"
    << kCopySource;
  return text.str();
}

std::vector<uint64_t> ConvArguments(const Program& program, const Contraction& problem) {
  std::vector<uint64_t> arguments(problem.operands.size() + 2 + program.results().size(), 0);
  arguments.push_back(static_cast<uint64_t>(problem.batch));
  return arguments;
}

}  // namespace ortplugin
