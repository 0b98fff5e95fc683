// Compiles the kernel of FusedLayerNorm for a GPU architecture, in each of the variants that a configuration can take,
// and fails where the compiler spills registers to local memory. Needs NVRTC but no GPU.
//
//   test_layer_norm_kernels sm_90     VERBOSE=1 shows each variant
//   test_layer_norm_kernels 768       the source for an H200 and a width, on standard output

#include <cstdlib>
#include <iostream>
#include <regex>
#include <sstream>

#include "ortplugin/ops/layer_norm/layer_norm.h"
#include "ortplugin/runtime/gpu/cuda.h"
#include "tests/native/check.h"
#include "tests/native/kernel_remarks.h"

using namespace ortplugin;

namespace {

struct Case {
  const char* name;
  const char* program;
  std::vector<Shape> inputs;
};

// The workload of nvFuser issue 383 at one width.
Case Biased(const std::string& dtype, int64_t rows, int64_t width,
            const char* core = "LayerNormalization<epsilon=1e-05>") {
  static std::vector<std::string>* const texts = new std::vector<std::string>;
  texts->reserve(1000);
  std::string text =
      "(T x, T b0, T b1, T gamma, T beta) => (T y) {\n  t = Add(x, b0)\n  s = Add(t, b1)\n  n = " + std::string(core) +
      "(s)\n  g = Mul(n, gamma)\n  y = Add(g, beta)\n}";
  texts->push_back(std::regex_replace(text, std::regex("\\bT\\b"), dtype));
  return {texts->back().c_str(), texts->back().c_str(), {{rows, width}, {width}, {width}, {width}, {width}}};
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const int64_t width : {1,    7,    33,   128,  384,  768,   1023,  1024,  1280,  1536,
                              1600, 2048, 2560, 4096, 5140, 12288, 16384, 20480, 40000, 100000})
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
  return cases;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string argument = argc == 2 ? argv[1] : "";
  if (argument.rfind("sm_", 0) != 0) {
    const Case test_case = Biased("float16", 8192, std::atoll(argument.c_str()));
    const NormProgram norm = NormProgram::Parse(test_case.program);
    const NormShape shape = FitShapes(norm, test_case.inputs);
    std::cout << LayerNormSource(norm, shape, ConfigureLayerNorm(norm, shape, test::H200(), true));
    return 0;
  }
  const cuda::DeviceFacts& gpu = test::DeviceOf(argument);
  for (const Case& test_case : Cases()) {
    const NormProgram norm = NormProgram::Parse(test_case.program);
    const NormShape shape = FitShapes(norm, test_case.inputs);
    if (!test::IsTaken(argument, test_case.program + std::to_string(shape.width))) continue;
    const NormConfig config = ConfigureLayerNorm(norm, shape, gpu, true);
    const std::string source = LayerNormSource(norm, shape, config);
    std::ostringstream text;
    text << argument << " rows " << shape.rows << " width " << shape.width << " vector " << config.vector << " lanes "
         << config.lanes << "x" << config.groups << " items " << config.items << " rows at once " << config.rows_at_once
         << " prefetch " << config.prefetch << " line " << config.line << " streamed " << config.streamed << " blocks "
         << config.min_blocks;
    test::Compiled compiled(source, argument);
    compiled.CheckRegisters(text.str());
    for (const char* kernel : config.streamed ? std::vector<const char*>{"row_moments", "normalize_rows"}
                                              : std::vector<const char*>{"layer_norm"})
      compiled.CheckLaunch(gpu, kernel, config.lanes * config.groups, 0, {config.min_blocks});
    if (argument == "sm_90") compiled.CheckWaits();
  }
  return test::Summary();
}
