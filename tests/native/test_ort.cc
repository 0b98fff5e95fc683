// What stands between a model and the C interface: sizes, text for messages, and what an older ORT is not told.

#include <cstdlib>
#include <limits>

#include "ortplugin/runtime/host_memory.h"
#include "ortplugin/runtime/ort/ort.h"
#include "ortplugin/runtime/text.h"
#include "tests/native/check.h"

using namespace ortplugin;
using namespace test;

namespace {

// An ORT that only counts the outputs that shape inference sets.
struct FakeOrt {
  void* functions[512] = {};
  const ort::Api* api() const { return reinterpret_cast<const ort::Api*>(functions); }
};
int set_outputs = 0;

template <typename Function>
void* Address(Function* function) {
  return reinterpret_cast<void*>(function);
}

FakeOrt MakeOrt() {
  FakeOrt fake;
  fake.functions[57] = Address(+[](ort::TensorInfo**) -> ort::Status* { return nullptr; });
  fake.functions[58] = Address(+[](ort::TensorInfo*, ort::ElementType) -> ort::Status* { return nullptr; });
  fake.functions[59] = Address(+[](ort::TensorInfo*, const int64_t*, size_t) -> ort::Status* { return nullptr; });
  fake.functions[99] = Address(+[](ort::TensorInfo*) {});
  fake.functions[270] = Address(+[](const ort::ShapeInferContext*, size_t, const ort::TensorInfo*) -> ort::Status* {
    ++set_outputs;
    return nullptr;
  });
  fake.functions[271] = Address(+[](ort::TensorInfo*, const char**, size_t) -> ort::Status* { return nullptr; });
  return fake;
}

void TestOldRuntimes() {
  static FakeOrt unknown = MakeOrt(), old = MakeOrt(), current = MakeOrt();  // never destroyed before their releases
  NoteRelease(old.api(), 27);
  NoteRelease(current.api(), 28);
  TensorType type;
  type.type = ort::kFloat;
  type.has_shape = true;
  type.shape = {2, -1};
  type.symbols = {"", "n"};
  for (const auto& [fake, wanted] : {std::pair{&unknown, 1}, {&old, 1}, {&current, 3}}) {
    set_outputs = 0;
    ShapeContext context(fake->api(), nullptr);
    for (size_t index = 0; index < 3; ++index) context.set_output(index, type);
    CHECK(set_outputs == wanted);
  }
  set_outputs = 0;
  ShapeContext(current.api(), nullptr).set_output(0, TensorType{ort::kFloat, false, {}, {}});
  CHECK(set_outputs == 0);  // ORT would take it for a scalar
  ShapeContext(current.api(), nullptr).set_output(0, TensorType{ort::kFloat, true, {}, {}});
  CHECK(set_outputs == 1);
  type.shape = {int64_t{1} << 30, -1, int64_t{1} << 30};
  type.symbols = {"", "n", ""};
  ShapeContext context(current.api(), nullptr);
  CHECK(Contains(ErrorOf([&] { context.set_output(0, type); }), "1073741824"));
}

// To inference ORT shows a tensor of unknown shape as a scalar whose shape is known.
void TestUnknownShapes() {
  static FakeOrt fake = MakeOrt();
  fake.functions[268] =
    Address(+[](const ort::ShapeInferContext*, size_t, ort::TensorInfo**) -> ort::Status* { return nullptr; });
  fake.functions[60] = Address(+[](const ort::TensorInfo*, ort::ElementType* type) -> ort::Status* {
    *type = ort::kFloat16;
    return nullptr;
  });
  fake.functions[61] = Address(+[](const ort::TensorInfo*, size_t* rank) -> ort::Status* {
    *rank = 0;
    return nullptr;
  });
  fake.functions[390] = Address(+[](const ort::TensorInfo*) { return true; });
  NoteRelease(fake.api(), 28);
  const TensorType type = ShapeContext(fake.api(), nullptr).input(0);
  CHECK(type.type == ort::kFloat16 && !type.has_shape && type.shape.empty());
}

void TestSizes() {
  CHECK(ElementCount({}) == 1);
  CHECK(ElementCount({3, 0, 5}) == 0);
  CHECK(ElementCount({int64_t{1} << 48}) == int64_t{1} << 48);
  for (const Shape& shape : {Shape{-1}, Shape{int64_t{1} << 49}, Shape{int64_t{1} << 40, int64_t{1} << 40},
         Shape{0, int64_t{1} << 40, int64_t{1} << 40}, Shape{int64_t{1} << 40, int64_t{1} << 40, 0},
         Shape{std::numeric_limits<int64_t>::max(), 2}})
    CHECK_WITH(Contains(ErrorOf([&] { ElementCount(shape); }), ToString(shape)), ToString(shape));
  CHECK(ToString(Shape(100000, 1)).size() < 100);
}

void TestMemory() {
  setenv("ORTPLUGIN_MEMORY_LIMIT", "a lot", 1);
  CHECK(ErrorOf([] { HostMemory(); }) == "ORTPLUGIN_MEMORY_LIMIT is 'a lot'; it must be a number of bytes");
  setenv("ORTPLUGIN_MEMORY_LIMIT", "1000000", 1);  // read again, as there was none before
  CHECK(HostMemory() == 1000000);
  CHECK(ErrorOf([] { CheckHostMemory("output 0", 1000000); }).empty());
  CHECK(ErrorOf([] { CheckHostMemory("output 0", 1000001); }).find("output 0 takes 1000001 bytes") == 0);
  CHECK(Contains(ErrorOf([] { HostVector<double> large(125001); }), "1000008 bytes"));
  CHECK(ErrorOf([] { AllocateHostMemory(std::numeric_limits<size_t>::max() / 2, 16); }) != "");
  HostVector<double> small(1000, 1.0);
  small.resize(2000);
  CHECK(small[999] == 1.0 && small[1999] == 0.0);
}

void TestText() {
  CHECK(Quoted("auto") == "'auto'");
  CHECK(Quoted("\xff\x1b[2J") == "'\\xff\\x1b[2J'");
  CHECK(Quoted(std::string(1000, 'a')).size() == 45);
  const std::string good = "a\u00e9\u4e2d\U0001f600";
  CHECK(Printable(good, 100, false) == good);
  CHECK(Printable("a\nb\t\x1b", 100, true) == "a\nb\t\\x1b");
  CHECK(Printable("a\nb", 100, false) == "a\\x0ab");
  // Cut short, overlong, a surrogate, beyond Unicode, a control character of two bytes.
  for (const char* bad : {"\xe4\xb8", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xc2\x9b", "\x80", "\xfe"})
    CHECK(Printable(bad, 100, true).rfind("\\x", 0) == 0);
  CHECK(Printable(std::string(1000, 'n'), 200, false) == std::string(200, 'n') + "...");
}

}  // namespace

int main() {
  TestOldRuntimes();
  TestUnknownShapes();
  TestSizes();
  TestMemory();
  TestText();
  return Summary();
}
