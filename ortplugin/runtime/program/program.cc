// The language of docs/programs.md: the table of operators, the parser, the canonical text and the CUDA text.
//
// The text comes from a model, so it is hostile until proved otherwise: the parser is a flat loop without recursion,
// every count is limited before anything grows with it, and nothing of the text but numbers, dtypes and the words of
// the table survives into what EmitCuda writes.
#include "ortplugin/runtime/program/program.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <optional>
#include <unordered_map>
#include <utility>

#include "ortplugin/runtime/half.h"
#include "ortplugin/runtime/text.h"

namespace ortplugin {
namespace {

constexpr size_t kMaxCharacters = 65536;
constexpr size_t kMaxParameters = 32;
constexpr size_t kMaxResults = 16;
constexpr size_t kMaxStatements = 256;
constexpr size_t kMaxName = 64;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// ---- The operators

// The dtypes that an operator takes for T, its operands' one dtype.
enum class Takes : uint8_t { kFloating, kNumber, kInteger, kUnsigned, kSummable, kBool, kAny };
enum class Gives : uint8_t { kSame, kBool, kTarget };  // T, bool, or what the attribute says

enum class Kind : uint8_t { kNone, kNumber, kAxis, kCount, kFlag, kWord, kDType, kAxes };

// What a kWord attribute may be: its value is the index.
using Words = std::array<const char*, 2>;

struct Attribute {
  const char* name = nullptr;
  Kind kind = Kind::kNone;
  double preset = 0;  // the value when the text leaves it out
  Words words{};
  bool required = false;
};

struct Row {
  Op op;
  const char* name;
  bool is_core;
  size_t arity;
  Takes takes;
  Gives gives;
  std::array<Attribute, 4> attributes;
};

// The attributes as operators.def writes them.
constexpr Attribute Number(const char* name, double preset) { return {name, Kind::kNumber, preset, {}, false}; }
constexpr Attribute Flag(const char* name, double preset) { return {name, Kind::kFlag, preset, {}, false}; }
constexpr Attribute Axis(const char* name, double preset) { return {name, Kind::kAxis, preset, {}, false}; }
constexpr Attribute Count(const char* name, double preset) { return {name, Kind::kCount, preset, {}, false}; }
constexpr Attribute Axes(const char* name) { return {name, Kind::kAxes, 0, {}, true}; }
constexpr Attribute Axes(const char* name, const char*) { return {name, Kind::kAxes, 0, {}, false}; }
constexpr Attribute TargetDType(const char* name) { return {name, Kind::kDType, 0, {}, true}; }
constexpr Attribute Word(const char* name, const char* preset, const char* other) {
  return {name, Kind::kWord, 0, {preset, other}, false};
}
constexpr Attribute RequiredWord(const char* name, const char* first, const char* second) {
  return {name, Kind::kWord, 0, {first, second}, true};
}

// What T may be in a signature such as "bool, A, A -> A"; bool where it has no letter.
constexpr Takes TakesOf(std::string_view signature) {
  for (size_t i = 0; i < signature.size(); ++i) {
    switch (signature[i]) {
      case 'F': return Takes::kFloating;
      case 'N': return Takes::kNumber;
      case 'I': return Takes::kInteger;
      case 'U': return Takes::kUnsigned;
      case 'S': return Takes::kSummable;
      case 'A': return Takes::kAny;
      default: break;
    }
  }
  return Takes::kBool;
}

constexpr Gives GivesOf(std::string_view signature) {
  const std::string_view result = signature.substr(signature.find("> ") + 2);
  return result == "bool" ? Gives::kBool : result == "to" ? Gives::kTarget : Gives::kSame;
}

constexpr size_t ArityOf(std::string_view signature) {
  size_t arity = 1;
  for (const char c : signature) arity += c == ',' ? 1 : 0;
  return arity;
}

template <typename... Attributes>
constexpr Row MakeRow(Op op, const char* name, bool is_core, std::string_view signature, Attributes... attributes) {
  return {op, name, is_core, ArityOf(signature), TakesOf(signature), GivesOf(signature), {attributes...}};
}

constexpr Row kOperators[] = {
#define POINTWISE(Name, ...) MakeRow(Op::k##Name, #Name, false, __VA_ARGS__),
#define CORE(Name, ...) MakeRow(Op::k##Name, #Name, true, __VA_ARGS__),
#include "ortplugin/program/operators.def"
#undef POINTWISE
#undef CORE
};

static_assert(kOperators[size_t(Op::kSumTo)].is_core && std::size(kOperators) == size_t(Op::kSumTo) + 1,
  "the core operators stand last, and SumTo as the last of them");

const Row& RowOf(Op op) { return kOperators[size_t(op)]; }

// An integer's range: from least, in two's complement, to most.
struct DTypeRow {
  DType dtype;
  const char* name;
  size_t size;
  const char* compute;  // ComputeTypeOf
  const char* cast;  // the CUDA function
  int64_t least;
  uint64_t most;
};
// clang-format off
constexpr DTypeRow kDTypes[] = {
    {DType::kFloat16, "float16", 2, "float", "op_CastFloat16", 0, 0},
    {DType::kBFloat16, "bfloat16", 2, "float", "op_CastBFloat16", 0, 0},
    {DType::kFloat, "float", 4, "float", "op_CastFloat", 0, 0},
    {DType::kDouble, "double", 8, "double", "op_CastDouble", 0, 0},
    {DType::kBool, "bool", 1, "bool", "op_CastBool", 0, 0},
    {DType::kInt8, "int8", 1, "signed char", "op_CastInt8", INT8_MIN, INT8_MAX},
    {DType::kInt16, "int16", 2, "short", "op_CastInt16", INT16_MIN, INT16_MAX},
    {DType::kInt32, "int32", 4, "int", "op_CastInt32", INT32_MIN, INT32_MAX},
    {DType::kInt64, "int64", 8, "long long", "op_CastInt64", INT64_MIN, INT64_MAX},
    {DType::kUInt8, "uint8", 1, "unsigned char", "op_CastUInt8", 0, UINT8_MAX},
    {DType::kUInt16, "uint16", 2, "unsigned short", "op_CastUInt16", 0, UINT16_MAX},
    {DType::kUInt32, "uint32", 4, "unsigned int", "op_CastUInt32", 0, UINT32_MAX},
    {DType::kUInt64, "uint64", 8, "unsigned long long", "op_CastUInt64", 0, UINT64_MAX},
};
// clang-format on

constexpr bool DTypesInOrder() {
  size_t index = 0;
  for (const DTypeRow& row : kDTypes) {
    if (size_t(row.dtype) != index++) return false;
  }
  return index == size_t(DType::kUInt64) + 1;
}
static_assert(DTypesInOrder(), "the table has one row for every DType, in DType's order");

constexpr const char* kADType = "a dtype: float16, bfloat16, float, double, bool or an integer from int8 to uint64";

const DTypeRow& RowOf(DType dtype) { return kDTypes[size_t(dtype)]; }

const DTypeRow* FindDType(std::string_view name) {
  for (const DTypeRow& row : kDTypes) {
    if (name == row.name) return &row;
  }
  return nullptr;
}

// ONNX keeps attributes as 32-bit floats, so an attribute means the float nearest to its text.
double AttributeValue(double number) { return double(float(number)); }

// ---- Tokens

// The character classes are ASCII's whatever the locale is.
bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

struct Token {
  enum class Type : uint8_t { kEnd, kName, kNumber, kString, kSymbol };
  Type type = Type::kEnd;
  std::string_view text;  // of a string: without the quotes
  double number = 0;
  size_t line = 1, column = 1;  // from 1, in bytes
};

std::string Describe(const Token& token) {
  return token.type == Token::Type::kEnd ? "the end of the text" : Quoted(token.text);
}

template <typename... Parts>
[[noreturn]] void FailAt(const Token& token, const Parts&... parts) {
  Fail("program, line ", token.line, ", column ", token.column, ": ", parts...);
}

class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) {}

