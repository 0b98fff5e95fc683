// Pointwise programs: docs/programs.md has the language. This is the parsed form, shared by every fused operator.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ortplugin/runtime/error.h"

namespace ortplugin {

enum class DType : uint8_t {
  // clang-format off
  kFloat16, kBFloat16, kFloat, kDouble, kBool, kInt8, kInt16, kInt32, kInt64, kUInt8, kUInt16, kUInt32, kUInt64,
  // clang-format on
};

size_t SizeOf(DType dtype);  // bytes of one element in a tensor
const char* NameOf(DType dtype);  // "float16", as programs write it
bool IsFloating(DType dtype);
bool IsInteger(DType dtype);  // the eight; bool is neither
bool IsSigned(DType dtype);  // of an integer
// The value of a floating dtype nearest to `number`, ties to even.
double RoundTo(DType dtype, double number);
// The C++ and CUDA type that values of this dtype are computed in: "float" for float16, bfloat16 and float, "double",
// "bool", and for integers the type itself, "signed char" to "unsigned long long".
const char* ComputeTypeOf(DType dtype);

// The closed set of operators: kAbs, kNeg, ..., in the order of the table, which has their meaning.
enum class Op : uint8_t {
#define POINTWISE(Name, ...) k##Name,
#define CORE(Name, ...) k##Name,
#include "ortplugin/program/operators.def"
#undef POINTWISE
#undef CORE
};

const char* NameOf(Op op);
bool IsCore(Op op);  // LayerNormalization, RMSNormalization, SumTo: implemented by one fused operator, not pointwise

using ValueId = uint32_t;  // index into Program::values()

struct Value {
  enum class Kind : uint8_t { kParameter, kLiteral, kResult };
  Kind kind;
  DType dtype;
  uint32_t index;  // of the parameter, or of the statement that makes it; unused for a literal
  double literal;  // of a literal, not yet rounded to dtype; of an integer dtype only the nearest double
  std::string name;  // as the text has it; empty for a literal
  uint64_t integer;  // of a literal of an integer dtype: its exact value, in two's complement where it is negative
};

struct Statement {
  Op op;
  ValueId result;
  std::vector<ValueId> operands;
  // The operator's attributes in the order of its table row, defaults filled in. Words are numbers:
  // Gelu's approximate is 0 for "none" and 1 for "tanh", BitShift's direction 0 for "LEFT" and 1 for "RIGHT"; Cast has
  // none, its target is the result's dtype; axes stand below and are 0 here. As in ONNX they are 32-bit floats: each is
  // exactly the float nearest to its text.
  std::array<double, 4> attributes;
  std::vector<int64_t> axes;  // of SumTo and norms, from 0 on, ascending; of norms none where `axis` says them
};

class Program {
 public:
  // Throws Error with line, column, what was found and what was expected.
  static Program Parse(std::string_view text);

  const std::vector<Value>& values() const { return values_; }
  const std::vector<ValueId>& parameters() const { return parameters_; }  // in the order of the node's inputs
  const std::vector<ValueId>& results() const { return results_; }  // in the order of the node's outputs
  const std::vector<Statement>& statements() const { return statements_; }
  const Value& value(ValueId id) const { return values_[id]; }
  const Value& parameter(size_t i) const { return value(parameters_[i]); }
  const Value& result(size_t i) const { return value(results_[i]); }

  // The indices, ascending, of the statements needed to compute `targets` when every value in `available` is at hand.
  std::vector<uint32_t> Closure(const std::vector<ValueId>& targets, const std::vector<ValueId>& available) const;

  // The program without a statement, whose value is `stand_in` from there on. A parameter that nothing reads any more
  // stays one.
  Program Without(uint32_t statement, ValueId stand_in) const;

  // The text again, in canonical form: one statement a line, two spaces of indentation, every attribute that is not
  // the default. Parse(ToString()) is the same program.
  std::string ToString() const;

 private:
  std::vector<Value> values_;
  std::vector<ValueId> parameters_, results_;
  std::vector<Statement> statements_;
};

// Whether all that it does is to hand its first parameter on.
bool IsIdentity(const Program& program);

// CUDA C++ for the given statements, a line each: `const float v7 = op_Add(v3, v4);`. Value number N is the variable
// `vN` of ComputeTypeOf its dtype; literals stand in place. The caller declares the variables of the parameters and of
// a core operator's result. The op_* functions are in pointwise.cuh. `is_of_tf32`: float results follow from products
// that are rounded to TF32, and may be as precise as those of float16, which take fewer instructions.
std::string EmitCuda(
  const Program& program, const std::vector<uint32_t>& statements, const std::string& indent, bool is_of_tf32 = false);

// 1 + Erf(x scale / sqrt(2)), the end of which exporters' Gelu is: x and scale where a statement, one of `statements`
// as Erf is, is that.
std::optional<std::pair<ValueId, double>> AsOnePlusErf(
  const Program& program, const std::vector<uint32_t>& statements, const Statement& statement);

// Throws Error where a statement is a core operator.
void CheckIsPointwise(const Program& program);

}  // namespace ortplugin
