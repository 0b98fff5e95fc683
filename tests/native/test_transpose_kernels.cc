// The kernels of FusedTranspose, in the variants that shapes can take: no local memory, and no launch asks for what the
// GPU lacks.

#include "ortplugin/ops/transpose/transpose.h"
#include "tests/native/kernel_main.h"

using namespace ortplugin;

namespace {

struct Case {
  const char* name;
  Shape shape, perm;
  int64_t element;
  bool is_tiled;
  int unit, read, write, axes;
  int alignment = 16;
  bool wide = false;
};

const Case kCases[] = {
  {"to channels first", {8, 56, 56, 96}, {0, 3, 1, 2}, 2, true, 2, 2, 2, 1},
  {"talking heads", {8, 8, 196, 196}, {0, 2, 3, 1}, 2, true, 2, 2, 2, 1},
  {"talking heads, back", {8, 196, 196, 8}, {0, 3, 1, 2}, 2, true, 2, 2, 2, 1},
  {"odd columns", {8, 768, 49}, {0, 2, 1}, 2, true, 2, 1, 2, 1},
  {"odd rows", {8, 49, 768}, {0, 2, 1}, 2, true, 2, 2, 1, 1},
  {"odd addresses", {8, 56, 56, 96}, {0, 3, 1, 2}, 2, true, 2, 1, 1, 1, 2},
  {"windows of pixels", {32, 16, 16, 16, 16}, {0, 3, 1, 4, 2}, 2, true, 2, 2, 2, 3},
  {"many axes", {2, 40, 2, 3, 2, 3, 50}, {6, 0, 5, 3, 4, 2, 1}, 2, true, 2, 2, 2, 4},
  {"bytes", {1000, 1000}, {1, 0}, 1, true, 1, 4, 4, 0},
  {"odd bytes", {1001, 1001}, {1, 0}, 1, true, 1, 1, 1, 0},
  {"floats", {1000, 1000}, {1, 0}, 4, true, 4, 1, 1, 0},
  {"doubles", {1000, 1000}, {1, 0}, 8, true, 8, 1, 1, 0},
  {"heads of 16 bytes", {8, 3137, 3, 8, 8}, {2, 0, 3, 1, 4}, 2, true, 16, 1, 1, 2},
  {"Q, K and V", {2, 1024, 3, 12, 64}, {2, 0, 3, 1, 4}, 2, false, 16, 1, 1, 5},
  {"unfolded", {8, 192, 3, 14, 3, 14}, {0, 1, 2, 4, 3, 5}, 2, false, 4, 1, 1, 4},
  {"runs of 27 bytes", {40, 30, 27}, {1, 0, 2}, 1, false, 1, 1, 4, 3},
  {"few beside few", {70000, 3, 5}, {0, 2, 1}, 2, false, 2, 1, 2, 3},
  {"no order", {100, 100}, {0, 1}, 2, false, 16, 1, 1, 1},
  {"one element", {1, 1}, {1, 0}, 2, false, 2, 1, 1, 1},
  {"huge, tiled", {1 << 16, 300, 256}, {0, 2, 1}, 2, true, 2, 2, 2, 1},
  {"huge", {1 << 17, 64, 9, 48}, {0, 2, 1, 3}, 2, false, 16, 1, 1, 4, 16, true},
};

}  // namespace

void TestKernels(const std::string& architecture, const DeviceFacts& gpu) {
  for (const Case& each : kCases) {
    const std::vector<int64_t> starts(each.shape.size()), ends(each.shape.size(), INT64_MAX);
    const TransposeConfig config =
      ConfigureTranspose(FitTranspose({each.perm, starts, ends}, each.shape, each.element), gpu, each.alignment);
    const std::string text = test::Joined(architecture, " ", each.name, ": tiled ", config.is_tiled, " unit ",
      config.unit, " read ", config.read, " write ", config.write, " axes ", config.axes, " wide ", config.wide,
      " threads ", config.threads, " blocks ", config.blocks, " shared ", config.shared_bytes);
    CHECK_WITH(config.is_tiled == each.is_tiled && config.unit == each.unit && config.read == each.read &&
        config.write == each.write && config.axes == each.axes && config.wide == each.wide,
      text);
    if (!test::IsTaken(architecture, each.name)) continue;
    test::Compiled compiled(TransposeSource(config), architecture);
    compiled.Check(text);
    compiled.CheckLaunch(gpu, TransposeName(config), config.threads, config.shared_bytes);
    if (architecture == "sm_90") compiled.CheckWaits();
  }
}