  Token Next() {
    SkipSpace();
    Token token;
    token.line = line_;
    token.column = at_ - line_start_ + 1;
    if (at_ == text_.size()) return token;
    const size_t start = at_;
    const char c = text_[at_];
    if (IsLetter(c)) {
      SkipWord();
      token.type = Token::Type::kName;
      if (at_ - start > kMaxName) {
        FailAt(token, "found ", Quoted(text_.substr(start, at_ - start)), " of ", at_ - start,
          " characters, expected a name of at most ", kMaxName);
      }
    } else if (IsDigit(c) || c == '-' || c == '+') {
      token.type = Token::Type::kNumber;
      Number(&token);
    } else if (c == '"') {
      ++at_;
      while (IsDigit(Peek()) || Peek() == ' ' || (IsLetter(Peek()) && Peek() != '_')) ++at_;
      if (Peek() != '"') {
        FailAt(token, "found ", Quoted(text_.substr(start, at_ - start + 1)),
          ", expected letters, digits and spaces and a closing '\"'");
      }
      ++at_;
      token.type = Token::Type::kString;
      token.text = text_.substr(start + 1, at_ - start - 2);
      return token;
    } else if (std::memchr("(){}<>=,", c, 8) != nullptr) {
      ++at_;
      if (c == '=' && Peek() == '>') ++at_;
      token.type = Token::Type::kSymbol;
    } else {
      FailAt(token, "found ", Quoted(text_.substr(at_, 1)),
        ", expected a name, a number, a string or one of ( ) { } < > = ,");
    }
    token.text = text_.substr(start, at_ - start);
    return token;
  }

