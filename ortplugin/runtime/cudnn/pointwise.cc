#include "ortplugin/runtime/cudnn/pointwise.h"

#include <cmath>

namespace ortplugin::cudnn {
namespace {

using Mode = abi::PointwiseMode;
using Operand = PointwiseOperand;

struct Unsupported {
  std::string why;
};

// The mode of an operator that cuDNN has as it is; none for what Mapper writes with several or with attributes, and for
// what a program with a convolution of cuDNN's cannot hold. Its sine, cosine and tangent are left out: they lose all
// digits of large angles. Without a default, so that the compiler asks of every new operator which one it is.
std::optional<Mode> DirectMode(Op op) {
  switch (op) {
      // clang-format off
    case Op::kAbs: return Mode::kAbs;
    case Op::kNeg: return Mode::kNeg;
    case Op::kReciprocal: return Mode::kReciprocal;
    case Op::kSqrt: return Mode::kSqrt;
    case Op::kExp: return Mode::kExp;
    case Op::kLog: return Mode::kLog;
    case Op::kFloor: return Mode::kFloor;
    case Op::kCeil: return Mode::kCeil;
    case Op::kErf: return Mode::kErf;
    case Op::kRelu: return Mode::kRelu;
    case Op::kSigmoid: return Mode::kSigmoid;
    case Op::kAdd: return Mode::kAdd;
    case Op::kSub: return Mode::kSub;
    case Op::kMul: return Mode::kMul;
    case Op::kDiv: return Mode::kDiv;
    case Op::kEqual: return Mode::kEqual;
    case Op::kLess: return Mode::kLess;
    case Op::kLessOrEqual: return Mode::kLessOrEqual;
    case Op::kGreater: return Mode::kGreater;
    case Op::kGreaterOrEqual: return Mode::kGreaterOrEqual;
    case Op::kAnd: return Mode::kAnd;
    case Op::kOr: return Mode::kOr;
    case Op::kNot: return Mode::kNot;
    case Op::kWhere: return Mode::kSelect;
    // Mapper::MapStatement has these.
    case Op::kCast: case Op::kClip: case Op::kPow: case Op::kSwish: case Op::kQuickGelu: case Op::kGelu:
    case Op::kElu: case Op::kSelu: case Op::kSoftplus: case Op::kMish: case Op::kTanh: case Op::kMin: case Op::kMax:
    case Op::kLeakyRelu: case Op::kPRelu: case Op::kHardSigmoid: case Op::kHardSwish: case Op::kIsNaN:
      return std::nullopt;
    // These are refused.
    case Op::kSign: case Op::kRound: case Op::kSin: case Op::kCos: case Op::kTan: case Op::kAsin: case Op::kAcos:
    case Op::kAtan: case Op::kSinh: case Op::kCosh: case Op::kAsinh: case Op::kAcosh: case Op::kAtanh:
    case Op::kSoftsign: case Op::kCelu: case Op::kThresholdedRelu: case Op::kShrink: case Op::kMod:
    case Op::kBitwiseAnd: case Op::kBitwiseOr: case Op::kBitwiseXor: case Op::kBitShift: case Op::kBitwiseNot:
    case Op::kXor: case Op::kIsInf: case Op::kLayerNormalization: case Op::kRMSNormalization: case Op::kSumTo:
      return std::nullopt;
      // clang-format on
  }
  return std::nullopt;
}

bool Commutes(Mode mode) {
  return mode == Mode::kAdd || mode == Mode::kMul || mode == Mode::kMin || mode == Mode::kMax || mode == Mode::kEqual ||
    mode == Mode::kAnd || mode == Mode::kOr;
}

std::optional<double> LiteralOf(const Program& program, ValueId id) {
  const Value& value = program.value(id);
  if (value.kind != Value::Kind::kLiteral) return std::nullopt;
  return RoundTo(value.dtype, value.literal);
}

bool IsOperand(const Program& program, ValueId id) {
  for (const Statement& statement : program.statements())
    for (const ValueId operand : statement.operands)
      if (operand == id) return true;
  return false;
}

// cuDNN's tanh has 17 bits: enough where the convolution's dtype has 11 or fewer.
Operand ExactEnoughForTanh(const Program& program, Operand x, Op op) {
  if (SizeOf(program.value(program.parameters().front()).dtype) != 2)
    throw Unsupported{std::string(NameOf(op)) + " with more than 17 bits"};
  return x;
}

class Mapper {
 public:
  explicit Mapper(const Program& program) : program_(program), operands_(program.values().size()) {
    graph_.math = program.value(program.parameters().front()).dtype == DType::kDouble ? DType::kDouble : DType::kFloat;
  }

