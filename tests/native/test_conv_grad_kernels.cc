// The kernels of ConvGrad: no spills. DUMP=folder keeps the sources.

#include <cstdlib>
#include <fstream>

#include "ortplugin/ops/conv_grad/conv_grad.h"
#include "ortplugin/ops/conv_grad/weight_grad.h"
#include "tests/native/kernel_main.h"
#include "tests/native/square_conv.h"

using namespace ortplugin;

namespace {

struct Case {
  WeightGrad grad;
  const char* program;
};

const char* const kIdentity = "(T dz) => (T dz) {}";
const char* const kRelu = "(T dy, T y) => (T dz) {\n  p = Greater(y, 0)\n  dz = Where(p, dy, 0)\n}";
const char* const kScaled = "(T dy, T s) => (T dz) {\n  dz = Mul(dy, s)\n}";  // s: one element

std::string Typed(std::string text, const std::string& dtype) {
  for (size_t at = 0; (at = text.find("(T ", at)) != std::string::npos;) text.replace(at + 1, 1, dtype);
  for (size_t at = 0; (at = text.find(", T ", at)) != std::string::npos;) text.replace(at + 2, 1, dtype);
  return text;
}

WeightGrad Square(int64_t batch, int64_t channels, int64_t size, int64_t filters, int64_t kernel, int64_t stride,
  DType dtype = DType::kFloat, bool channels_last = false) {
  const int64_t pad = (kernel - 1) / 2;
  WeightGrad grad{test::SquareConv(dtype, false, batch, size, channels, filters, kernel, stride, pad,
                    (size + 2 * pad - kernel) / stride + 1),
    DType::kFloat, channels > 1, true};
  grad.channels_last = channels_last;
  return grad;
}

void CheckWeights(const WeightGrad& given, const char* program_text, const std::string& architecture) {
  static int number = 0;
  const Program program = Program::Parse(Typed(program_text, NameOf(given.dtype())));
  const DeviceFacts& device = test::GpuOf(architecture);
  const Shape full = given.result();
  Shapes shapes{full};
  if (program.parameters().size() > 1) shapes.push_back(program_text == kScaled ? Shape{1} : full);
  const Axes axes = JoinAxes(full, shapes);
  CHECK(IsWeightGradProgram(program, axes, given.makes_bias) && FitsWeightGrad(given));
  const std::optional<WeightGradConfig> found = ConfigureWeightGrad(given, program, device);
  CHECK(found.has_value());
  if (!found) return;
  const WeightGradConfig& s = *found;
  const std::string source = WeightGradSource(given, program, axes, s);
  if (const char* folder = std::getenv("DUMP")) {
    std::ofstream(std::string(folder) + "/" + std::to_string(number) + ".cu") << source;
    std::ofstream(std::string(folder) + "/" + std::to_string(number++) + ".txt")
      << given.batch << " " << s.chunks << " " << s.blocks << " " << s.sums << " " << s.adders << " " << s.threads
      << " " << (program_text == kScaled ? 1 : 0) << " " << program.parameters().size() << "\n";
  }
  const std::string variant = test::Joined(architecture, " ", NameOf(given.dtype()), " ", ToString(full), " of ",
    given.channels, " channels, kernel ", given.rows().kernel, ": images ", s.images, " rows ", s.rows, " maps ",
    s.maps, " of ", s.block_maps, " depth ", s.depth, " of ", s.block_channels, " tap rows ", s.tap_rows, " strip ",
    s.strip, " segment ", s.segment, " vector ", s.vector, " threads ", s.threads, " blocks ", s.min_blocks, " chunks ",
    s.chunks, " x ", s.blocks, " tiles ", s.tiles, " sums ", s.sums, " adders ", s.adders);
  if (!test::IsTaken(architecture, variant, 3)) return;
  test::Compiled compiled(source, architecture);
  compiled.CheckRegisters(variant);
  compiled.CheckLaunch(device, "weight_grad", s.threads, 0, {s.min_blocks});
  compiled.CheckLaunch(device, "add_weights", 256);
  compiled.CheckWaits();
}

}  // namespace

void TestKernels(const std::string& architecture, const DeviceFacts&) {
  for (const size_t bytes : {2, 4, 8}) {
    test::Compiled compiled(PadSource(bytes), architecture);
    compiled.Check("pads " + std::to_string(bytes) + " bytes:");
    compiled.CheckWaits();
  }
  for (const int64_t batch : {100, 1000}) {
    CheckWeights(Square(batch, 1, 28, 16, 3, 1), kRelu, architecture);
    CheckWeights(Square(batch, 16, 14, 32, 3, 1), kRelu, architecture);
    CheckWeights(Square(batch, 32, 7, 32, 3, 1), kRelu, architecture);
  }
  CheckWeights(Square(8, 3, 224, 64, 7, 2, DType::kFloat16, true), kIdentity, architecture);
  WeightGrad wide = Square(3, 5, 33, 7, 5, 3, DType::kBFloat16);
  wide.weight_dtype = DType::kDouble;
  wide.makes_bias = false;  // which is summed from what is not rounded
  CheckWeights(wide, kScaled, architecture);
  CheckWeights(Square(64, 64, 56, 64, 3, 1), kRelu, architecture);
  CheckWeights(Square(64, 64, 56, 64, 3, 1, DType::kFloat16, true), kRelu, architecture);
  CheckWeights(Square(16, 48, 13, 20, 1, 1), kIdentity, architecture);
  CheckWeights(Square(1, 1, 5, 1, 3, 1), kIdentity, architecture);
  WeightGrad uneven = Square(3, 13, 9, 11, 3, 2);
  uneven.rows().pad_begin = 0, uneven.rows().out = 4;
  CheckWeights(uneven, kRelu, architecture);
  uneven.makes_bias = uneven.stores_z = false;
  uneven.channels_last = true;
  CheckWeights(uneven, kIdentity, architecture);
  const Axes axes = JoinAxes({3, 4, 5, 6}, {{3, 4, 5, 6}, {3, 4, 5, 6}}),
             spread = JoinAxes({3, 4, 5, 6}, {{3, 4, 5, 6}, {4, 1, 1}});
  const Program product = Program::Parse(Typed(kScaled, "float16")), relu = Program::Parse(Typed(kRelu, "float16"));
  CHECK(IsWeightGradProgram(product, axes, false) && !IsWeightGradProgram(product, axes, true));
  CHECK(IsWeightGradProgram(relu, axes, true) && !IsWeightGradProgram(relu, spread, true));
  CHECK(!FitsWeightGrad(Square(1, 3, 224, 64, 17, 2)));
  CHECK(!FitsWeightGrad(Square(1, 3, 224, 64, 7, 2, DType::kDouble)));
}