 private:
  char Peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  void SkipSpace() {
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '\n') {
        ++line_;
        line_start_ = at_ + 1;
      } else if (c != ' ' && c != '\t' && c != '\r') {
        return;
      }
    }
  }

  void SkipWord() {
    while (at_ < text_.size() && (IsLetter(text_[at_]) || IsDigit(text_[at_]))) ++at_;
  }

  bool SkipDigits() {
    const size_t start = at_;
    while (IsDigit(Peek())) ++at_;
    return at_ > start;
  }

  void Number(Token* token) {
    const size_t start = at_;
    const bool negative = Peek() == '-';
    if (negative || Peek() == '+') ++at_;
    const size_t digits = at_;
    bool good = true;
    if (IsLetter(Peek())) {
      SkipWord();
      const std::string_view word = text_.substr(digits, at_ - digits);
      good = word == "inf" || word == "nan";
      token->number = word == "inf" ? (negative ? -kInf : kInf) : kNaN;
    } else {
      good = SkipDigits();
      if (good && Peek() == '.') {
        ++at_;
        good = SkipDigits();
      }
      if (good && (Peek() == 'e' || Peek() == 'E')) {
        ++at_;
        if (Peek() == '-' || Peek() == '+') ++at_;
        good = SkipDigits();
      }
      if (IsLetter(Peek()) || Peek() == '.') {  // 1x, 1.2.3
        ++at_;
        good = false;
      }
    }
    const std::string_view text = text_.substr(start, at_ - start);
    if (!good) FailAt(*token, "found ", Quoted(text), ", expected a number such as 1, -0.5, 1e-05, inf or nan");
    if (!IsDigit(text_[digits])) return;
    double magnitude = 0;
    const char* end = text_.data() + at_;
    const std::from_chars_result result = std::from_chars(text_.data() + digits, end, magnitude);
    if (result.ec != std::errc() || result.ptr != end) {
      FailAt(*token, "found ", Quoted(text), ", expected a number within the range of double");
    }
    token->number = negative ? -magnitude : magnitude;
  }

  std::string_view text_;
  size_t at_ = 0, line_ = 1, line_start_ = 0;
};

// ---- The parser

// What the parser fills: Program's members.
struct Parts {
  std::vector<Value> values;
  std::vector<ValueId> parameters, results;
  std::vector<Statement> statements;
};

// The exact integer of a number's text, in two's complement.
uint64_t Integer(const Token& token, DType dtype) {
  const DTypeRow& row = RowOf(dtype);
  std::string_view digits = token.text;
  const bool negative = digits.front() == '-';
  if (negative || digits.front() == '+') digits.remove_prefix(1);
  uint64_t magnitude = 0;
  const char* end = digits.data() + digits.size();
  const std::from_chars_result result = std::from_chars(digits.data(), end, magnitude);
  const uint64_t most = negative ? 0 - uint64_t(row.least) : row.most;
  if (result.ec != std::errc() || result.ptr != end || magnitude > most || (negative && magnitude == 0)) {
    FailAt(token, "found ", Describe(token), ", expected an integer from ", row.least, " to ", row.most,
      " in the place of ", row.name);
  }
  return negative ? 0 - magnitude : magnitude;
}

std::string AttributeNames(const Row& row) {
  std::string names = std::string(row.name) + "'s ";
  if (row.attributes[0].kind == Kind::kNone) return std::string(row.name) + " without attributes";
  for (size_t i = 0; i < row.attributes.size() && row.attributes[i].kind != Kind::kNone; ++i)
    names += std::string(i == 0 ? "" : " or ") + row.attributes[i].name;
  return names;
}

const char* Example(const Attribute& attribute) {
  return attribute.kind == Kind::kDType ? "dtype" : attribute.kind == Kind::kAxes ? "\"0 2\"" : "\"LEFT\"";
}

bool Fits(Takes takes, DType dtype) {
  switch (takes) {
    case Takes::kFloating: return IsFloating(dtype);
    case Takes::kNumber: return dtype != DType::kBool;
    case Takes::kInteger: return IsInteger(dtype);
    case Takes::kUnsigned: return IsInteger(dtype) && !IsSigned(dtype);
    case Takes::kSummable: return IsFloating(dtype) || (IsInteger(dtype) && SizeOf(dtype) >= 4);
    case Takes::kBool: return dtype == DType::kBool;
    case Takes::kAny: return true;
  }
  return false;
}

const char* TextOf(Takes takes) {
  constexpr const char* kTexts[] = {"a floating dtype", "a floating or an integer dtype", "an integer dtype",
    "an unsigned integer dtype", "a floating dtype or an integer of 32 or 64 bits", "bool", "any dtype"};
  return kTexts[size_t(takes)];
}

// The tokens one after another, and what occurs in more than one place.
class TokenReader {
 protected:
  explicit TokenReader(std::string_view text) : lexer_(text) { Advance(); }

  struct Declaration {
    DType dtype;
    Token name;
  };

  void Advance() { token_ = lexer_.Next(); }

  [[noreturn]] void Expected(const char* what) const {
    FailAt(token_, "found ", Describe(token_), ", expected ", what);
  }

  bool IsSymbol(const char* symbol) const { return token_.type == Token::Type::kSymbol && token_.text == symbol; }

  void Symbol(const char* symbol) {
    if (!IsSymbol(symbol)) Expected((std::string("'") + symbol + "'").c_str());
    Advance();
  }

  bool IsNumber() const {
    return token_.type == Token::Type::kNumber ||
      (token_.type == Token::Type::kName && (token_.text == "inf" || token_.text == "nan"));
  }

  double NumberValue() const {
    if (token_.type == Token::Type::kNumber) return token_.number;
    return token_.text == "inf" ? kInf : kNaN;
  }

  Token Name(const char* what) {
    if (token_.type != Token::Type::kName) Expected(what);
    if (IsNumber() || FindDType(token_.text) != nullptr) {
      FailAt(token_, "found ", Describe(token_), ", which is reserved, expected ", what);
    }
    Token name = token_;
    Advance();
    return name;
  }

