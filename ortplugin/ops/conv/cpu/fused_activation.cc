#include "ortplugin/ops/conv/cpu/fused_activation.h"

#include <algorithm>

namespace ortplugin {
namespace {

// The statement that alone reads the value, once; empty where there is no such one or the value is a result.
std::optional<uint32_t> OnlyUse(const Program& program, ValueId value) {
  const std::vector<ValueId>& results = program.results();
  if (std::find(results.begin(), results.end(), value) != results.end()) return std::nullopt;
  std::optional<uint32_t> use;
  for (uint32_t index = 0; index < program.statements().size(); ++index)
    for (const ValueId operand : program.statements()[index].operands)
      if (operand == value) {
        if (use) return std::nullopt;
        use = index;
      }
  return use;
}

// The parameter that a statement adds to the value; empty where it does something else.
std::optional<size_t> Added(const Program& program, const Statement& statement, ValueId value) {
  if (statement.op != Op::kAdd) return std::nullopt;
  const ValueId other = statement.operands[statement.operands[0] == value ? 1 : 0];
  if (program.value(other).kind != Value::Kind::kParameter) return std::nullopt;
  return program.value(other).index;
}

bool TakeActivation(const Program& program, const Statement& statement, ValueId value, FusedActivation* fused) {
  if (statement.operands[0] != value) return false;
  const auto literal = [&](size_t operand) {
    const Value& number = program.value(statement.operands[operand]);
    return float(RoundTo(number.dtype, number.literal));
  };
  const auto is_literal = [&](size_t operand) {
    return program.value(statement.operands[operand]).kind == Value::Kind::kLiteral;
  };
  switch (statement.op) {
    case Op::kRelu: fused->activation = "Relu"; return true;
    case Op::kLeakyRelu:
      fused->activation = "LeakyRelu";
      fused->activation_params = {float(statement.attributes[0])};
      return true;
    case Op::kClip:
      if (!is_literal(1) || !is_literal(2)) return false;
      if (!(literal(1) <= literal(2))) return false;  // NaN, or bounds whose order decides
      fused->activation = "Clip";
      fused->activation_params = {literal(1), literal(2)};
      return true;
    default: return false;
  }
}

}  // namespace

bool IsPerChannel(const Shape& shape, size_t spatial, bool channels_last, int64_t channels) {
  const size_t behind = channels_last ? 0 : spatial;
  if (shape.size() <= behind) return false;
  for (size_t i = 0; i < shape.size(); ++i) {
    const bool is_channels = i + behind + 1 == shape.size();
    if (!is_channels && shape[i] != 1) return false;
    if (is_channels && channels != -1 && shape[i] != -1 && shape[i] != channels) return false;
  }
  return true;
}

FusedActivation TakeFusedActivation(const Program& program, const TensorTypes& operands, size_t spatial,
  bool channels_last, bool takes_sum, bool takes_activation) {
  FusedActivation fused{std::nullopt, std::nullopt, "", {}, program};
  const ValueId value = program.parameters()[0];
  const DType dtype = program.value(value).dtype;
  // As it is in `rest`, a value that has been taken is the program's first parameter.
  while (const std::optional<uint32_t> use = OnlyUse(fused.rest, value)) {
    const Statement& statement = fused.rest.statements()[*use];
    const std::optional<size_t> added = Added(fused.rest, statement, value);
    if (added) {
      const TensorType& type = operands[*added - 1];
      if (!type.has_shape || fused.rest.parameter(*added).dtype != dtype) break;
      const bool per_channel = IsPerChannel(type.shape, spatial, channels_last, -1);
      if (per_channel && !fused.bias && !fused.sum) {
        fused.bias = added;
      } else if (!per_channel && !fused.sum && takes_sum) {
        fused.sum = added;
      } else {
        break;
      }
    } else if (!takes_activation || !TakeActivation(fused.rest, statement, value, &fused)) {
      break;
    }
    fused.rest = fused.rest.Without(*use, value);
    if (!fused.activation.empty()) break;
  }
  return fused;
}

}  // namespace ortplugin
