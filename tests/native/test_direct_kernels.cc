// The kernel for convolutions of few channels: no spills.

#include <utility>

#include "ortplugin/ops/conv/engines/direct.h"
#include "tests/native/kernel_main.h"
#include "tests/native/square_conv.h"

using namespace ortplugin;
using namespace test;

namespace {

const char* const kIdentity = "(float c) => (float c) {}";
// Two results, a residual, operands of a row and of an image, mixed dtypes.
const char* const kMixed =
  "(float c, float b, float r, float16 e, float g) => (float y, float16 z) {\n  s = Add(c, b)\n  t = Add(s, r)\n"
  "  u = Cast<to=float>(e)\n  v = Mul(t, u)\n  y = Gelu(v)\n  w = Mul(y, g)\n  z = Cast<to=float16>(w)\n}";

struct Case {
  Contraction conv;
  const char* program;
  int most_vector;
};

Contraction Square(int64_t images, int64_t channels, int64_t size, int64_t filters, int64_t kernel, int64_t stride) {
  const int64_t pad = (kernel - 1) / 2, out = (size + 2 * pad - kernel) / stride + 1;
  Contraction conv = SquareConv(DType::kFloat, false, images, size, channels, filters, kernel, stride, pad, out);
  conv.channels_last = false;
  return conv;
}

// The data gradient of such a convolution.
Contraction Rotated180(Contraction conv) {
  std::swap(conv.channels, conv.filters);
  conv.rotated_weights = true;
  return conv;
}

}  // namespace

void TestKernels(const std::string& architecture, const DeviceFacts& device) {
  for (const Case& test_case :
    {Case{Square(100, 1, 28, 16, 3, 1), kFloatRelu, 16}, Case{Square(1000, 1, 28, 16, 3, 1), kFloatRelu, 16},
      Case{Square(100, 16, 14, 32, 3, 1), kFloatRelu, 16}, Case{Square(1000, 16, 14, 32, 3, 1), kMixed, 16},
      Case{Square(1000, 32, 7, 32, 3, 1), kFloatRelu, 16}, Case{Square(8, 3, 224, 32, 7, 2), kMixed, 16},
      Case{Square(3, 5, 33, 7, 5, 3), kMixed, 1}, Case{Rotated180(Square(1000, 16, 14, 32, 3, 1)), kIdentity, 16},
      Case{Rotated180(Square(100, 3, 33, 7, 5, 1)), kIdentity, 16}}) {
    const Program program = Program::Parse(test_case.program);
    const Shape full = test_case.conv.result();
    Shapes shapes{full};
    if (program.parameters().size() > 1) shapes.push_back({test_case.conv.filters, 1, 1});
    if (program.parameters().size() > 2)
      shapes.insert(shapes.end(), {full, {test_case.conv.rows().out, 1}, {test_case.conv.batch, 1, 1, 1}});
    const Axes axes = JoinAxes(full, shapes);
    CHECK(FitsDirect(test_case.conv));
    const std::optional<DirectConfig> found = ConfigureDirect(test_case.conv, device, test_case.most_vector);
    CHECK(found.has_value());
    if (!found) continue;
    const DirectConfig& config = *found;
    const std::string text =
      Joined(architecture, " ", ToString(full), " of ", test_case.conv.channels, " channels: images ", config.images,
        " rows ", config.rows, " maps ", config.maps, " of ", config.block_maps, " strip ", config.strip, " chunk ",
        config.chunk, " vector ", config.vector, " threads ", config.threads, " blocks ", config.min_blocks);
    if (!IsTaken(architecture, text, 3)) continue;
    Compiled compiled(DirectSource(test_case.conv, program, axes, config), architecture);
    compiled.CheckRegisters(text);
    compiled.CheckLaunch(device, "conv_direct", DirectLaunch(config, device).threads, 0, {config.min_blocks});
    if (device.has_pdl()) compiled.CheckWaits();
  }
  Contraction wide = Square(1, 3, 2000, 8, 3, 4);
  wide.rows().dilation = 200;
  wide.rows().out = (2000 + 2 - 401) / 4 + 1;
  CHECK(!FitsDirect(wide) || !ConfigureDirect(wide, device, 16));
}
