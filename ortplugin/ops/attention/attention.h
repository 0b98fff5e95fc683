// FusedAttention: softmax(scale Q K^T + mask) V for each head. The specification is in
// ortplugin/ops/attention/__init__.py, the language of layouts in layout.py.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ortplugin/runtime/ort/ort.h"
#include "ortplugin/runtime/program/program.h"

namespace ortplugin {

class NodeText;

extern const Operator kFusedAttention;

// One run: sizes, and where each element [b, h, i, d] of a tensor lies. CPU kernel and CUDA engines are made of it.
struct AttentionProblem {
  // In elements. `offset` is that of the element [0, 0, 0, 0]; `row` is the step from query or key to the next one,
  // `column` that along the head size.
  struct View {
    int64_t offset = 0, batch = 0, head = 0, row = 0, column = 0;
  };
  DType dtype = DType::kFloat16;  // of Q, K, V and Y
  bool allow_tf32 = false;  // of float: products of factors rounded to 10 bits of mantissa
  int64_t batch = 1, heads = 1, kv_heads = 1, queries = 1, keys = 1, head_size = 1, value_size = 1;
  View q, k, v, y;
  // The mask's steps are 0 where it broadcasts. It is bool, of which true is seen, or floating and added to the scores.
  bool has_mask = false;
  DType mask_dtype = DType::kBool;
  View mask;  // [b, h, query, key]
  double scale = 1, softcap = 0;
  enum class Causal { kNone, kUpperLeft, kLowerRight } causal = Causal::kNone;
  int64_t window = 0;
  bool masked_rows_are_zero = false;
  // The first 2 * pairs elements of each row of Q and K are rotated by cos and sin [queries, pairs], which are those of
  // all batches (rotary_batch 0) or begin so many elements after those of the batch before. There are as many keys as
  // queries then.
  enum class Rotary { kNone, kHalf, kInterleaved } rotary = Rotary::kNone;
  DType rotary_dtype = DType::kFloat;
  int64_t pairs = 0, rotary_batch = 0;
  bool are_keys_rotated = false;  // already: only Q is
  // With a cache, `keys` counts its `past` rows and then the `added` ones that K and V have, which alone are rotated;
  // all of them are written to present. Where there are positions, the past rows are all the keys, and the new ones
  // replace those from there on; negative positions count from the end.
  bool has_past = false, has_position = false;
  int64_t position_batch = 0;  // 1: each batch has a position of its own
  std::vector<int64_t> positions;  // where they are known, from 0 on: on the CPU
  int64_t past = 0, added = 0;
  View past_key, past_value, present_key, present_value;

  bool is_rotary() const { return rotary != Rotary::kNone; }
  bool rotates_keys() const { return is_rotary() && !are_keys_rotated; }
  int64_t group() const { return heads / kv_heads; }  // the heads of Q that share one of K and V
  // Query i sees no key behind i + last_seen(), with any `causal` but kNone.
  int64_t last_seen(int64_t batch = 0) const {
    if (causal != Causal::kLowerRight) return 0;
    return positions.empty() ? keys - queries : positions[size_t(batch * position_batch)];
  }
  // Whether a GPU reads that from the position.
  bool sees_position() const { return has_position && causal == Causal::kLowerRight; }
  // A row of which every score is -inf is 0, else NaN: without keys it is the sum over nothing.
  bool zero_where_nothing_is_seen() const { return masked_rows_are_zero || keys == 0; }
};

constexpr int64_t kMostHeadSize = 256;

// Attention over keys and values that are written to present already.
AttentionProblem OverPresent(const AttentionProblem& problem);

struct AttentionLayout {
  struct Atom {
    char name;  // 'b', 's', 'h' or 'd'; '/' where one index is taken
    int64_t first, total;  // that index of a length; of 'h' the first head and the heads in the tensor, 0: all
  };
  std::string text;
  std::vector<std::vector<Atom>> axes;

  // Throws Error that names the attribute. `heads`: what the node takes of the tensor.
  static AttentionLayout Parse(const char* attribute, const std::string& text, int64_t heads, bool is_output);
};

struct AttentionAttributes {
  DType dtype = DType::kFloat16;
  std::optional<DType> mask_dtype;  // empty: there is no mask
  std::optional<bool> allow_tf32;  // empty: as the session has it
  int64_t heads = 1, kv_heads = 1;
  AttentionLayout q, k, v, y, past;
  // The attributes that it has as they are; sizes and views are those of no tensors yet.
  AttentionProblem problem;

  bool follows_session() const { return !allow_tf32 && dtype == DType::kFloat; }
  size_t input_count() const {
    return 3 + problem.has_mask + 2 * problem.is_rotary() + 2 * problem.has_past + problem.has_position;
  }
  size_t output_count() const { return problem.has_past ? 3 : 1; }
  // Of an input: 0 to 3 are Q, K, V and the mask, 4 and 5 cos and sin, 6 and 7 past_key and past_value, 8 the position.
  size_t RoleOf(size_t input) const {
    const size_t role = input < 3 || problem.has_mask ? input : input + 1;
    return role < 4 || problem.is_rotary() ? role : role + 2;
  }

  static AttentionAttributes Parse(const NodeInfo& info);
  static AttentionAttributes Parse(const ShapeContext& context);
  static AttentionAttributes Parse(const NodeText& text);
};

struct AttentionShape {
  AttentionProblem problem;
  std::vector<Shape> outputs;  // Y, present_key and present_value
};

// Of the shapes of the inputs. Throws Error where they do not fit the attributes or each other.
AttentionShape FitAttention(const AttentionAttributes& attributes, const std::vector<Shape>& inputs);
// Throws Error where an input has another dtype than the node says.
void CheckAttentionType(const AttentionAttributes& attributes, size_t input, ort::ElementType type);
// The types of the inputs that the model tells, checked. Throws Error where there are too few or too many inputs.
std::vector<TensorType> CheckAttentionNode(const AttentionAttributes& attributes, const NodeInfo& info);

std::unique_ptr<Kernel> CreateCpuAttention(const NodeInfo& info);
std::unique_ptr<Kernel> CreateCudaAttention(const NodeInfo& info);

}  // namespace ortplugin
