// How tensors lie against joined axes: the axes themselves, the division by a product and a shift, and the offsets that
// kernels compute, whose text is evaluated here as the GPU would.

#include "ortplugin/runtime/program/operands.h"

#include <map>
#include <random>
#include <regex>
#include <sstream>

#include "tests/native/check.h"

using namespace ortplugin;

namespace {

bool SameAxes(const Axes& axes, const Shape& sizes, const Shapes& strides) {
  return axes.sizes == sizes && axes.strides == strides;
}

void TestAxes() {
  CHECK(SameAxes(JoinAxes({4, 7, 32}, {{4, 7, 32}, {4, 7, 32}}), {896}, {{1}, {1}}));
  CHECK(SameAxes(JoinAxes({4, 7, 32}, {{4, 7, 32}, {}}), {896}, {{1}, {0}}));
  CHECK(SameAxes(JoinAxes({4, 7, 32}, {{4, 7, 32}, {32}}), {28, 32}, {{32, 1}, {0, 1}}));
  CHECK(SameAxes(JoinAxes({4, 7, 32}, {{4, 7, 32}, {7, 32}}), {4, 224}, {{224, 1}, {0, 1}}));
  CHECK(SameAxes(JoinAxes({4, 7, 32}, {{4, 7, 32}, {4, 1, 1}}), {4, 224}, {{224, 1}, {1, 0}}));
  CHECK(SameAxes(JoinAxes({4, 7, 32}, {{4, 7, 32}, {4, 1, 32}}), {4, 7, 32}, {{224, 32, 1}, {32, 0, 1}}));
  CHECK(SameAxes(JoinAxes({4, 7}, {{4, 1}, {7}}), {4, 7}, {{1, 0}, {0, 1}}));
  CHECK(SameAxes(JoinAxes({2, 1, 3, 1, 5}, {{2, 1, 3, 1, 5}, {3, 1, 1}}), {2, 3, 5}, {{15, 5, 1}, {0, 1, 0}}));
  // One element is one of the full shape.
  CHECK(SameAxes(JoinAxes({}, {{}, {}}), {1}, {{1}, {1}}));
  CHECK(SameAxes(JoinAxes({1, 1}, {{1}, {1, 1}}), {1}, {{1}, {1}}));
  CHECK(JoinAxes({4, 7}, {{4, 7}, {7}}).is_linear(0) && !JoinAxes({4, 7}, {{4, 7}, {7}}).is_linear(1));
  CHECK(JoinAxes({4, 7}, {{4, 7}, {1}}).is_scalar(1) && !JoinAxes({4, 7}, {{4, 7}, {7}}).is_scalar(1));
  const std::string message = test::ErrorOf([] { JoinAxes({4, 7}, {{4, 7}, {4}}); });
  CHECK(test::Contains(message, "[4] does not broadcast to [4, 7]"));
}

// common.cuh's quotient().
uint64_t Quotient(uint64_t index, uint64_t multiplier, uint64_t shift, bool wide) {
  const int bits = wide ? 64 : 32;
  const auto high = uint64_t(static_cast<unsigned __int128>(index) * multiplier >> bits);
  return (high + index) >> shift;
}

void TestDivision() {
  std::mt19937_64 random(1);
  for (const bool wide : {false, true}) {
    const int bits = wide ? 63 : 31;
    const uint64_t end = uint64_t{1} << bits;
    std::vector<uint64_t> divisors = {1, 2, 3, 5, 7, 10, 641, 1023, 1024, 1025, end - 1, end / 2, end / 2 + 1, end / 3};
    for (int i = 0; i < 2000; ++i) divisors.push_back(1 + (random() & (end - 1)) / (uint64_t{1} << random() % bits));
    for (const uint64_t divisor : divisors) {
      if (divisor >= end) continue;
      // The second axis is what the index is divided by.
      const Axes axes{{2, int64_t(divisor)}, {{1, 0}}};
      const std::vector<uint64_t> numbers = IndexMap("i", axes, 1, {0}, wide).Numbers();
      CHECK(numbers.size() == 4);  // a divider, a term
      const auto check = [&](uint64_t index) {
        CHECK_WITH(Quotient(index, numbers[0], numbers[1], wide) == index / divisor,
          std::to_string(index) + " / " + std::to_string(divisor));
      };
      for (const uint64_t index : {uint64_t{0}, uint64_t{1}, divisor - 1, divisor, end - 1}) check(index);
      for (int i = 0; i < 20; ++i) {
        const uint64_t index = random() & (end - 1), multiple = index / divisor * divisor;
        check(index);
        check(multiple);
        if (multiple > 0) check(multiple - 1);
      }
    }
  }
}

// Computes the offsets of one index from the text and the numbers that a kernel gets.
class Interpreter {
 public:
  Interpreter(const IndexMap& map, bool wide) : text_(map.EmitOffsets("")), numbers_(map.Numbers()), wide_(wide) {
    std::smatch found;
    const std::string members = map.EmitMembers();
    if (std::regex_search(members, found, std::regex("dividers\\[(\\d+)\\]"))) dividers_ = std::stoul(found[1]);
    size_t terms = 0;
    if (std::regex_search(members, found, std::regex("terms\\[(\\d+)\\]"))) terms = std::stoul(found[1]);
    CHECK(numbers_.size() == 2 * (dividers_ + terms));
  }