  // "(" declarations ")".
  std::vector<Declaration> Declarations(size_t limit, const char* what, bool may_be_empty) {
    std::vector<Declaration> declarations;
    Symbol("(");
    if (may_be_empty && IsSymbol(")")) {
      Advance();
      return declarations;
    }
    for (;;) {
      if (declarations.size() == limit) {
        FailAt(token_, "found more than ", limit, " ", what, ", expected at most ", limit);
      }
      const DTypeRow* row = token_.type == Token::Type::kName ? FindDType(token_.text) : nullptr;
      if (row == nullptr) Expected(kADType);
      Advance();
      declarations.push_back({row->dtype, Name("a name after the dtype")});
      if (!IsSymbol(",")) break;
      Advance();
    }
    if (!IsSymbol(")")) Expected("',' or ')'");
    Advance();
    return declarations;
  }

  Token token_;

 private:
  Lexer lexer_;
};

class AttributeReader : protected TokenReader {
 protected:
  using TokenReader::TokenReader;

  // [ "<" attributes ">" ] of a statement: its attributes and axes, and what a Cast's `to` says.
  void Attributes(const Row& row, const Token& op_token, Statement* statement, DType* target) {
    std::array<bool, 4> given{};
    if (IsSymbol("<")) {
      do {
        Advance();
        const Token name = token_;
        if (name.type != Token::Type::kName) Expected("an attribute's name");
        size_t index = 0;
        while (index < row.attributes.size() &&
          (row.attributes[index].kind == Kind::kNone || name.text != row.attributes[index].name)) {
          ++index;
        }
        if (index == row.attributes.size()) {
          FailAt(name, "found the attribute ", Describe(name), ", expected ", AttributeNames(row));
        }
        if (given[index]) FailAt(name, "found the attribute ", Describe(name), " again, expected it once");
        given[index] = true;
        Advance();
        Symbol("=");
        AttributeText(row.attributes[index], &statement->attributes[index], target, &statement->axes);
      } while (IsSymbol(","));
      if (!IsSymbol(">")) Expected("',' or '>'");
      Advance();
    }
    for (size_t index = 0; index < row.attributes.size(); ++index) {
      if (given[index] || row.attributes[index].kind == Kind::kNone) continue;
      if (row.attributes[index].required) {
        FailAt(op_token, "found ", row.name, " without the attribute '", row.attributes[index].name, "', expected ",
          row.name, "<", row.attributes[index].name, "=", Example(row.attributes[index]), ">");
      }
      statement->attributes[index] = AttributeValue(row.attributes[index].preset);
    }
    if (row.attributes[0].kind != Kind::kAxis) return;
    const bool has_groups = statement->attributes[3] != 0;
    if (has_groups && statement->axes.empty()) FailAt(op_token, "found ", row.name, " with groups, expected axes, too");
    if (!has_groups && !statement->axes.empty() && statement->attributes[0] != row.attributes[0].preset)
      FailAt(op_token, "found both axis and axes, expected groups, too, or one of them for ", row.name);
  }

 private:
  void AttributeText(const Attribute& attribute, double* value, DType* target, std::vector<int64_t>* axes) {
    switch (attribute.kind) {
      case Kind::kNumber:
        if (!IsNumber()) Expected("a number");
        *value = AttributeValue(NumberValue());
        if (std::isinf(*value) && !std::isinf(NumberValue())) Expected("a number within the range of float");
        break;
      case Kind::kAxis:
        // Tensors have far fewer dimensions; the limit keeps the number exact in every type.
        if (!IsNumber() || !(std::fabs(NumberValue()) <= 1024) || NumberValue() != std::trunc(NumberValue())) {
          Expected("an integer from -1024 to 1024");
        }
        *value = NumberValue() + 0.0;  // no -0
        break;
      case Kind::kCount:
        if (!IsNumber() || !(NumberValue() >= 0 && NumberValue() <= 65536) ||
          NumberValue() != std::trunc(NumberValue())) {
          Expected("an integer from 0 to 65536");
        }
        *value = NumberValue() + 0.0;
        break;
      case Kind::kFlag:
        if (!IsNumber() || (NumberValue() != 0 && NumberValue() != 1)) Expected("0 or 1");
        *value = NumberValue() + 0.0;
        break;
      case Kind::kWord: {
        const Words& words = attribute.words;
        if (token_.type != Token::Type::kString || (token_.text != words[0] && token_.text != words[1])) {
          Expected((std::string("\"") + words[0] + "\" or \"" + words[1] + "\"").c_str());
        }
        *value = token_.text == words[1] ? 1 : 0;
        break;
      }
      case Kind::kAxes:
        if (attribute.required || token_.type != Token::Type::kString || !token_.text.empty()) Axes(axes);
        break;
      case Kind::kDType: {
        const DTypeRow* row = token_.type == Token::Type::kName ? FindDType(token_.text) : nullptr;
        if (row == nullptr) Expected(kADType);
        *target = row->dtype;
        break;
      }
      case Kind::kNone: break;
    }
    Advance();
  }

  // "0 2 3": at least one, ascending, separated by one space, without leading zeros.
  void Axes(std::vector<int64_t>* axes) {
    constexpr int64_t kMostAxis = 63;
    constexpr const char* kWhat = "axes such as \"0 2 3\": ascending numbers from 0 to 63, with one space between them";
    if (token_.type != Token::Type::kString) Expected(kWhat);
    const char* at = token_.text.data();
    const char* const end = at + token_.text.size();
    for (;;) {
      int64_t axis = 0;
      const std::from_chars_result result = std::from_chars(at, end, axis);
      const bool is_padded = at != end && *at == '0' && result.ptr != at + 1;
      if (result.ec != std::errc() || is_padded || axis > kMostAxis || (!axes->empty() && axis <= axes->back())) {
        Expected(kWhat);
      }
      axes->push_back(axis);
      if (result.ptr == end) return;
      if (*result.ptr != ' ') Expected(kWhat);
      at = result.ptr + 1;
    }
  }
};

