// The kernels of FusedSumTo, in each of the variants that a configuration can take: no spills.

#include <iostream>

#include "ortplugin/ops/sum_to/sum_to.h"
#include "tests/native/kernel_remarks.h"

using namespace ortplugin;
using namespace test;

namespace {

struct Case {
  std::string name, program;
  Shapes inputs;
  int vector;  // what the configuration must be for the first group; 0: whatever registers allow
  std::string modes;  // likewise, of: along, wide, stream, chunks
  size_t groups = 1;
  bool aligned = true;
};

std::string Summed(const std::string& axes) {
  return "(T x) => (T y) { y = SumTo<axes=\"" + axes + "\", keepdims=0>(x) }";
}

const char* const kLerpGradient =
  "(T dout, T w) => (T dx, T dy) {\n  a = Sub(1, w)\n  g = Mul(a, dout)\n  dx = SumTo<axes=\"1 2 3\">(g)\n"
  "  dy = Mul(w, dout)\n}";
const char* const kTwoWays = "(T x) => (T r, T c) { r = SumTo<axes=\"1\">(x) c = SumTo<axes=\"0\">(x) }";
const char* const kMixed =
  "(float16 x, float r, bool m, double d, int64 l) => (float16 y, float s, double e, int64 k, float16 h) {\n"
  "  f = Cast<to=float>(x)\n  s = Add(f, r)\n  w = Where(m, s, r)\n  y = SumTo<axes=\"0\">(x)\n"
  "  q = SumTo<axes=\"0\">(w)\n  h = Cast<to=float16>(q)\n  e = SumTo<axes=\"0\">(d)\n  k = SumTo<axes=\"0\">(l)\n}";

// As many parameters, sums and results as a program has.
std::string Wide(const std::string& dtype) {
  std::string head = "(", tail = "(", body;
  for (int i = 0; i < 32; ++i) head += (i ? ", " : "") + dtype + " p" + std::to_string(i);
  for (int i = 0; i < 16; ++i) {
    const std::string n = std::to_string(i), m = std::to_string(i + 16);
    tail += (i ? ", " : "") + dtype + " s" + n;
    body += " t" + n + " = Mul(p" + n + ", p" + m + ") s" + n + " = SumTo<axes=\"0\">(t" + n + ")";
  }
  return head + ") => " + tail + ") {" + body + " }";
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const auto& [dtype, size] : std::vector<std::pair<std::string, int>>{
         {"float16", 2}, {"bfloat16", 2}, {"float", 4}, {"double", 8}, {"int32", 4}, {"uint64", 8}}) {
    const auto add = [&, type = dtype](const std::string& name, const std::string& program, const Shapes& inputs,
                       int vector, const std::string& modes, size_t groups = 1, bool aligned = true) {
      cases.push_back({name + " " + type, Typed(program, type), inputs, vector, modes, groups, aligned});
    };
    const int most = 16 / size;
    add("everything", Summed("0 1 2"), {{64, 512, 1024}}, most, "along stream chunks");
    add("rows", Summed("2"), {{64, 512, 1024}}, most, "along stream");
    add("long rows", Summed("1"), {{16, 2097152}}, most, "along stream chunks");
    add("short rows", Summed("1"), {{8388608, 8}}, std::min(most, 8), "along stream");
    add("odd rows", Summed("1"), {{65536, 1023}}, 1, "along stream");
    add("columns", Summed("0"), {{1048576, 64}}, most, "stream chunks");
    add("many columns", Summed("0"), {{16, 4194304}}, most, "stream");
    add("three columns", Summed("0"), {{16777216, 3}}, 1, "stream chunks");
    add("NCHW", Summed("0 2 3"), {{32, 64, 56, 56}}, most, "along chunks");
    add("NHWC", Summed("0 1 2"), {{32, 56, 56, 64}}, most, "chunks");
    add("middle", Summed("1"), {{64, 512, 1024}}, most, "stream");
    add("small", Summed("0"), {{1000}}, most, "along");
    add("odd addresses", Summed("0 1"), {{8192, 8192}}, 1, "along stream chunks", 1, false);
    add("huge", Summed("1"), {{70000, 32768, 16}}, most, "stream");
    add("huge, all", Summed("0 1 2"), {{70000, 65536, 16}}, most, "along wide stream chunks");
    add("nothing", Summed("2 3"), {{8, 2, 0, 2}}, 0, "");
    add("two ways", kTwoWays, {{8192, 8192}}, most, "along stream", 2);
    if (dtype[0] == 'f' || dtype[0] == 'b' || dtype[0] == 'd') {
      add("lerp gradient", kLerpGradient, {{16, 3, 244, 244}, {3, 1, 244}}, std::min(most, 4), "along chunks");
      add("scalar weight", kLerpGradient, {{16, 3, 244, 244}, {1}}, most, "along chunks");
    }
  }
  cases.push_back({"mixed", kMixed, {{65536, 96}, {96}, {65536, 1}, {65536, 96}, {65536, 96}}, 0, ""});
  for (const std::string dtype : {"float16", "float", "double"}) {
    cases.push_back({"32 in, 16 sums, rows " + dtype, Wide(dtype), Shapes(32, {65536}), 0, ""});
    cases.push_back({"32 in, 16 sums, columns " + dtype, Wide(dtype), Shapes(32, {65536, 64}), 0, ""});
  }
  return cases;
}