  std::map<std::string, uint64_t> Run(uint64_t index) const {
    std::map<std::string, uint64_t> values = {{"i", index}};
    static const std::regex divided("const index_t (\\w+) = quotient\\((\\w+), a\\.i_dividers\\[(\\d+)\\]\\);");
    static const std::regex offset("const unsigned long long (\\w+) = (.*);");
    static const std::regex term(
      "\\(unsigned long long\\)\\((\\w+)(?: - (\\w+) \\* \\(index_t\\)a\\.i_terms\\[(\\d+)\\]\\.period)?\\) \\* "
      "\\(index_t\\)a\\.i_terms\\[(\\d+)\\]\\.stride");
    std::istringstream lines(text_);
    std::string line;
    std::smatch found;
    while (std::getline(lines, line)) {
      if (std::regex_match(line, found, divided)) {
        const size_t at = 2 * std::stoul(found[3]);
        values[found[1]] = Quotient(values.at(found[2]), numbers_[at], numbers_[at + 1], wide_);
      } else if (std::regex_match(line, found, offset)) {
        const std::string name = found[1], sum = found[2];
        uint64_t total = 0;
        for (std::sregex_iterator it(sum.begin(), sum.end(), term), end; it != end; ++it) {
          uint64_t coordinate = values.at((*it)[1]);
          if ((*it)[2].matched) coordinate -= values.at((*it)[2]) * numbers_[2 * (dividers_ + std::stoul((*it)[3]))];
          total += coordinate * numbers_[2 * (dividers_ + std::stoul((*it)[4])) + 1];
        }
        values[name] = total;
      } else {
        CHECK_WITH(false, line);
      }
    }
    return values;
  }

 private:
  std::string text_;
  std::vector<uint64_t> numbers_;
  bool wide_;
  size_t dividers_ = 0;
};

void TestOffsets() {
  std::mt19937 random(2);
  const auto below = [&](size_t n) { return size_t(random() % n); };
  for (int round = 0; round < 300; ++round) {
    Shape full(1 + below(5));
    for (int64_t& size : full) size = std::vector<int64_t>{1, 2, 3, 4, 8, 12}[below(6)];
    Shapes shapes = {full};
    for (int tensor = 0; tensor < 4; ++tensor) {
      Shape shape = full;
      for (int64_t& size : shape)
        if (below(2) == 0) size = 1;
      shape.erase(shape.begin(), shape.begin() + std::ptrdiff_t(below(shape.size() + 1)));
      shapes.push_back(shape);
    }
    const Axes axes = JoinAxes(full, shapes);
    const int64_t unit = axes.sizes.back() % 4 == 0 && below(2) == 0 ? 4 : 1;
    const bool wide = below(2) == 0;
    const std::vector<size_t> tensors = {0, 1, 2, 3, 4};
    const IndexMap map("i", axes, unit, tensors, wide);
    const Interpreter interpreter(map, wide);
    const int64_t count = ElementCount(full);
    for (int64_t index = 0; index < count / unit; index += 1 + int64_t(below(3))) {
      const auto values = interpreter.Run(uint64_t(index));
      for (const size_t tensor : tensors) {
        int64_t wanted = 0, stride = 1, rest = index * unit;
        for (size_t axis = full.size(); axis-- > 0; rest /= full[axis]) {
          const size_t lead = full.size() - shapes[tensor].size();
          if (axis < lead) continue;
          const int64_t size = shapes[tensor][axis - lead];
          wanted += (size == 1 ? 0 : rest % full[axis]) * stride;
          stride *= size;
        }
        CHECK_WITH(values.at(map.OffsetOf(tensor)) == uint64_t(wanted),
          ToString(shapes[tensor]) + " in " + ToString(full) + " at " + std::to_string(index * unit));
      }
    }
  }
}

void TestGuesses() {
  const auto type = [](const Shape& shape) {
    return TensorType{ort::kFloat, true, shape, std::vector<std::string>(shape.size())};
  };
  CHECK(GuessShapes({type({-1, 7}), type({4, -1})}) == Shapes{{4, 7}, {4, 7}});
  CHECK(GuessShapes({type({-1, 7}), type({7})}) == Shapes{{2, 7}, {7}});
  CHECK(!GuessShapes({type({-1, 7}), TensorType{}}));
  CHECK(!GuessShapes({type({3, 7}), type({4, 7})}));
}

}  // namespace

int main() {
  TestAxes();
  TestDivision();
  TestOffsets();
  TestGuesses();
  return test::Summary();
}