class Parser : AttributeReader {
 public:
  explicit Parser(std::string_view text) : AttributeReader(text) {}

  Parts Run() {
    std::vector<Declaration> parameters = Declarations(kMaxParameters, "parameters", true);
    for (const Declaration& declaration : parameters) {
      const auto index = uint32_t(parts_.parameters.size());
      parts_.parameters.push_back(Define(declaration.name, Value::Kind::kParameter, declaration.dtype, index));
    }
    Symbol("=>");
    const std::vector<Declaration> results = Declarations(kMaxResults, "results", false);
    Symbol("{");
    while (!IsSymbol("}")) StatementLine();
    Advance();
    if (token_.type != Token::Type::kEnd) Expected("the end of the text");
    for (const Declaration& declaration : results) Result(declaration);
    for (ValueId id = 0; id < parts_.values.size(); ++id) {
      if (!used_[id])
        FailAt(tokens_[id], "found ", Describe(tokens_[id]), ", which is never used, expected a use of it");
    }
    return std::move(parts_);
  }

 private:
  struct Operand {
    Token token;
    bool is_number;
    ValueId id;  // of a name
  };

  ValueId Define(const Token& name, Value::Kind kind, DType dtype, uint32_t index) {
    const auto id = static_cast<ValueId>(parts_.values.size());
    const auto [known, is_new] = ids_.emplace(name.text, id);
    if (!is_new) {
      FailAt(name, "found ", Describe(name), " again, expected a new name: it was assigned on line ",
        tokens_[known->second].line);
    }
    parts_.values.push_back({kind, dtype, index, 0, std::string(name.text), 0});
    tokens_.push_back(name);
    used_.push_back(false);
    return id;
  }

  ValueId Literal(const Token& token, double number, DType dtype) {
    if (dtype == DType::kBool && number != 0 && number != 1) {
      FailAt(token, "found ", Describe(token), ", expected 0 or 1 in the place of a bool");
    }
    const uint64_t integer = IsInteger(dtype) ? Integer(token, dtype) : 0;
    parts_.values.push_back({Value::Kind::kLiteral, dtype, 0, number, std::string(), integer});
    tokens_.push_back(token);
    used_.push_back(true);
    return static_cast<ValueId>(parts_.values.size() - 1);
  }

  void Result(const Declaration& declaration) {
    const auto known = ids_.find(declaration.name.text);
    if (known == ids_.end()) {
      FailAt(declaration.name, "found the result ", Describe(declaration.name),
        ", which is never assigned, expected a statement that assigns it");
    }
    for (const ValueId other : parts_.results) {
      if (other == known->second) {
        FailAt(declaration.name, "found the result ", Describe(declaration.name), " twice, expected it once");
      }
    }
    const DType dtype = parts_.values[known->second].dtype;
    if (dtype != declaration.dtype) {
      FailAt(declaration.name, "found the result ", Describe(declaration.name), " declared ", NameOf(declaration.dtype),
        ", expected ", NameOf(dtype), ", the dtype of its value");
    }
    used_[known->second] = true;
    parts_.results.push_back(known->second);
  }

  // name "=" operator [ "<" attributes ">" ] "(" operands ")"
  void StatementLine() {
    if (parts_.statements.size() == kMaxStatements) {
      FailAt(token_, "found more than ", kMaxStatements, " statements, expected at most ", kMaxStatements);
    }
    const Token name = Name("a statement, or '}'");
    Symbol("=");
    const Token op_token = token_;
    const Row& row = Operator();
    Statement statement{row.op, 0, {}, {}, {}};
    DType target = DType::kFloat;
    Attributes(row, op_token, &statement, &target);
    const std::vector<Operand> operands = Operands(row);
    const DType result = Types(row, op_token, operands, target, &statement);
    statement.result = Define(name, Value::Kind::kResult, result, uint32_t(parts_.statements.size()));
    parts_.statements.push_back(std::move(statement));
  }

  const Row& Operator() {
    if (token_.type != Token::Type::kName) Expected("an operator");
    for (const Row& row : kOperators) {
      if (token_.text != row.name) continue;
      if (IsCore(row.op)) {
        for (const Statement& statement : parts_.statements) {
          if (IsCore(statement.op) && (statement.op != Op::kSumTo || row.op != Op::kSumTo)) {
            FailAt(token_, "found ", Describe(token_), " after ", NameOf(statement.op),
              ", expected at most one core operator");
          }
        }
      }
      Advance();
      return row;
    }
    FailAt(token_, "found the operator ", Describe(token_), ", expected one of docs/programs.md's table");
  }

