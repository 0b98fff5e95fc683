// The kernel of FusedLayerNorm, in each of the variants that a configuration can take: no spills.
//
//   test_layer_norm_kernels 768       the source for an H200 and a width, on standard output

#include <cstdlib>
#include <iostream>

#include "ortplugin/ops/layer_norm/layer_norm.h"
#include "tests/native/kernel_remarks.h"

using namespace ortplugin;
using namespace test;

namespace {

struct Case {
  std::string name, program;
  Shapes inputs;
  std::vector<int64_t> ordered = {};  // the inputs that are read in an order, the last row first
  Shape image = {};
};

NormProgram Read(const Case& test_case) {
  NormProgram norm = NormProgram::Parse(test_case.program);
  std::vector<int64_t> order;
  if (!test_case.ordered.empty())
    for (int64_t row = test_case.inputs[size_t(test_case.ordered[0])][1]; row-- > 0;) order.push_back(row);
  norm.SetOrder(test_case.ordered, order, test_case.image);
  return norm;
}

// The workload of nvFuser issue 383 at one width.
Case Biased(const std::string& dtype, int64_t rows, int64_t width,
  const std::string& core = "LayerNormalization<epsilon=1e-05>") {
  const std::string text =
    Typed("(T x, T b0, T b1, T gamma, T beta) => (T y) {\n  t = Add(x, b0)\n  s = Add(t, b1)\n  n = " + core +
        "(s)\n  g = Mul(n, gamma)\n  y = Add(g, beta)\n}",
      dtype);
  return {text, text, {{rows, width}, {width}, {width}, {width}, {width}}};
}

// Scale, shift and an activation after a norm over `axes`; of the sum of two tensors, which is a result, where `added`.
Case Scaled(const std::string& dtype, const std::string& axes, const Shape& x, const Shape& gamma, bool added) {
  const std::string head = added ? "(T x, T r, T gamma, T beta) => (T z, T s) {\n  s = Add(x, r)\n  n = "
                                 : "(T x, T gamma, T beta) => (T z) {\n  n = ";
  const std::string text = Typed(head + "LayerNormalization<axes=\"" + axes + "\">(" + (added ? "s" : "x") +
      ")\n  g = Mul(n, gamma)\n  y = Add(g, beta)\n  z = Swish(y)\n}",
    dtype);
  return added ? Case{text, text, {x, x, gamma, gamma}} : Case{text, text, {x, gamma, gamma}};
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const int64_t width :
    {1, 7, 33, 128, 384, 768, 1023, 1024, 1280, 1536, 1600, 2048, 2560, 4096, 5140, 12288, 16384, 20480, 40000, 100000})
    cases.push_back(Biased("float16", 8192, width));
  for (const int64_t width : {768, 1023, 4096, 5140, 20480, 70000}) {
    cases.push_back(Biased("bfloat16", 8192, width));
    cases.push_back(Biased("float", 8192, width, "RMSNormalization<epsilon=1e-06>"));
    cases.push_back(Biased("double", 8192, width));
  }
  cases.push_back(Biased("float16", 3, 768));
  cases.push_back(Biased("float", 1, 4096));
  // Two results, a residual, a mask, a period of rows, an epilogue with an activation and mixed dtypes.
  const char* residual =
    "(float16 x, float16 r, float16 p, float gamma, bool m, float16 z) => (float16 y, float16 s, float c) {\n"
    "  t = Add(x, r)\n  s = Add(t, p)\n  n = LayerNormalization<epsilon=1e-05>(s)\n  c = Cast<to=float>(n)\n"
    "  g = Mul(c, gamma)\n  h = Cast<to=float16>(g)\n  e = Gelu(h)\n  w = Where(m, e, z)\n  y = Add(w, s)\n}";
  for (const int64_t width : {768, 1023, 4096, 20480, 60000})
    cases.push_back(
      {"residual", residual, {{4, 32, width}, {4, 32, width}, {32, width}, {width}, {4, 1, 1}, {4, 1, width}}});
  // Integers and a mask that enter through Cast and Where, before and after.
  for (const int64_t width : {768, 1023})
    cases.push_back({"integers",
      "(float16 x, int8 q, int64 k, uint16 m, float16 gamma) => (float16 y, int32 z) {\n"
      "  w = Mul(q, 3)\n  d = Cast<to=float16>(w)\n  s = Add(x, d)\n"
      "  n = LayerNormalization<epsilon=1e-05>(s)\n  c = Greater(k, 5)\n  i = Cast<to=float16>(m)\n"
      "  h = Where(c, n, i)\n  y = Mul(h, gamma)\n  z = Cast<to=int32>(h)\n}",
      {{512, width}, {512, width}, {512, width}, {512, 1}, {width}}});
  // Two normalised axes, an operand that broadcasts within them.
  cases.push_back({"inner broadcast",
    "(float x, float b, float gamma) => (float y) {\n  s = Mul(x, b)\n"
    "  n = LayerNormalization<axis=1, epsilon=1e-05>(s)\n  y = Mul(n, gamma)\n}",
    {{64, 48, 100}, {48, 1}, {48, 100}}});
  cases.push_back({"no split of rows",
    "(float x, float b, float g) => (float y) {\n  s = Mul(x, b)\n"
    "  n = LayerNormalization<axis=1>(s)\n  y = Mul(n, g)\n}",
    {{64, 48, 100}, {48, 1}, {48, 100}}});
  // In an order: windows, patches of which four are a row, rows at every alignment, and too long for a block.
  const std::string sum = "(T x, T r) => (T y, T s) {\n  s = Add(x, r)\n  y = LayerNormalization<epsilon=1e-05>(s)\n}";
  const std::string half = Typed(sum, "float16");
  for (const int64_t width : {96, 384})
    cases.push_back({"windows", half, {{8, 56, 56, width}, {8, 3136, width}}, {1}, {56, 56}});
  cases.push_back({"patches", half, {{8, 784, 96}, {384}}, {0}, {14, 14}});
  cases.push_back({"patches, odd", half, {{8, 784, 33}, {132}}, {0}, {14, 14}});
  cases.push_back({"odd rows", Typed(sum, "float"), {{8, 70000, 33}, {8, 70000, 1}}, {0, 1}});
  cases.push_back({"long rows", half, {{2, 8, 30000}, {2, 8, 30000}}, {0, 1}, {4}});
  // Other axes: GroupNorm with channels last and first, of 1 and many groups, LayerNorm and InstanceNorm of images.
  const auto add = [&](const std::string& axes, const Shape& x, const Shape& gamma) {
    for (const std::string dtype : {"float16", "float", "double"}) {
      cases.push_back(Scaled(dtype, axes, x, gamma, false));
      cases.push_back(Scaled(dtype, axes, x, gamma, true));
    }
  };
  add("1 3", {8, 3136, 32, 8}, {32, 8});
  add("1 3", {2, 4096, 32, 10}, {32, 10});
  add("1 3", {8, 49, 32, 64}, {32, 64});
  add("1 3", {8, 3136, 7, 3}, {7, 3});
  add("1 3", {1, 1 << 20, 4, 8}, {4, 8});
  add("1 2", {8, 3136, 96}, {96});
  add("2 3", {8, 32, 8, 3136}, {32, 8, 1});
  add("1 2", {8, 64, 3136}, {64, 1});
  add("1", {8, 196, 256}, {256});
  add("1", {8, 96, 3136}, {96, 1});
  add("1", {8, 5, 3}, {5, 1});
  add("0 2 3", {32, 64, 56, 56}, {64, 1, 1});
  return cases;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string argument = argc == 2 ? argv[1] : "";
  if (argument.rfind("sm_", 0) != 0) {
    const Case test_case = Biased("float16", 8192, std::atoll(argument.c_str()));
    const NormProgram norm = NormProgram::Parse(test_case.program);
    const NormShape shape = FitShapes(norm, test_case.inputs);
    std::cout << LayerNormSource(norm, shape, ConfigureLayerNorm(norm, shape, H200(), true).value());
    return 0;
  }
  const DeviceFacts& gpu = DeviceOf(argument);
  for (const Case& test_case : Cases()) {
    const NormProgram norm = Read(test_case);
    const NormShape shape = FitShapes(norm, test_case.inputs);
    if (!IsTaken(argument, test_case.program + ToString(shape.shape), 18)) continue;
    const auto rows = ConfigureLayerNorm(norm, shape, gpu, true);
    const NormTiles tiles = ConfigureNormTiles(norm, shape, gpu, true);
    const std::string source = rows ? LayerNormSource(norm, shape, *rows) : NormTilesSource(norm, shape, tiles);
    std::string text = Joined(
      argument, " ", test_case.name, " [", shape.outer, ", ", shape.height, ", ", shape.groups, ", ", shape.run, "] ");
    if (rows)
      text += Joined("vector ", rows->vector, " lanes ", rows->lanes, "x", rows->groups, " items ", rows->items,
        " rows at once ", rows->rows_at_once, " prefetch ", rows->prefetch, " line ", rows->line, " blocks ",
        rows->min_blocks);
    else
      text += Joined("tiles of ", tiles.accesses, "x", tiles.vector, ", ", tiles.groups, " groups, ", tiles.chunks,
        " blocks of ", tiles.chunk, " in ", tiles.threads, " threads, batch ", tiles.batch, ", one read ",
        tiles.one_read, " shared ", tiles.static_bytes, " + ", tiles.held_bytes, " blocks ", tiles.min_blocks, " of ",
        tiles.blocks);
    Compiled compiled(source, argument);
    compiled.CheckRegisters(text);
    for (const char* kernel : rows ? std::vector<const char*>{"layer_norm"}
        : tiles.one_read           ? std::vector<const char*>{"norm_tiles"}
                                   : std::vector<const char*>{"tile_moments", "normalize_tiles"})
      if (rows)
        compiled.CheckLaunch(gpu, kernel, rows->lanes * rows->groups, 0, {rows->min_blocks});
      else
        compiled.CheckLaunch(gpu, kernel, tiles.threads, tiles.held_bytes, {tiles.min_blocks});
    if (argument == "sm_90")
      compiled.CheckWaits(test_case.ordered.empty() ? "none" : "^prefetch");  // of the order, which is constant
  }
  return Summary();
}
