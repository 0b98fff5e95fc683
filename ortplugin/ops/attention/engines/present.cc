#include "ortplugin/ops/attention/engines/present.h"

#include <sstream>

#include "ortplugin/runtime/gpu/kernel_sources.h"
#include "ortplugin/runtime/round_up.h"

namespace ortplugin {
namespace {

constexpr int64_t kThreads = 256;

// Elements of 16 bytes, where all begins and steps by so many; else one.
int64_t VectorOf(const AttentionProblem& problem, bool aligned) {
  const auto vector = int64_t(16 / SizeOf(problem.dtype));
  int64_t common = problem.head_size | problem.value_size;
  for (const AttentionProblem::View& view :
    {problem.k, problem.v, problem.past_key, problem.past_value, problem.present_key, problem.present_value}) {
    if (view.column != 1) return 1;
    common |= view.offset | view.batch | view.head | view.row;
  }
  return aligned && common % vector == 0 ? vector : 1;
}

}  // namespace

EngineKernel MakePresent(const AttentionProblem& problem, bool aligned) {
  const int64_t vector = VectorOf(problem, aligned);
  const int64_t rows = problem.batch * problem.kv_heads * problem.keys;
  const int64_t items = rows * (problem.head_size / vector + problem.value_size / vector);
  const int64_t blocks = DivideUp(items, kThreads);
  constexpr int64_t kMost = (int64_t{1} << 31) - 1;
  if (blocks > kMost) Fail("what is present has ", rows, " rows of keys: these are more blocks than a launch has");
  std::ostringstream text;
  text << AttentionPreamble(problem) << kAttentionRowsSource << "\n#define VECTOR " << vector << "\ntypedef "
       << (items < kMost - kThreads ? "unsigned" : "unsigned long long") << " index_t;\n\n"
       << kPresentSource;
  return {text.str(), "present", {unsigned(blocks), unsigned(kThreads)}, AttentionArguments(problem)};
}

}  // namespace ortplugin