  std::vector<Operand> Operands(const Row& row) {
    std::vector<Operand> operands;
    Symbol("(");
    for (;;) {
      if (operands.size() == row.arity) {
        FailAt(token_, "found more than ", row.arity, " operands, expected ", row.arity, " for ", row.name);
      }
      if (IsNumber()) {
        operands.push_back({token_, true, 0});
        operands.back().token.number = NumberValue();
      } else if (token_.type == Token::Type::kName) {
        const auto known = ids_.find(token_.text);
        if (known == ids_.end()) {
          FailAt(
            token_, "found ", Describe(token_), ", expected a parameter, the name of an earlier statement or a number");
        }
        used_[known->second] = true;
        operands.push_back({token_, false, known->second});
      } else {
        Expected("an operand: a name or a number");
      }
      Advance();
      if (!IsSymbol(",")) break;
      Advance();
    }
    if (operands.size() != row.arity && IsSymbol(")")) {
      FailAt(token_, "found ", operands.size(), operands.size() == 1 ? " operand" : " operands", ", expected ",
        row.arity, " for ", row.name);
    }
    if (!IsSymbol(")")) Expected("',' or ')'");
    Advance();
    return operands;
  }

  // Checks the operands' dtypes, makes the literals, returns the result's dtype.
  DType Types(
    const Row& row, const Token& op_token, const std::vector<Operand>& operands, DType target, Statement* statement) {
    size_t first = 0;  // of the operands that share one dtype
    if (row.op == Op::kWhere) {
      const Operand& condition = operands[0];
      if (condition.is_number || parts_.values[condition.id].dtype != DType::kBool) {
        FailAt(condition.token, "found ", DescribeOperand(condition), ", expected a bool value for Where's condition");
      }
      statement->operands.push_back(condition.id);
      first = 1;
    }
    const Operand* giver = nullptr;  // the first operand that gives the dtype
    for (size_t i = first; i < operands.size() && giver == nullptr; ++i) {
      if (!operands[i].is_number) giver = &operands[i];
    }
    if (giver == nullptr) {
      FailAt(op_token, "found ", row.name, " of numbers alone, expected a named operand that gives the dtype");
    }
    const DType dtype = parts_.values[giver->id].dtype;
    if (!Fits(row.takes, dtype)) {
      FailAt(giver->token, "found ", DescribeOperand(*giver), ", expected ", TextOf(row.takes), " for ", row.name);
    }
    if (row.op == Op::kMod && IsFloating(dtype) && statement->attributes[0] == 0) {
      FailAt(op_token, "found Mod of ", DescribeOperand(*giver), ", expected Mod<fmod=1> for a floating dtype");
    }
    for (size_t i = first; i < operands.size(); ++i) {
      const Operand& operand = operands[i];
      if (operand.is_number) {
        statement->operands.push_back(Literal(operand.token, operand.token.number, dtype));
        continue;
      }
      if (parts_.values[operand.id].dtype != dtype) {
        FailAt(operand.token, "found ", DescribeOperand(operand), ", expected ", NameOf(dtype), " as ",
          Quoted(giver->token.text), " is");
      }
      statement->operands.push_back(operand.id);
    }
    return row.gives == Gives::kTarget ? target : row.gives == Gives::kBool ? DType::kBool : dtype;
  }

  std::string DescribeOperand(const Operand& operand) const {
    if (operand.is_number) return "the number " + Quoted(operand.token.text);
    return Quoted(operand.token.text) + " of " + NameOf(parts_.values[operand.id].dtype);
  }

  Parts parts_;
  std::vector<Token> tokens_;  // by ValueId: where it was defined
  std::vector<bool> used_;  // by ValueId
  std::unordered_map<std::string_view, ValueId> ids_;
};

// ---- Numbers as text

// The shortest text that parses to the same number.
template <typename T>
std::string Shortest(T number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number < 0 ? "-inf" : "inf";
  char text[64];
  const std::to_chars_result end = std::to_chars(text, text + sizeof(text), number);
  return std::string(text, end.ptr);
}

// A CUDA literal of exactly `number`'s bits.
template <typename T>
std::string CudaNumber(T number) {
  constexpr bool kIsFloat = std::is_same_v<T, float>;
  if (std::isnan(number)) return kIsFloat ? "__int_as_float(0x7fc00000)" : "__longlong_as_double(0x7ff8000000000000LL)";
  if (std::isinf(number)) {
    const std::string magnitude =
      kIsFloat ? "__int_as_float(0x7f800000)" : "__longlong_as_double(0x7ff0000000000000LL)";
    return (number < 0 ? "-" : "") + magnitude;
  }
  char text[64];
  const double magnitude = double(std::fabs(number));
  const std::to_chars_result end = std::to_chars(text, text + sizeof(text), magnitude, std::chars_format::hex);
  return std::string(std::signbit(number) ? "-0x" : "0x") + std::string(text, end.ptr) + (kIsFloat ? "f" : "");
}

std::string CudaNumber(double number, DType dtype) {
  if (dtype == DType::kDouble) return CudaNumber<double>(number);
  return CudaNumber<float>(float(RoundTo(dtype, number)));
}

// A CUDA expression of the integer type itself, so that templates deduce it. The least int and long long have no
// literal: a minus sign applies to a literal that is already too large.
std::string CudaInteger(uint64_t integer, DType dtype) {
  const DTypeRow& row = RowOf(dtype);
  if (!IsSigned(dtype)) return std::string("(") + row.compute + ")" + std::to_string(integer) + "ull";
  const auto number = int64_t(integer);
  if (number == INT64_MIN) return "(-9223372036854775807ll - 1)";
  return std::string("(") + row.compute + ")" + std::to_string(number) + "ll";
}

