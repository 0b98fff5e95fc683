// The engines for attention in one table, from the special to the general: the first one that fits is taken.

#include <cstring>
#include <numeric>
#include <sstream>

#include "ortplugin/ops/attention/engines/decode.h"
#include "ortplugin/ops/attention/engines/engine.h"
#include "ortplugin/ops/attention/engines/flash.h"
#include "ortplugin/ops/attention/engines/flash_wgmma.h"
#include "ortplugin/ops/attention/engines/present.h"
#include "ortplugin/ops/attention/engines/simt.h"
#include "ortplugin/runtime/gpu/kernel_sources.h"
#include "ortplugin/runtime/program/operands.h"

namespace ortplugin {

const std::vector<AttentionEngine>& AttentionEngines() {
  static const auto* const table = new std::vector<AttentionEngine>{
    {"decode", FitsDecode, MakeDecode,
      "fp16 and bf16, up to 16 queries for each head of K and V, on GPUs with clusters: all that takes in a cache; "
      "before flash, which has one block for these queries"},
    {"flash_wgmma", FitsFlashWgmma, MakeFlashWgmma,
      "fp16 and bf16 on Hopper without mask and rotary embedding, many keys; before flash, whose tensor core "
      "instructions are half as fast"},
    {"flash", FitsFlash, MakeFlash,
      "fp16, bf16, TF32 and, where tensor cores are fast in that, fp32, whose heads lie in rows, from sm_80 on; before "
      "simt, for its tensor cores"},
    {"simt", FitsAttentionSimt, MakeAttentionSimt,
      "every dtype, head size, layout and GPU; last, as it has no tensor cores"},
  };
  return *table;
}

EngineKernel MakeAttention(const AttentionProblem& problem, bool aligned, const cuda::DeviceFacts& device) {
  for (const AttentionEngine& engine : AttentionEngines())
    if (engine.fits(problem, aligned, device))
      if (std::optional<EngineKernel> kernel = engine.make(problem, device)) return *std::move(kernel);
  Fail("no kernel computes ", problem.batch, " x ", problem.heads, " heads of ", problem.queries,
    " queries: these are more blocks than a launch has");
}

std::vector<AttentionLaunch> PlanAttention(
  const AttentionProblem& problem, bool aligned, const cuda::DeviceFacts& device) {
  std::vector<AttentionLaunch> launches;
  const size_t past = 2 * problem.has_past + problem.has_position;
  const size_t inputs = 3 + problem.has_mask + 2 * problem.is_rotary() + past;
  std::vector<size_t> all(inputs + 1 + 3 * problem.has_past);
  std::iota(all.begin(), all.end(), size_t{0});
  const bool has_queries = problem.batch * problem.queries > 0;
  if (has_queries && (!problem.has_past || FitsDecode(problem, aligned, device)))
    return {{MakeAttention(problem, aligned, device), all}};
  if (problem.has_past && problem.batch * problem.keys > 0) launches.push_back({MakePresent(problem, aligned), all});
  if (!has_queries) return launches;
  std::vector<size_t> over{0, inputs + 1, inputs + 2};
  for (size_t i = 3; i < inputs - past; ++i) over.push_back(i);
  const AttentionProblem present = OverPresent(problem);
  if (present.has_position) over.push_back(inputs - 1);
  over.push_back(inputs);
  launches.push_back({MakeAttention(present, aligned, device), over});
  return launches;
}

std::string AttentionPreamble(const AttentionProblem& problem) {
  std::ostringstream text;
  text << kCommonSource << "\ntypedef " << StorageType(problem.dtype) << " storage_t;\ntypedef "
       << ComputeType(problem.dtype) << " compute_t;\ntypedef " << StorageType(problem.mask_dtype) << " mask_t;\n"
       << "#define HEAD_SIZE " << problem.head_size << "\n#define VALUE_SIZE " << problem.value_size
       << "\n#define MASK " << problem.has_mask << "\n#define IS_BOOL_MASK " << (problem.mask_dtype == DType::kBool)
       << "\n#define IS_CAUSAL " << (problem.causal != AttentionProblem::Causal::kNone) << "\n#define HAS_WINDOW "
       << (problem.window > 0) << "\n#define HAS_SOFTCAP " << (problem.softcap > 0) << "\n#define HAS_PAST "
       << problem.has_past << "\n#define HAS_POSITION " << problem.has_position << "\n#define ROTARY "
       << problem.is_rotary() << "\n";
  if (problem.is_rotary())
    text << "#define PAIRS " << problem.pairs << "\n#define ROTATES_KEYS " << !problem.are_keys_rotated
         << "\n#define IS_INTERLEAVED " << (problem.rotary == AttentionProblem::Rotary::kInterleaved) << "\ntypedef "
         << StorageType(problem.rotary_dtype) << " table_t;\n";
  text << "\nstruct View {\n  long long offset, batch, head, row, column;\n};\n"
       << "struct Arguments {\n  const storage_t *q, *k, *v;\n"
       << (problem.has_mask ? "  const mask_t* mask;\n" : "")
       << (problem.is_rotary() ? "  const table_t *cos, *sin;\n" : "")
       << (problem.has_past ? "  const storage_t *past_key, *past_value;\n" : "")
       << (problem.has_position ? "  const long long* position;\n" : "") << "  storage_t* y;\n"
       << (problem.has_past ? "  storage_t *present_key, *present_value;\n  long long cache_is_there;\n" : "")
       << "  long long queries, keys, heads, group, last_seen, window, zero_where_nothing_is_seen;\n"
       << "  double scale, softcap;\n  View q_view, k_view, v_view, mask_view, y_view;\n"
       << (problem.is_rotary() ? "  long long rotary_batch;\n" : "")
       << (problem.has_past ? "  long long past, added, present_rows;\n  View past_key_view, past_value_view, "
                              "present_key_view, present_value_view;\n"
                            : "")
       << "};\n\n#define SEES_POSITION " << problem.sees_position() << "\n";
  if (problem.has_position)
    text << "DEVICE long long position_of(const Arguments& a, long long batch) {\n  const long long position = "
            "a.position["
         << (problem.position_batch ? "batch" : "0")
         << "];\n  return position < 0 ? position + a.keys : position;\n}\n";
  text << "#define LAST_SEEN(a, batch) " << (problem.sees_position() ? "position_of(a, batch)" : "(a).last_seen")
       << "\n\n";
  return text.str();
}

std::string AttentionSoftmaxSource(const AttentionProblem& problem) {
  std::ostringstream text;
  const char* const type = problem.dtype == DType::kFloat16 ? "f16" : problem.dtype == DType::kFloat ? "tf32" : "bf16";
  text << "\n#define MMA_TYPE \"" << type << "\"\n#define SCALE_IS_POSITIVE " << (problem.scale > 0) << "\n"
       << kSoftmaxSource;
  return text.str();
}

std::vector<uint64_t> AttentionArguments(const AttentionProblem& problem) {
  const size_t addresses =
    4u + problem.has_mask + 2 * problem.is_rotary() + 5 * problem.has_past + problem.has_position;
  std::vector<uint64_t> block(addresses);
  for (const int64_t number : {problem.queries, problem.keys, problem.heads, problem.group(), problem.last_seen(),
         problem.window, int64_t(problem.zero_where_nothing_is_seen())})
    block.push_back(uint64_t(number));
  for (const double number : {problem.scale, problem.softcap}) {
    uint64_t bits;
    std::memcpy(&bits, &number, sizeof(bits));
    block.push_back(bits);
  }
  const auto add = [&](const AttentionProblem::View& view) {
    for (const int64_t number : {view.offset, view.batch, view.head, view.row, view.column})
      block.push_back(uint64_t(number));
  };
  for (const auto& view : {problem.q, problem.k, problem.v, problem.mask, problem.y}) add(view);
  if (problem.is_rotary()) block.push_back(uint64_t(problem.rotary_batch));
  if (problem.has_past) {
    block.push_back(uint64_t(problem.past));
    block.push_back(uint64_t(problem.added));
    block.push_back(uint64_t(problem.batch * problem.kv_heads * problem.keys));
    for (const auto& view : {problem.past_key, problem.past_value, problem.present_key, problem.present_value})
      add(view);
  }
  return block;
}

}  // namespace ortplugin
