// A product as a contraction: its rows are pixels, in order, and every operand's element meets the element of the
// result that it broadcasts to, whatever axes it repeats.

#include "ortplugin/ops/matmul/matmul.h"
#include "tests/native/check.h"

using namespace ortplugin;

namespace {

// The offset of the element of a tensor that meets element `index` of `full`.
int64_t OffsetOf(int64_t index, const Shape& shape, const Shape& full) {
  int64_t offset = 0, stride = 1;
  for (size_t i = full.size(); i-- > 0; index /= full[i]) {
    if (i + shape.size() < full.size()) continue;
    const int64_t size = shape[i + shape.size() - full.size()];
    if (size > 1) offset += index % full[i] * stride;
    stride *= size;
  }
  return offset;
}

MatMulNode NodeOf(size_t operands, bool trans_b) {
  std::string parameters = "float c", text, value = "c";
  for (size_t i = 0; i < operands; ++i) {
    const std::string number = std::to_string(i);
    parameters += ", float p" + number;
    text += "v" + number + " = Add(" + value + ", p" + number + ") ";
    value = "v" + number;
  }
  MatMulNode node;
  node.trans_b = trans_b;
  node.program =
    std::make_shared<const Program>(Program::Parse("(" + parameters + ") => (float " + value + ") { " + text + "}"));
  node.constant_operands.assign(operands, false);
  return node;
}

// Returns whether the program stands apart.
bool TestView(const Shape& full, const Shapes& operands, bool trans_b) {
  Shape a = full;
  a.back() = 5;
  const Shape b = trans_b ? Shape{full.back(), 5} : Shape{5, full.back()};
  Shapes shapes{a, b};
  shapes.insert(shapes.end(), operands.begin(), operands.end());
  const MatMulProblem problem = NodeOf(operands.size(), trans_b).Fit(shapes);
  const Contraction& contraction = problem.contraction;
  const std::string where = ToString(full) + ", " + ToString(operands[0]) + ", " + ToString(operands[1]);
  CHECK_WITH(problem.full == full, where);
  CHECK_WITH(ElementCount(contraction.x()) == ElementCount(a) && contraction.x().back() == 5, where);
  CHECK_WITH(ElementCount(contraction.result()) == ElementCount(full), where);
  CHECK_WITH(contraction.w() == (Shape{b[0], 1, 1, b[1]}), where);
  CHECK_WITH(contraction.transposed != trans_b, where);
  if (problem.is_apart) {
    CHECK_WITH(contraction.operands.empty() && IsIdentity(*contraction.program), where);
    return true;
  }
  bool good = contraction.operands.size() == operands.size();
  for (size_t i = 0; good && i < operands.size(); ++i)
    for (int64_t index = 0; index < ElementCount(full); ++index)
      good =
        good && OffsetOf(index, contraction.operands[i], contraction.result()) == OffsetOf(index, operands[i], full);
  CHECK_WITH(good, where);
  return false;
}

// `shape` with the axes of `which` repeated; those that are then 1 at its front may be left out.
Shape Repeated(Shape shape, size_t which, bool shorter) {
  for (size_t axis = 0; axis < shape.size(); ++axis)
    if (which >> axis & 1) shape[axis] = 1;
  while (shorter && !shape.empty() && shape[0] == 1) shape.erase(shape.begin());
  return shape;
}

void TestViews() {
  int apart = 0;
  for (const Shape& full : {Shape{3}, {2, 3}, {2, 3, 4}, {2, 1, 3}, {2, 3, 4, 2}, {1, 2, 1, 3}, {2, 3, 2, 3, 2},
         {2, 1, 3, 2, 2}, {2, 3, 2, 3, 2, 2}}) {
    const size_t masks = size_t{1} << full.size();
    for (size_t one = 0; one < masks; ++one)
      for (size_t two = 0; two < masks; two += 1 + full.size() / 5)
        apart += TestView(full, {Repeated(full, one, two % 2 == 0), Repeated(full, two, one % 2 == 0)}, two % 3 == 0);
  }
  CHECK(apart > 0);
}

void TestRowsOfTheView() {
  const auto pixels = [](const Shape& a, const Shape& operand) {
    const Contraction made = NodeOf(1, true).Fit({a, {8, a.back()}, operand}).contraction;
    return Shape{made.batch, made.rows().size, made.columns().size};
  };
  CHECK(pixels({16}, {8}) == (Shape{1, 1, 1}));
  CHECK(pixels({4, 16, 16}, {8}) == (Shape{64, 1, 1}));  // few rows are images of one pixel
  CHECK(pixels({8, 128, 16}, {8}) == (Shape{1, 1, 1024}));  // many are a row of pixels
  CHECK(pixels({8, 128, 16}, {8, 128, 8}) == (Shape{1, 1, 1024}));
  CHECK(pixels({8, 128, 16}, {128, 8}) == (Shape{8, 1, 128}));
  CHECK(pixels({8, 4, 128, 16}, {8, 1, 128, 1}) == (Shape{8, 4, 128}));
}

// Its weights may be constants where those of the product are not, and the other way round.
void TestGate() {
  for (const bool is_constant : {false, true}) {
    MatMulNode node = NodeOf(2, true);
    node.constant_operands = {is_constant, false};
    node.constant_weights = !is_constant;
    const Contraction product = node.Fit({{2, 16}, {8, 16}, {2, 8}, {8}}).contraction, gate = node.GateOf(product);
    CHECK(product.constant_weights != is_constant && gate.constant_weights == is_constant && gate.operands.empty());
  }
}

// Others tests/ort/test_matmul.py has.
void TestErrors() {
  const MatMulNode node = NodeOf(1, false);
  const auto fails = [&](const Shapes& shapes, const char* words) {
    CHECK_WITH(test::Contains(test::ErrorOf([&] { node.Fit(shapes); }), words), words);
  };
  fails({{2, 5}, {5, 8}, {3, 8}}, "input 2 ('p0')");
  fails({{int64_t{1} << 20, int64_t{1} << 12, 5}, {5, 8}, {8}}, "rows or columns");
}

}  // namespace

int main() {
  TestViews();
  TestRowsOfTheView();
  TestGate();
  TestErrors();
  return test::Summary();
}