std::string Modes(const SumConfig& config, const SumPieces& pieces) {
  std::string modes;
  for (const auto& [is, name] :
    {std::pair(config.along, "along"), {config.wide, "wide"}, {config.stream, "stream"}, {pieces.chunks > 1, "chunks"}})
    if (is) modes += (modes.empty() ? "" : " ") + std::string(name);
  return modes;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string argument = argc == 2 ? argv[1] : "";
  const bool show = argument.rfind("sm_", 0) != 0;
  const DeviceFacts &h200 = H200(), &gpu = show ? h200 : DeviceOf(argument);
  for (const Case& test_case : Cases()) {
    if (show ? test_case.name != argument : !IsTaken(argument, test_case.name)) continue;
    const SumProgram sums = SumProgram::Parse(test_case.program);
    const SumShape shape = FitSums(sums, test_case.inputs);
    const std::vector<SumGroup> groups = GroupSums(sums, shape, test_case.inputs);
    CHECK_WITH(groups.size() == test_case.groups, test_case.name);
    for (size_t g = 0; g < groups.size(); ++g) {
      const SumConfig config = ConfigureSums(sums, groups[g], gpu, test_case.aligned);
      const std::string source = SumSource(sums, groups[g], config);
      if (show) {
        std::cout << source;
        continue;
      }
      Compiled compiled(source, argument);
      const int threads = config.kept_threads * config.summed_threads;
      const auto cut = [&](const SumConfig& of, const DeviceFacts& on) {
        const int64_t resident = on.ResidentBlocks(of.kept_threads * of.summed_threads, Registers(compiled.log()), 0);
        return CutSums(groups[g], of, resident * on.multiprocessors);
      };
      const SumPieces pieces = cut(config, gpu);
      const std::string text = Joined(argument, " ", test_case.name, " ", g, ": vector ", config.vector, " items ",
        config.items, " threads ", config.kept_threads, "x", config.summed_threads, " modes '", Modes(config, pieces),
        "' blocks ", pieces.kept_blocks, "x", pieces.chunks);
      compiled.Check(text);
      if (argument == "sm_90") compiled.CheckWaits();
      // Every index has a piece, and no piece is empty but that of a sum of nothing.
      const int64_t summed = groups[g].summed_elements / (config.along ? config.vector : 1);
      CHECK_WITH(pieces.chunk_size * (pieces.chunks - 1) < std::max<int64_t>(1, summed) &&
          pieces.chunk_size * pieces.chunks >= summed,
        text);
      compiled.CheckLaunch(gpu, "sum_to", threads);
      if (pieces.chunks > 1) compiled.CheckLaunch(gpu, "add_chunks", 256);
      // What is streamed and what is cut depends on the GPU: the cases say it of an H200.
      const SumConfig known = ConfigureSums(sums, groups[g], h200, test_case.aligned);
      if (g == 0 && test_case.vector > 0)
        CHECK_WITH(config.vector == test_case.vector && Modes(known, cut(known, h200)) == test_case.modes, text);
    }
  }
  return Summary();
}