std::string CudaLiteral(const Value& value) {
  if (IsInteger(value.dtype)) return CudaInteger(value.integer, value.dtype);
  if (value.dtype == DType::kBool) return value.literal != 0 ? "true" : "false";
  return CudaNumber(value.literal, value.dtype);
}

std::string LiteralText(const Value& value) {
  if (!IsInteger(value.dtype)) return Shortest(value.literal);
  return IsSigned(value.dtype) ? std::to_string(int64_t(value.integer)) : std::to_string(value.integer);
}

}  // namespace

size_t SizeOf(DType dtype) { return RowOf(dtype).size; }
const char* NameOf(DType dtype) { return RowOf(dtype).name; }
const char* ComputeTypeOf(DType dtype) { return RowOf(dtype).compute; }
bool IsFloating(DType dtype) { return dtype < DType::kBool; }
bool IsInteger(DType dtype) { return dtype > DType::kBool; }
bool IsSigned(DType dtype) { return RowOf(dtype).least < 0; }
const char* NameOf(Op op) { return RowOf(op).name; }
bool IsCore(Op op) { return RowOf(op).is_core; }

double RoundTo(DType dtype, double number) {
  switch (dtype) {
    case DType::kFloat16: return double(HalfToFloat(FloatToHalf(RoundToOdd(number))));
    case DType::kBFloat16: return double(BFloat16ToFloat(FloatToBFloat16(RoundToOdd(number))));
    case DType::kFloat: return double(float(number));
    default: return number;
  }
}

Program Program::Parse(std::string_view text) {
  if (text.size() > kMaxCharacters) {
    Fail("program, line 1, column 1: found ", text.size(), " characters, expected at most ", kMaxCharacters);
  }
  Parts parts = Parser(text).Run();
  Program program;
  program.values_ = std::move(parts.values);
  program.parameters_ = std::move(parts.parameters);
  program.results_ = std::move(parts.results);
  program.statements_ = std::move(parts.statements);
  return program;
}

std::vector<uint32_t> Program::Closure(
  const std::vector<ValueId>& targets, const std::vector<ValueId>& available) const {
  std::vector<bool> needed(values_.size()), at_hand(values_.size());
  for (const ValueId id : available) at_hand.at(id) = true;
  for (const ValueId id : targets) needed.at(id) = true;
  std::vector<uint32_t> backwards;
  for (size_t i = statements_.size(); i-- > 0;) {
    const Statement& statement = statements_[i];
    if (!needed[statement.result] || at_hand[statement.result]) continue;
    backwards.push_back(uint32_t(i));
    for (const ValueId operand : statement.operands) needed[operand] = true;
  }
  return {backwards.rbegin(), backwards.rend()};
}

Program Program::Without(uint32_t statement, ValueId stand_in) const {
  Program program = *this;
  const ValueId gone = statements_.at(statement).result;
  program.statements_.erase(program.statements_.begin() + statement);
  for (uint32_t index = 0; index < program.statements_.size(); ++index) {
    Statement& each = program.statements_[index];
    std::replace(each.operands.begin(), each.operands.end(), gone, stand_in);
    program.values_[each.result].index = index;
  }
  std::replace(program.results_.begin(), program.results_.end(), gone, stand_in);
  return program;
}

std::string Program::ToString() const {
  const auto declarations = [this](const std::vector<ValueId>& ids) {
    std::string text = "(";
    for (const ValueId id : ids) {
      if (text.size() > 1) text += ", ";
      text += std::string(NameOf(values_[id].dtype)) + " " + values_[id].name;
    }
    return text + ")";
  };
  std::string text = declarations(parameters_) + " => " + declarations(results_) + " {\n";
  for (const Statement& statement : statements_) {
    const Row& row = RowOf(statement.op);
    text += "  " + values_[statement.result].name + " = " + row.name;
    std::string attributes;
    for (size_t i = 0; i < row.attributes.size(); ++i) {
      const Attribute& attribute = row.attributes[i];
      const double value = statement.attributes[i];
      if (attribute.kind == Kind::kNone) continue;
      const bool is_preset =
        value == AttributeValue(attribute.preset) && std::signbit(value) == std::signbit(attribute.preset);
      if (attribute.kind == Kind::kAxes ? statement.axes.empty() : !attribute.required && is_preset) continue;
      attributes += std::string(attributes.empty() ? "<" : ", ") + attribute.name + "=";
      switch (attribute.kind) {
        case Kind::kWord: attributes += std::string("\"") + attribute.words[size_t(value)] + "\""; break;
        case Kind::kAxes:
          for (size_t axis = 0; axis < statement.axes.size(); ++axis) {
            attributes += (axis == 0 ? "\"" : " ") + std::to_string(statement.axes[axis]);
          }
          attributes += "\"";
          break;
        case Kind::kDType: attributes += NameOf(values_[statement.result].dtype); break;
        case Kind::kNumber:
        case Kind::kAxis:
        case Kind::kCount:
        case Kind::kFlag:
        case Kind::kNone: attributes += Shortest(float(value)); break;
      }
    }
    if (!attributes.empty()) text += attributes + ">";
    text += "(";
    for (size_t i = 0; i < statement.operands.size(); ++i) {
      const Value& operand = values_[statement.operands[i]];
      text += i == 0 ? "" : ", ";
      text += operand.kind == Value::Kind::kLiteral ? LiteralText(operand) : operand.name;
    }
    text += ")\n";
  }
  return text + "}";
}