  PointwiseGraph Map() {
    const std::vector<ValueId>& parameters = program_.parameters();
    for (uint32_t i = 0; i < parameters.size(); ++i) {
      if (!IsFloating(program_.value(parameters[i]).dtype))
        throw Unsupported{std::string("an operand of dtype ") + NameOf(program_.value(parameters[i]).dtype)};
      operands_[parameters[i]] = {i == 0 ? Operand::Kind::kConvolution : Operand::Kind::kParameter, i};
    }
    for (const Statement& statement : program_.statements()) {
      for (const ValueId operand : statement.operands)
        if (program_.value(operand).kind == Value::Kind::kLiteral) operands_[operand] = Scalar(operand);
      operands_[statement.result] = MapStatement(statement);
    }
    WriteResults();
    return std::move(graph_);
  }

 private:
  Operand AddNode(Mode mode, Operand x, Operand b = {}, Operand t = {},
    std::vector<std::pair<abi::Attribute, double>> attributes = {}, bool is_condition = false) {
    // cuDNN broadcasts the second operand to the first more readily than the other way round.
    if (Commutes(mode) && (x.kind == Operand::Kind::kScalar || x.kind == Operand::Kind::kParameter) &&
      (b.kind == Operand::Kind::kConvolution || b.kind == Operand::Kind::kNode))
      std::swap(x, b);
    graph_.nodes.push_back({mode, x, b, t, is_condition ? DType::kBool : graph_.math, std::move(attributes), -1});
    return {Operand::Kind::kNode, uint32_t(graph_.nodes.size() - 1)};
  }

  Operand Number(double number) {
    graph_.scalars.push_back(number);
    return {Operand::Kind::kScalar, uint32_t(graph_.scalars.size() - 1)};
  }

  Operand Scalar(ValueId id) {
    const Value& value = program_.value(id);
    if (!IsFloating(value.dtype)) throw Unsupported{std::string("a number of dtype ") + NameOf(value.dtype)};
    return Number(RoundTo(value.dtype, value.literal));
  }

  // A Cast that only widens, or that is rounded where the result is stored, has nothing to do.
  Operand MapCast(const Statement& statement) {
    const DType from = program_.value(statement.operands[0]).dtype, to = program_.value(statement.result).dtype;
    if (!IsFloating(from) || !IsFloating(to))
      throw Unsupported{std::string("Cast from ") + NameOf(from) + " to " + NameOf(to)};
    const bool widens = from == to || to == DType::kDouble || (to == DType::kFloat && from != DType::kDouble);
    if (!widens && IsOperand(program_, statement.result))
      throw Unsupported{std::string("Cast to ") + NameOf(to) + " of a value that is used further"};
    return operands_[statement.operands[0]];
  }

