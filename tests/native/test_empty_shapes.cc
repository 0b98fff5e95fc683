// What is planned for tensors without elements, without a GPU: whoever divides by a size or a count of them dies by a
// signal here. Planned, and launched, is what has elements to write all the same: sums of nothing, and data that
// nothing is scattered to.

#include <functional>

#include "ortplugin/ops/pointwise/pointwise.h"
#include "ortplugin/ops/pool/pool.h"
#include "ortplugin/ops/scatter/scatter_cuda.h"
#include "ortplugin/ops/sum_to/sum_to.h"
#include "tests/native/check.h"
#include "tests/native/gpus.h"

using namespace ortplugin;

namespace {

const DeviceFacts& kGpu = test::H200();

// Every shape of up to `most` axes of these sizes that has no elements.
Shapes EmptyShapes(size_t most) {
  Shapes shapes, last = {{}};
  for (size_t rank = 1; rank <= most; ++rank) {
    Shapes longer;
    for (const Shape& shape : last)
      for (const int64_t size : {0, 1, 2, 8}) {
        longer.push_back(shape);
        longer.back().push_back(size);
      }
    last = longer;
    for (const Shape& shape : last)
      if (ElementCount(shape) == 0) shapes.push_back(shape);
  }
  return shapes;
}

// The shapes that broadcast to this one with some of its axes of size 1: by the bits of `which`.
Shape Repeated(const Shape& shape, size_t which) {
  Shape repeated = shape;
  for (size_t axis = 0; axis < shape.size(); ++axis)
    if (which >> axis & 1) repeated[axis] = 1;
  return repeated;
}

void TestIndexMaps() {
  for (const Shape& full : EmptyShapes(4))
    for (size_t which = 0; which < size_t{1} << full.size(); ++which) {
      const Axes axes = JoinAxes(full, {full, Repeated(full, which)});
      for (const bool wide : {false, true}) {
        const IndexMap map("i", axes, 1, {0, 1}, wide);
        CHECK_WITH(map.Numbers().empty() == map.EmitMembers().empty(), ToString(full));
      }
    }
}

// `axes`: bits of those that are summed over.
void TestSum(const Shape& full, size_t which, size_t axes) {
  std::string words;
  for (size_t axis = 0; axis < full.size(); ++axis)
    if (axes >> axis & 1) words += (words.empty() ? "" : " ") + std::to_string(axis);
  const SumProgram sums = SumProgram::Parse(
    "(float16 x, float16 r) => (float16 y, float16 s) { s = Mul(x, r) y = SumTo<axes=\"" + words + "\">(s) }");
  const Shapes inputs = {full, Repeated(full, which)};
  const SumShape shape = FitSums(sums, inputs);
  const std::string name = ToString(full) + " with " + ToString(inputs[1]) + " over " + words;
  for (const SumGroup& group : GroupSums(sums, shape, inputs)) {
    CHECK_WITH((group.kept_elements > 0) == (ElementCount(shape.results[0]) > 0), name);
    if (group.kept_elements == 0) continue;  // as PlanSums
    CHECK_WITH(group.kept_elements == ElementCount(shape.results[0]) && group.summed_elements == 0, name);
    for (const bool aligned : {false, true}) {
      const SumConfig config = ConfigureSums(sums, group, kGpu, aligned);
      const SumPieces pieces = CutSums(group, config, kGpu.multiprocessors);
      CHECK_WITH(config.kept_threads > 0 && config.summed_threads > 0 && !SumSource(sums, group, config).empty(), name);
      CHECK_WITH(pieces.chunks == 1 &&
          pieces.kept_blocks * config.kept_threads * (config.along ? 1 : config.vector) >= group.kept_elements,
        name);
      CHECK_WITH(SumNumbers(group, config, pieces).size() >= 7, name);
    }
  }
}

void TestSums() {
  for (const Shape& full : EmptyShapes(4))
    for (size_t axes = 1; axes < size_t{1} << full.size(); ++axes)
      for (size_t which = 0; which < size_t{1} << full.size(); ++which) TestSum(full, which, axes);
}

void TestPointwise() {
  const Program program = ParsePointwise("(float16 x, float r) => (float y) { c = Cast<to=float>(x) y = Add(c, r) }");
  for (const Shape& full : EmptyShapes(3))
    for (size_t which = 0; which < size_t{1} << full.size(); ++which) {
      const PointwiseShape shape = FitPointwise(program, {full, Repeated(full, which)});
      const PointwiseConfig config = ConfigurePointwise(program, shape, kGpu, kMostVector);
      CHECK_WITH(
        config.vector > 0 && config.tiles > 0 && !PointwiseSource(program, shape, config).empty(), ToString(full));
    }
}

// Resized images, and pools over windows, have elements only where their images have: nothing is planned for any other.
// No images at all may be pooled, whatever their size. A global pool has an element for each channel.
void TestImages() {
  PoolAttributes global, windows;
  global.is_global = true;
  windows.kernel = windows.strides = {2, 2};
  windows.dilations = {1, 1};
  windows.pads = {1, 1, 1, 1};
  ResizeAttributes resize;
  resize.sizes = {3, 5};
  for (const bool channels_last : {false, true}) {
    global.channels_last = windows.channels_last = resize.channels_last = channels_last;
    const std::function<Shape(const Shape&)> fits[] = {
      [&](const Shape& input) { return FitPool(global, input).output; },
      [&](const Shape& input) { return FitPool(windows, input).output; },
      [&](const Shape& input) { return FitResize(resize, input).output; },
    };
    for (const Shape& input : EmptyShapes(4))
      for (const auto& fit : fits) {
        if (input.size() != 4) continue;
        const size_t first = channels_last ? 1 : 2;
        const bool is_global = &fit == &fits[0];
        const bool is_image =
          is_global || (input[first] > 0 && input[first + 1] > 0) || (input[0] == 0 && &fit != &fits[2]);
        const int64_t elements = is_global ? input[0] * input[channels_last ? 3 : 1] : 0;
        try {
          CHECK_WITH(ElementCount(fit(input)) == elements && is_image, ToString(input));
        } catch (const Error&) {
          CHECK_WITH(!is_image, ToString(input));
        }
      }
  }
}

// No element of an image without pixels is read: one window has them all, and an average is 0 times their sum.
void TestImagesWithoutPixels() {
  PoolAttributes global;
  global.is_global = true;
  for (const bool channels_last : {false, true})
    for (const Shape& spatial : {Shape{0}, Shape{3, 0}, Shape{0, 4}, Shape{0, 0}, Shape{2, 0, 3}}) {
      global.channels_last = channels_last;
      Shape input = {2, 5};
      input.insert(input.begin() + (channels_last ? 1 : 2), spatial.begin(), spatial.end());
      const PoolShape shape = FitCudaPool(global, input);
      const PoolConfig config = ConfigurePool(shape, DType::kFloat, kGpu, 16);
      CHECK_WITH(shape.is_global && config.blocks > 0 && config.group > 0, ToString(input));
      const std::vector<uint64_t> numbers = PoolArguments(shape, config);
      CHECK_WITH(numbers[3] == 0 && numbers.back() == 0, ToString(input));  // pixels, their share
    }
}

void TestScatter(const ScatterAttributes& attributes, const Shapes& inputs) {
  const ScatterShape shape = FitScatter(attributes, inputs);
  CHECK(shape.is_empty());
  for (const bool in_place : {false, true}) {
    const ScatterChoice choice = ChooseScatter(attributes, ort::kFloat, shape, in_place);
    const ScatterVariant variant = MakeScatterVariant(attributes, ort::kFloat, shape, choice, false, {0, 0});
    CHECK_WITH(choice.form == ScatterForm::kCopy && variant.vector > 0, ToString(inputs[0]));
    CHECK(!ScatterSource(attributes, ort::kFloat, variant).empty());
  }
}

void TestScatters() {
  ScatterAttributes nd{}, elements{}, slice{};
  nd.kind = ScatterKind::kND;
  elements.kind = ScatterKind::kElements;
  slice.kind = ScatterKind::kSlice;
  slice.axes = {0};
  slice.steps = {1};
  for (const int64_t rows : {0, 4})
    for (const int64_t width : {0, 8})
      for (const int64_t units : {0, 2}) {
        if (rows * width * units > 0) continue;
        if (rows > 0 || units == 0) TestScatter(nd, {{rows, width}, {units, 1}, {units, width}});
        if (units <= rows) TestScatter(elements, {{rows, width}, {units, width}, {units, width}});
        if (units <= rows) TestScatter(slice, {{rows, width}, {units, width}, {1}});
      }
}

}  // namespace

int main() {
  TestIndexMaps();
  TestSums();
  TestPointwise();
  TestImages();
  TestImagesWithoutPixels();
  TestScatters();
  return test::Summary();
}