bool IsIdentity(const Program& program) {
  return program.results().size() == 1 && program.results()[0] == program.parameters()[0];
}

// Whether pointwise.cuh has cheaper forms of it that are precise enough for 16 bits, and for values of TF32 products.
static bool HasHalfForm(Op op) {
  return op == Op::kSigmoid || op == Op::kSwish || op == Op::kQuickGelu || op == Op::kGelu;
}

// What makes a value, if that is one of the statements.
static const Statement* Among(const Program& program, const std::vector<uint32_t>& statements, ValueId id) {
  const Value& value = program.value(id);
  if (value.kind != Value::Kind::kResult) return nullptr;
  const bool found = std::find(statements.begin(), statements.end(), value.index) != statements.end();
  return found ? &program.statements()[value.index] : nullptr;
}

// Of the product or quotient of a value and a literal: the value, and what it is multiplied by.
static std::optional<std::pair<ValueId, double>> AsScaled(const Program& program, const Statement& statement) {
  if (statement.op != Op::kMul && statement.op != Op::kDiv) return std::nullopt;
  const bool divides = statement.op == Op::kDiv;
  const size_t at = !divides && program.value(statement.operands[0]).kind == Value::Kind::kLiteral ? 0 : 1;
  const Value& literal = program.value(statement.operands[at]);
  const ValueId scaled = statement.operands[1 - at];
  if (literal.kind != Value::Kind::kLiteral || program.value(scaled).kind == Value::Kind::kLiteral) return std::nullopt;
  const double number = RoundTo(literal.dtype, literal.literal);
  return std::pair(scaled, divides ? 1 / number : number);
}

std::optional<std::pair<ValueId, double>> AsOnePlusErf(
  const Program& program, const std::vector<uint32_t>& statements, const Statement& statement) {
  if (statement.op != Op::kAdd) return std::nullopt;
  for (const size_t i : {0, 1}) {
    const Value& one = program.value(statement.operands[1 - i]);
    const Statement* erf = Among(program, statements, statement.operands[i]);
    if (one.kind != Value::Kind::kLiteral || RoundTo(one.dtype, one.literal) != 1) continue;
    if (erf == nullptr || erf->op != Op::kErf) continue;
    ValueId x = erf->operands[0];
    if (program.value(x).kind == Value::Kind::kLiteral) continue;
    double scale = 1.41421356237309504880;
    const Statement* inner = Among(program, statements, x);
    const auto scaled = inner != nullptr ? AsScaled(program, *inner) : std::nullopt;
    if (scaled && std::isnormal(float(scale * scaled->second))) {
      x = scaled->first;
      scale *= scaled->second;
    }
    return std::pair(x, scale);
  }
  return std::nullopt;
}

std::string EmitCuda(
  const Program& program, const std::vector<uint32_t>& statements, const std::string& indent, bool is_of_tf32) {
  std::string text;
  for (const uint32_t index : statements) {
    const Statement& statement = program.statements().at(index);
    const Row& row = RowOf(statement.op);
    if (IsCore(statement.op)) Fail("program: ", row.name, " is a core operator, EmitCuda writes pointwise ones only");
    const DType result = program.value(statement.result).dtype;
    const bool is_half = result == DType::kFloat16 || (is_of_tf32 && result == DType::kFloat);
    const std::string half = is_half ? "16" : result == DType::kBFloat16 ? "B16" : "";  // the form's name ends so
    text += indent + "const " + RowOf(result).compute + " v" + std::to_string(statement.result) + " = ";
    // What stands between is emitted all the same; the compiler drops it where nothing else reads it.
    if (const auto gate = !half.empty() ? AsOnePlusErf(program, statements, statement) : std::nullopt) {
      text += "op_OnePlusErf" + half + "(v" + std::to_string(gate->first) + ", " +
        CudaNumber(gate->second, DType::kFloat) + ");\n";
      continue;
    }
    text += statement.op == Op::kCast ? RowOf(result).cast : std::string("op_") + row.name;
    if (HasHalfForm(statement.op)) text += half;
    for (size_t i = 0; i < statement.operands.size(); ++i) {
      const Value& operand = program.value(statement.operands[i]);
      text += i == 0 ? "(" : ", ";
      text +=
        operand.kind == Value::Kind::kLiteral ? CudaLiteral(operand) : "v" + std::to_string(statement.operands[i]);
    }
    for (size_t i = 0; i < row.attributes.size(); ++i) {
      const Kind kind = row.attributes[i].kind;
      if (kind == Kind::kWord || kind == Kind::kFlag) text += statement.attributes[i] != 0 ? ", true" : ", false";
      // Not rounded to a 16-bit dtype: an attribute is no value of it.
      const DType wide = result == DType::kDouble ? DType::kDouble : DType::kFloat;
      if (kind == Kind::kNumber) text += ", " + CudaNumber(statement.attributes[i], wide);
    }
    text += ");\n";
  }
  return text;
}

void CheckIsPointwise(const Program& program) {
  for (const Statement& statement : program.statements())
    if (IsCore(statement.op))
      Fail("the program's '", program.value(statement.result).name, "' is a ", NameOf(statement.op),
        ", which is not pointwise: another fused operator has it");
}

}  // namespace ortplugin