  Operand MapStatement(const Statement& statement) {
    const DType dtype = program_.value(statement.operands.front()).dtype;
    const DType result = program_.value(statement.result).dtype;
    if (IsInteger(dtype)) throw Unsupported{std::string(NameOf(statement.op)) + " of " + NameOf(dtype)};
    if (statement.op == Op::kCast) return MapCast(statement);
    if (dtype == DType::kDouble && graph_.math != DType::kDouble)
      throw Unsupported{"arithmetic in float64 after a convolution in fp32"};
    const Operand x = operands_[statement.operands[0]];
    const auto second = [&] { return operands_[statement.operands[1]]; };
    const double alpha = statement.attributes[0];
    switch (statement.op) {
      case Op::kWhere:
        // Condition first in a program; cuDNN's x is what is taken where it is true.
        return AddNode(Mode::kSelect, second(), operands_[statement.operands[2]], x);
      case Op::kClip: return MapClip(statement);
      case Op::kPow:
        // cuDNN's own power is NaN for every negative base.
        if (LiteralOf(program_, statement.operands[1]) == 2.0) return AddNode(Mode::kMul, x, x);
        if (LiteralOf(program_, statement.operands[1]) == 3.0) return AddNode(Mode::kMul, AddNode(Mode::kMul, x, x), x);
        throw Unsupported{"Pow with an exponent that is not 2 or 3"};
      case Op::kSwish:
      case Op::kQuickGelu: return AddNode(Mode::kSwish, x, {}, {}, {{abi::kSwishBeta, alpha}});
      case Op::kGelu:
        if (alpha == 0) return AddNode(Mode::kGelu, x);
        return AddNode(Mode::kGeluTanh, ExactEnoughForTanh(program_, x, statement.op));
      case Op::kElu: return AddNode(Mode::kElu, x, {}, {}, {{abi::kEluAlpha, alpha}});
      case Op::kSelu:
        return AddNode(
          Mode::kMul, AddNode(Mode::kElu, x, {}, {}, {{abi::kEluAlpha, alpha}}), Number(statement.attributes[1]));
      case Op::kSoftplus: return Softplus(x);
      case Op::kMish:
        return AddNode(Mode::kMul, x, AddNode(Mode::kTanh, Softplus(ExactEnoughForTanh(program_, x, statement.op))));
      case Op::kTanh: return AddNode(Mode::kTanh, ExactEnoughForTanh(program_, x, statement.op));
      case Op::kMin: return MapExtreme(Mode::kMin, statement);
      case Op::kMax: return MapExtreme(Mode::kMax, statement);
      case Op::kLeakyRelu:
        // cuDNN's is max(x, alpha x).
        if (!(alpha <= 1)) return PRelu(x, Number(alpha));
        return AddNode(Mode::kRelu, x, {}, {}, {{abi::kReluLowerClipSlope, alpha}});
      case Op::kPRelu: return PRelu(x, second());
      case Op::kHardSigmoid: {
        const Operand line = Line(x, alpha, statement.attributes[1]);
        return KeepNaN(line, UpToOne(line));
      }
      case Op::kHardSwish: return AddNode(Mode::kMul, x, UpToOne(Line(x, 1.0 / 6.0, 0.5)));
      case Op::kIsNaN: return AddNode(Mode::kNotEqual, x, x, {}, {}, true);
      default: break;
    }
    const std::optional<Mode> mode = DirectMode(statement.op);
    if (!mode) throw Unsupported{NameOf(statement.op)};
    if (dtype == DType::kBool && statement.op == Op::kEqual) throw Unsupported{"Equal of bool"};
    const Operand b = statement.operands.size() > 1 ? second() : Operand{};
    return AddNode(*mode, x, b, {}, {}, result == DType::kBool);
  }

  // `otherwise`, but NaN where x is: of two numbers cuDNN's minimum and maximum take the one that is not NaN.
  Operand KeepNaN(Operand x, Operand otherwise) {
    return AddNode(Mode::kSelect, x, otherwise, AddNode(Mode::kNotEqual, x, x, {}, {}, true));
  }

  Operand MapExtreme(Mode mode, const Statement& statement) {
    Operand result = AddNode(mode, operands_[statement.operands[0]], operands_[statement.operands[1]]);
    for (const ValueId id : statement.operands) {
      const std::optional<double> literal = LiteralOf(program_, id);
      if (literal && std::isnan(*literal)) throw Unsupported{"a literal NaN"};
      if (!literal) result = KeepNaN(operands_[id], result);
    }
    return result;
  }

