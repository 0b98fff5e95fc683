// The kernels of the scatter operators, in each form and for every dtype and reduction: no spills.

#include <map>
#include <set>

#include "ortplugin/ops/scatter/scatter_cuda.h"
#include "tests/native/kernel_main.h"

using namespace ortplugin;
using namespace test;

namespace {

struct Problem {
  const char* name;
  ScatterAttributes attributes;
  Shapes inputs;
  bool is_int32 = false;
  uintptr_t alignment = 0;
};

ScatterAttributes Of(ScatterKind kind, int64_t axis = 0) {
  ScatterAttributes attributes;
  attributes.kind = kind;
  attributes.axis = axis;
  return attributes;
}

// A problem with the reduction.
Problem Reduced(Problem problem, Reduction reduction) {
  problem.attributes.reduction = reduction;
  return problem;
}

constexpr Reduction kReductions[] = {
  Reduction::kNone, Reduction::kAdd, Reduction::kMul, Reduction::kMin, Reduction::kMax};
constexpr ort::ElementType kArithmetic[] = {ort::kFloat16, ort::kBFloat16, ort::kFloat, ort::kDouble, ort::kInt8,
  ort::kUInt8, ort::kInt16, ort::kUInt16, ort::kInt32, ort::kUInt32, ort::kInt64, ort::kUInt64};

std::set<std::string> compiled;

// What the kernels of a source ask for that the architecture's GPU lacks.
std::string LackingOf(const std::string& architecture, const std::string& log) {
  const std::map<std::string, int64_t> threads = {{"scatter_few_narrow", 32}, {"sort_count", 512}, {"sort_pass", 512}};
  const std::map<std::string, int64_t> resident = {{"scatter_fused", 4}, {"scatter_few", 4}, {"scatter_fold", 2}};
  std::string lacking;
  for (const std::string& kernel : Matches(log, "Compiling entry function '(\\w+)'")) {
    const auto of = threads.find(kernel), on = resident.find(kernel);
    lacking += Lacking(GpuOf(architecture), log, kernel, of == threads.end() ? 256 : of->second, 0,
      {on == resident.end() ? 1 : on->second});
  }
  return lacking;
}

// In every form that the problem can take, in place and out of place; or once in each, in place.
void CompileAll(const std::string& architecture, Problem problem, ort::ElementType type, bool thoroughly = true) {
  const std::string reduction = std::to_string(int(problem.attributes.reduction));
  const std::string name = problem.name;
  const bool is_slice = name == "slice" && architecture == "sm_120";
  if (!is_slice && !IsTaken(architecture, name + " " + NameOfOrt(type) + " " + reduction, 24)) return;
  const ScatterShape shape = FitScatter(problem.attributes, problem.inputs);
  for (const ScatterAlgorithm algorithm :
    {ScatterAlgorithm::kAuto, ScatterAlgorithm::kSequential, ScatterAlgorithm::kParallel, ScatterAlgorithm::kSorting}) {
    for (const bool unique : {false, true}) {
      for (const bool in_place : {false, true}) {
        if (!thoroughly && (algorithm == ScatterAlgorithm::kAuto || unique || !in_place)) continue;
        ScatterAttributes attributes = problem.attributes;
        attributes.algorithm = algorithm;
        attributes.unique = unique || attributes.kind == ScatterKind::kSlice;
        attributes.deterministic = algorithm != ScatterAlgorithm::kParallel;
        std::vector<ScatterChoice> choices = {ChooseScatter(attributes, type, shape, in_place)};
        if (choices[0].copies) choices.push_back({ScatterForm::kCopy, true, false, false, false});
        for (const ScatterChoice& choice : choices) {
          const ScatterVariant variant = MakeScatterVariant(
            attributes, type, shape, choice, problem.is_int32, {problem.alignment, problem.alignment});
          const std::string source = ScatterSource(attributes, type, variant);
          if (!compiled.insert(source).second) continue;
          const std::string text =
            Joined(architecture, " ", problem.name, " ", NameOfOrt(type), " reduction ", int(attributes.reduction),
              " form ", int(choice.form), " owned ", choice.owned, choice.collects, " atomic ", choice.atomic,
              " vector ", variant.vector, " whole ", variant.whole, " narrow ", variant.narrow, " wide ", variant.wide);
          Compiled kernels(source, architecture);
          kernels.CheckRegisters(text);
          const std::string lacking = LackingOf(architecture, kernels.log());
          CHECK_WITH(lacking.empty(), lacking + kernels.variant());
          if (architecture == "sm_90") kernels.CheckWaits();
        }
      }
    }
  }
}

}  // namespace

void TestKernels(const std::string& architecture, const DeviceFacts&) {
  const ScatterAttributes nd = Of(ScatterKind::kND), elements = Of(ScatterKind::kElements, 1);
  ScatterAttributes slice = Of(ScatterKind::kSlice);
  slice.axes = {1, 2};
  slice.steps = {1, -2};
  const Problem rows{"rows", nd, {{1000, 64}, {30, 1}, {30, 64}}};
  const Problem odd{"odd rows", nd, {{10, 33}, {4, 1}, {4, 33}}};
  const Problem single{"single elements", nd, {{1008}, {40, 1}, {40}}};
  const Problem many{"many", nd, {{100, 100, 3}, {5000, 2}, {5000, 3}}};
  // The oldest and the commonest architecture take every dtype; what differs elsewhere differs for these.
  const bool is_thorough = architecture == "sm_75" || architecture == "sm_90";
  const std::set<ort::ElementType> telling = {ort::kFloat16, ort::kBFloat16, ort::kDouble, ort::kInt8};
  for (const ort::ElementType type : kArithmetic)
    for (const Reduction reduction : kReductions) {
      // Sums stand for products, and the minimum for the maximum, but for one dtype each.
      const bool is_copy = reduction == Reduction::kMul || reduction == Reduction::kMax;
      if (is_copy && type != ort::kFloat16 && type != ort::kInt32) continue;
      if (!is_thorough && telling.count(type) == 0) continue;
      CompileAll(architecture, Reduced(rows, reduction), type, false);
    }
  for (const ort::ElementType type : {ort::kFloat16, ort::kFloat, ort::kInt8})
    for (const Reduction reduction : {Reduction::kNone, Reduction::kAdd}) {
      if (!is_thorough && type != ort::kFloat16) continue;
      for (const Problem& problem : {rows, odd, single, many})
        CompileAll(architecture, Reduced(problem, reduction), type);
    }
  CompileAll(architecture, rows, ort::kComplex128);
  for (const Reduction reduction : {Reduction::kNone, Reduction::kAdd}) {
    for (const Problem& problem : std::vector<Problem>{{"elements", elements, {{20, 30, 40}, {20, 7, 40}, {20, 7, 40}}},
           {"expanded indices", elements, {{20, 30, 40}, {1, 70, 1}, {20, 70, 40}}, true},
           {"odd address", nd, {{1000, 64}, {30, 1}, {30, 64}}, false, 2},
           {"over 2^31", nd, {{int64_t{1} << 20, 4096}, {5000, 1}, {5000, 4096}}},
           {"one dimension", nd, {{1 << 20}, {1 << 20, 1}, {1 << 20}}}})
      CompileAll(architecture, Reduced(problem, reduction), ort::kFloat16);
  }
  CompileAll(architecture, {"slice", slice, {{9, 8, 7, 6}, {9, 3, 2, 1}, {2}}}, ort::kFloat);
  CompileAll(architecture, {"long slice", slice, {{90, 80, 70, 6}, {1, 30, 20, 6}, {2}}}, ort::kFloat16);
}