  Operand MapClip(const Statement& statement) {
    const Operand x = operands_[statement.operands[0]];
    const std::optional<double> low = LiteralOf(program_, statement.operands[1]),
                                high = LiteralOf(program_, statement.operands[2]);
    if (!low || !high || std::isnan(*low) || std::isnan(*high)) throw Unsupported{"Clip with bounds that vary"};
    const bool is_relu = *low == 0 && !std::signbit(*low);
    const Operand above = is_relu ? AddNode(Mode::kRelu, x) : AddNode(Mode::kMax, x, operands_[statement.operands[1]]);
    if (is_relu && std::isinf(*high) && *high > 0) return above;
    return KeepNaN(x, AddNode(Mode::kMin, above, operands_[statement.operands[2]]));
  }

  // log(1 + exp(x)), which overflows nowhere: max(x, 0) + log(1 + exp(-|x|)).
  Operand Softplus(Operand x) {
    const Operand small = AddNode(Mode::kExp, AddNode(Mode::kNeg, AddNode(Mode::kAbs, x)));
    return AddNode(Mode::kAdd, AddNode(Mode::kRelu, x), AddNode(Mode::kLog, AddNode(Mode::kAdd, small, Number(1))));
  }

  Operand PRelu(Operand x, Operand slope) {
    const Operand is_negative = AddNode(Mode::kLess, x, Number(0), {}, {}, true);
    return AddNode(Mode::kSelect, AddNode(Mode::kMul, x, slope), x, is_negative);
  }

  Operand Line(Operand x, double slope, double offset) {
    return AddNode(Mode::kAdd, AddNode(Mode::kMul, x, Number(slope)), Number(offset));
  }
  Operand UpToOne(Operand x) { return AddNode(Mode::kMin, AddNode(Mode::kRelu, x), Number(1)); }

  // Each result has a node of its own, whose value nothing else reads: it is rounded as it is stored.
  void WriteResults() {
    std::vector<size_t> uses(graph_.nodes.size());
    const auto use = [&](const Operand& operand) {
      if (operand.kind == Operand::Kind::kNode) ++uses[operand.index];
    };
    for (const PointwiseNode& node : graph_.nodes) {
      use(node.x);
      use(node.b);
      use(node.t);
    }
    for (size_t i = 0; i < program_.results().size(); ++i) {
      const ValueId id = program_.results()[i];
      const DType dtype = program_.value(id).dtype;
      if (!IsFloating(dtype)) throw Unsupported{std::string("a result of dtype ") + NameOf(dtype)};
      // Kernels in TF32 take it and write float32 there (9.19).
      if (dtype == DType::kDouble && graph_.math != DType::kDouble)
        throw Unsupported{"a result in float64 after a convolution in fp32"};
      Operand operand = operands_[id];
      if (operand.kind == Operand::Kind::kParameter || operand.kind == Operand::Kind::kScalar)
        throw Unsupported{"a result that does not come from the convolution"};
      if (operand.kind == Operand::Kind::kConvolution || uses[operand.index] > 0 ||
        graph_.nodes[operand.index].result >= 0) {
        operand = AddNode(Mode::kIdentity, operand);
        uses.push_back(0);
      }
      graph_.nodes[operand.index].result = int(i);
      graph_.nodes[operand.index].dtype = dtype;
    }
  }

  const Program& program_;
  std::vector<Operand> operands_;  // of each value, once it is known
  PointwiseGraph graph_;
};

}  // namespace

std::optional<PointwiseGraph> MapProgram(const Program& program, std::string* why) {
  if (program.parameters().empty()) {
    *why = "a program without parameters";
    return std::nullopt;
  }
  try {
    return Mapper(program).Map();
  } catch (const Unsupported& unsupported) {
    *why = unsupported.why;
    return std::nullopt;
  }
}

}  // namespace ortplugin::cudnn
