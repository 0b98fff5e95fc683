// The scatter operators on the GPU: form, kernels and launches.

#include "ortplugin/ops/scatter/scatter_cuda.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <sstream>
#include <tuple>

#include "ortplugin/runtime/gpu/cuda.h"
#include "ortplugin/runtime/gpu/kernel_sources.h"
#include "ortplugin/runtime/gpu/plan_cache.h"
#include "ortplugin/runtime/ort/scratch.h"
#include "ortplugin/runtime/round_up.h"

namespace ortplugin {
namespace {

// As in scatter.cu and scatter_sort.cu.
constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kTileItems = 4;  // accesses of a lane where a warp takes a run of elements
constexpr int64_t kFusedUnits = 64, kSmallUnits = 4;
constexpr int kSortThreads = 512, kDigitBits = 8, kDigits = 1 << kDigitBits;

// Measured on an H200: where looking for duplicates among all units ends to be faster than the table, or than sorting
// units of so many bytes.
constexpr int64_t kFewUnits = 256;
constexpr int64_t kFewSorted[][2] = {{512, 2048}, {4096, 1024}, {INT64_MAX, 512}};  // bytes, units

bool IsFloat(ort::ElementType type) {
  const std::optional<DType> dtype = FromOrt(type);
  return dtype && IsFloating(*dtype);
}

// The order of a slot's units does not change the result.
bool IsExact(const ScatterAttributes& attributes, ort::ElementType type) {
  const bool is_extreme = attributes.reduction == Reduction::kMin || attributes.reduction == Reduction::kMax;
  return attributes.reduction != Reduction::kNone && (is_extreme || !IsFloat(type));
}

bool MayBeAtomic(const ScatterAttributes& attributes, ort::ElementType type) {
  return attributes.reduction != Reduction::kNone && (IsExact(attributes, type) || !attributes.deterministic);
}

// A sum of two that the memory makes by itself, which spares reading. Elements that lie side by side are better read.
bool IsAddedWithoutAnswer(const ScatterAttributes& attributes, ort::ElementType type, const ScatterShape& shape) {
  return attributes.reduction == Reduction::kAdd && shape.width == 1 && (IsFloat(type) || ScatterBytes(type) >= 4);
}

void CheckAlgorithm(const ScatterAttributes& attributes, ort::ElementType type) {
  if (attributes.algorithm == ScatterAlgorithm::kParallel && !attributes.unique &&
    attributes.reduction != Reduction::kNone && !MayBeAtomic(attributes, type))
    Fail("algorithm 'parallel' can't combine ", NameOfOrt(type),
      " in order; use 'sorting' or 'auto', or say unique=1 if no index occurs twice, or deterministic=0 if the last "
      "bits may differ from run to run");
}

}  // namespace

ScatterChoice ChooseScatter(
  const ScatterAttributes& attributes, ort::ElementType type, const ScatterShape& shape, bool in_place) {
  CheckAlgorithm(attributes, type);
  const ScatterChoice copy{ScatterForm::kCopy, !in_place, false, false, false};
  if (shape.is_empty()) return copy;
  const bool is_assignment = attributes.reduction == Reduction::kNone;
  const auto with = [&](ScatterForm form) {
    ScatterChoice choice = copy;
    choice.form = form;
    if (form == ScatterForm::kFused) choice.copies = false;
    if (form == ScatterForm::kWrite) {
      choice.owned = is_assignment && !attributes.unique;
      choice.collects = choice.owned && shape.slots / 4 <= shape.units;
      if (choice.collects) choice.copies = false;
      choice.atomic = !is_assignment && (!attributes.unique || IsAddedWithoutAnswer(attributes, type, shape));
    }
    return choice;
  };
  const bool can_fuse = !in_place && shape.units <= kFusedUnits;
  switch (attributes.algorithm) {
    case ScatterAlgorithm::kSequential: return with(can_fuse ? ScatterForm::kFused : ScatterForm::kFew);
    case ScatterAlgorithm::kParallel: return with(ScatterForm::kWrite);
    case ScatterAlgorithm::kSorting: return with(ScatterForm::kSort);
    case ScatterAlgorithm::kAuto: break;
  }
  if (can_fuse) return with(ScatterForm::kFused);
  if (attributes.unique) return with(ScatterForm::kWrite);
  int64_t few = kFewUnits;
  if (!is_assignment && !MayBeAtomic(attributes, type)) {
    const int64_t bytes = shape.width * int64_t(ScatterBytes(type));
    for (const auto& [most_bytes, most_units] : kFewSorted)
      if (bytes <= most_bytes) {
        few = most_units;
        break;
      }
  }
  if (shape.units <= few) return with(ScatterForm::kFew);
  if (MayBeAtomic(attributes, type)) return with(ScatterForm::kWrite);
  constexpr int64_t kModerateTable = int64_t{1} << 26;
  const bool has_table = is_assignment && (shape.slots <= kModerateTable || shape.slots / 16 <= shape.units);
  return with(has_table ? ScatterForm::kWrite : ScatterForm::kSort);
}

ScatterVariant MakeScatterVariant(const ScatterAttributes& attributes, ort::ElementType type, const ScatterShape& shape,
  const ScatterChoice& choice, bool is_int32, const ScatterAddresses& addresses) {
  const bool is_assignment = attributes.reduction == Reduction::kNone;
  const auto bytes = int64_t(ScatterBytes(type));
  const auto aligned = [&](uintptr_t address) {
    return std::max<int64_t>(1, std::gcd(int64_t(address % 16), int64_t{16}) / bytes);
  };
  const int64_t output = aligned(addresses.data_and_output), updates = aligned(addresses.updates);
  const int64_t widest = 16 / bytes;
  ScatterVariant variant{};
  variant.choice = choice;
  const bool along_output = choice.form == ScatterForm::kCopy || choice.form == ScatterForm::kFused;
  int64_t vector = along_output ? std::min(widest, output) : std::gcd(shape.width, std::min({widest, output, updates}));
  const auto is_whole = [&] { return shape.width % vector == 0 && vector <= updates; };
  // One element at a time is looked for where slots begin within accesses; 16 of them take too many registers.
  if (choice.form == ScatterForm::kFused && (!is_whole() || !is_assignment)) vector = std::min<int64_t>(vector, 8);
  variant.vector = int(vector);
  const auto is_linear = [](const std::vector<Term>& terms) {
    return terms.size() == 1 && terms[0].divisor == 1 && terms[0].modulus == 0;
  };
  const int64_t most =
    std::max({shape.elements, shape.units * shape.width, shape.units * int64_t(shape.components.size())});
  variant.wide = most >= int64_t{1} << 31;
  variant.components = shape.components.size();
  if (choice.form == ScatterForm::kCopy) {  // nothing of the units matters
    variant.components = 1;
    return variant;
  }
  variant.whole = is_whole();
  variant.narrow = shape.width == vector;
  variant.single = choice.form == ScatterForm::kFused && shape.width == 1;
  variant.small = variant.single && is_assignment && shape.units <= kSmallUnits && shape.elements % vector == 0 &&
    shape.elements <= kThreads * vector;
  variant.covering = choice.form == ScatterForm::kFused && variant.whole && is_assignment &&
    shape.elements % vector == 0 && shape.units * shape.width >= shape.elements / 4;
  variant.is_int32 = is_int32;
  variant.base_terms = shape.base.size();
  variant.index_terms = shape.index.size();
  variant.update_terms = shape.update.size();
  variant.index_is_linear = is_linear(shape.index);
  variant.update_is_linear = is_linear(shape.update);
  return variant;
}

std::string ScatterSource(const ScatterAttributes& attributes, ort::ElementType type, const ScatterVariant& variant) {
  const size_t bytes = ScatterBytes(type);
  const Reduction reduction = variant.choice.form == ScatterForm::kCopy ? Reduction::kNone : attributes.reduction;
  const bool is_floating = IsFloat(type);
  const bool is_extreme = reduction == Reduction::kMin || reduction == Reduction::kMax;
  const bool is_signed = type == ort::kInt8 || type == ort::kInt16 || type == ort::kInt32 || type == ort::kInt64;
  const auto integer = [](size_t size, bool with_sign) -> std::string {
    const char* name = size == 1 ? "char" : size == 2 ? "short" : size == 4 ? "int" : "long long";
    return size == 16 ? "uint4" : (with_sign ? "signed " : "unsigned ") + std::string(name);
  };
  std::string element = integer(bytes, false), compute = "unsigned";
  bool has_atomic_add = false, has_atomic_min = false;
  if (reduction != Reduction::kNone && is_floating) {
    element = StorageType(*FromOrt(type));
    compute = ComputeType(*FromOrt(type));
    has_atomic_add = true;
  } else if (reduction != Reduction::kNone) {
    // Sums and products wrap around, which only unsigned integers may.
    element = integer(bytes, is_signed && is_extreme);
    compute = integer(std::max<size_t>(bytes, 4), is_signed && is_extreme);
    has_atomic_add = has_atomic_min = bytes >= 4;
  }
  std::ostringstream text;
  text << kCommonSource << "\n"
       << "typedef " << element << " element_t;\n"
       << "typedef " << compute << " compute_t;\n"
       << "typedef " << element << " atomic_t;\n"
       << "typedef " << integer(bytes == 1 ? 4 : std::min<size_t>(bytes, 8), false) << " word_t;\n"
       << "typedef " << (variant.is_int32 ? "int" : "long long") << " index_t;\n"
       << "typedef " << (variant.wide ? "unsigned long long" : "unsigned") << " count_t;\n"
       << Defines({{"REDUCTION", int(reduction)}, {"IS_FLOATING", is_floating}, {"HAS_ATOMIC_ADD", has_atomic_add},
            {"HAS_ATOMIC_MIN", has_atomic_min}, {"VECTOR", variant.vector}, {"WHOLE", variant.whole},
            {"IS_NARROW", variant.narrow}, {"IS_SINGLE", variant.single}, {"IS_COVERING", variant.covering},
            {"IS_SMALL", variant.small}, {"IS_OWNED", variant.choice.owned},
            {"IS_UNIQUE", attributes.unique && variant.choice.atomic}, {"IS_ATOMIC", variant.choice.atomic},
            {"IS_SLICE", attributes.kind == ScatterKind::kSlice}, {"COMPONENTS", variant.components},
            {"BASE_TERMS", variant.base_terms}, {"INDEX_TERMS", variant.index_terms},
            {"UPDATE_TERMS", variant.update_terms}, {"INDEX_IS_LINEAR", variant.index_is_linear},
            {"UPDATE_IS_LINEAR", variant.update_is_linear}})
       << "#define COPY 0\n#define FUSED 1\n#define FEW 2\n#define WRITE 3\n#define SORT 4\n"
       << "#define FORM " << int(variant.choice.form) << "\n\n"
       << kScatterSource;
  if (variant.choice.form == ScatterForm::kSort) text << "\n" << kScatterSortSource;
  return text.str();
}

namespace {

// The kernels' argument block, laid out as the struct Arguments of scatter.cu; the pointers come with each run.
enum Pointer : size_t { kData, kIndices, kUpdates, kOutput, kPointers };
std::vector<uint64_t> Arguments(const ScatterShape& shape, bool is_copy) {
  std::vector<uint64_t> block(kPointers, 0);
  const auto add = [&](int64_t number) { block.push_back(uint64_t(number)); };
  const auto add_terms = [&](const std::vector<Term>& terms) {
    for (const Term& term : terms) {
      add(term.divisor);
      add(term.modulus);
      add(term.stride);
    }
  };
  for (const int64_t number : {shape.elements, shape.units, shape.width, shape.slots}) add(number);
  const std::vector<Term> none{{1, 0, 0}};
  const auto add_all_terms = [&](
                               const std::vector<Term>& terms) { add_terms(terms.empty() || is_copy ? none : terms); };
  const std::vector<ScatterShape::Component> dummy{{0, 0, none[0]}};
  for (const ScatterShape::Component& component : is_copy ? dummy : shape.components) {
    add(component.size);
    add(component.stride);
    add_terms({component.steps});
  }
  add_all_terms(shape.base);
  add_all_terms(shape.index);
  add_all_terms(shape.update);
  return block;
}

// The sorting form's scratch memory, in the order of its parts; sizes in elements.
struct SortLayout {
  int passes, bits;
  int64_t tiles;
  size_t cleared;  // words, from the start: counts, what tiles publish, tickets
  size_t published, tickets, keys[2], units[2], bytes;
};

SortLayout LaySort(const ScatterShape& shape, bool wide) {
  if (shape.units >= int64_t{1} << 30)
    Fail(shape.units,
      " updates are more than the 2^30 that can be sorted; say unique=1 if no index occurs twice, "
      "deterministic=0 if any order will do, or split the updates");
  SortLayout sort{};
  int key_bits = 1;
  while (key_bits < 63 && shape.slots >> key_bits != 0) ++key_bits;  // a key is at most `slots`
  sort.passes = int(DivideUp(key_bits, kDigitBits));
  sort.bits = int(DivideUp(key_bits, sort.passes));
  sort.tiles = DivideUp(shape.units, kSortThreads * (wide ? 8 : 16));
  const auto passes = size_t(sort.passes);
  sort.published = passes * kDigits;
  sort.tickets = sort.published + passes * size_t(sort.tiles) * kDigits;
  sort.cleared = sort.tickets + passes;
  size_t bytes = (sort.cleared * 4 + 15) / 16 * 16;
  const auto units = size_t(shape.units);
  for (int side = 0; side < 2; ++side) {
    sort.keys[side] = bytes;
    bytes += (units * (wide ? 8 : 4) + 15) / 16 * 16;
    sort.units[side] = bytes;
    bytes += (units * 4 + 15) / 16 * 16;
  }
  sort.bytes = bytes;
  return sort;
}

// Everything of one combination of input shapes and alignments, ready to launch.
struct Plan {
  ScatterChoice choice;
  std::vector<uint64_t> arguments, copy_arguments;
  cuda::Function copy = nullptr, first = nullptr, second = nullptr, third = nullptr;
  cuda::LaunchShape copy_launch, launch, unit_launch;
  uint64_t filled = 0;  // words of scratch
  unsigned fill = 0;
  size_t scratch_bytes = 0;
  SortLayout sort{};
};

cuda::LaunchShape Blocks(int64_t count) {
  if (count >= int64_t{1} << 31) Fail("the tensor takes ", count, " blocks, more than a launch has");
  return {std::max<int64_t>(1, count), kThreads};
}

void LaunchSort(const Plan& plan, const DeviceFacts& device, cuda::Stream stream, uint64_t* arguments, char* scratch) {
  const SortLayout& sort = plan.sort;
  int passes = sort.passes, bits = sort.bits;
  char* counts = scratch;
  void* count_parameters[] = {arguments, &counts, &passes, &bits};
  const int64_t count_blocks = std::min<int64_t>(sort.tiles * 4, 4 * device.multiprocessors);
  cuda::Launch(device, plan.second, {count_blocks, kSortThreads}, stream, count_parameters);
  char *keys = nullptr, *units = nullptr;
  for (int pass = 0; pass < passes; ++pass) {
    char *sorted_keys = scratch + sort.keys[pass % 2], *sorted_units = scratch + sort.units[pass % 2];
    char* pass_counts = scratch + 4 * size_t(pass) * kDigits;
    char* published = scratch + 4 * (sort.published + size_t(pass) * size_t(sort.tiles) * kDigits);
    char* ticket = scratch + 4 * (sort.tickets + size_t(pass));
    int shift = pass * bits;
    void* parameters[] = {
      arguments, &keys, &units, &sorted_keys, &sorted_units, &pass_counts, &published, &ticket, &shift, &bits};
    cuda::Launch(device, plan.third, {sort.tiles, kSortThreads}, stream, parameters);
    keys = sorted_keys;
    units = sorted_units;
  }
  void* fold_parameters[] = {arguments, &keys, &units};
  cuda::Launch(device, plan.first, plan.launch, stream, fold_parameters);
}

class CudaScatter : public Kernel {
 public:
  CudaScatter(ScatterKind kind, const NodeInfo& info)
    : attributes_(ScatterAttributes::Parse(kind, info)), scratch_(info), device_(cuda::Device(info.device())) {
    Prepare(CheckScatterNode(attributes_, info));
  }

  void Compute(Run& run) const override {
    Shapes shapes;
    std::vector<ort::ElementType> types;
    const void* inputs[3];
    for (size_t i = 0; i < 3; ++i) {
      Tensor input = run.input(i);
      inputs[i] = input.data;
      types.push_back(input.type);
      shapes.push_back(std::move(input.shape));
    }
    CheckScatterTypes(attributes_, types);
    const void* data = inputs[0];
    const void *indices = inputs[attributes_.indices()], *updates = inputs[attributes_.updates()];
    void* output = run.output(0, shapes[0]);
    const auto address = [](const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); };
    Key key;
    key.type = types[0];
    key.is_int32 = types[attributes_.indices()] == ort::kInt32;
    key.in_place = output == data;
    key.alignment[0] = (address(data) | address(output)) % 16;
    key.alignment[1] = address(updates) % 16;
    const cuda::Stream stream = run.stream();
    std::shared_ptr<const Plan> plan = plans_.Find(shapes, key);
    if (plan == nullptr) {
      cuda::RefuseCapture(device_, stream);
      plan = Make(shapes, key);
    }
    if (plan->choice.form != ScatterForm::kCopy && (output == updates || output == indices))
      Fail("the output has the memory of ", output == updates ? "the updates" : "the indices",
        ", which would be overwritten while they are read");
    std::vector<uint64_t> arguments = plan->arguments, copy_arguments = plan->copy_arguments;
    for (std::vector<uint64_t>* block : {&arguments, &copy_arguments}) {
      (*block)[kData] = address(data);
      (*block)[kIndices] = address(indices);
      (*block)[kUpdates] = address(updates);
      (*block)[kOutput] = address(output);
    }
    scratch_.Lend(run, plan->scratch_bytes,
      [&](char* memory) { Launch(*plan, stream, arguments.data(), copy_arguments.data(), memory); });
  }

 private:
  // What a plan depends on besides the shapes.
  struct Key {
    ort::ElementType type;
    bool is_int32, in_place;
    uintptr_t alignment[2];  // of data and output, of updates
    bool operator<(const Key& other) const {
      return std::tie(type, is_int32, in_place, alignment[0], alignment[1]) <
        std::tie(other.type, other.is_int32, other.in_place, other.alignment[0], other.alignment[1]);
    }
  };

  void Launch(
    const Plan& plan, cuda::Stream stream, uint64_t* arguments, uint64_t* copy_arguments, char* scratch) const {
    void* memory = scratch;
    if (plan.copy != nullptr) {
      uint64_t words = plan.filled;
      unsigned value = plan.fill;
      if (!plan.choice.copies) copy_arguments[kOutput] = copy_arguments[kData];  // only fills
      void* parameters[] = {copy_arguments, &memory, &words, &value};
      cuda::Launch(device_, plan.copy, plan.copy_launch, stream, parameters);
    }
    void* parameters[] = {arguments, &memory};
    switch (plan.choice.form) {
      case ScatterForm::kCopy: return;
      case ScatterForm::kFused: {
        unsigned unit_blocks = plan.unit_launch.blocks;
        parameters[1] = &unit_blocks;
        return cuda::Launch(device_, plan.first, plan.launch, stream, parameters);
      }
      case ScatterForm::kFew: return cuda::Launch(device_, plan.first, plan.launch, stream, parameters);
      case ScatterForm::kWrite:
        if (plan.choice.owned) {
          if (plan.filled == 0) cuda::Launch(device_, plan.second, plan.unit_launch, stream, parameters);
          cuda::Launch(device_, plan.third, plan.unit_launch, stream, parameters);
        }
        return cuda::Launch(device_, plan.first, plan.launch, stream, parameters);
      case ScatterForm::kSort: return LaunchSort(plan, device_, stream, arguments, scratch);
    }
  }

  // Compiles for the shapes that the model declares, where they are known, so that errors come with the session and
  // runs find the kernels there.
  void Prepare(const TensorTypes& inputs) {
    const std::optional<Shapes> shapes = KnownShapes(inputs);
    if (!shapes) return;
    Key key{};
    key.type = inputs[0].type;
    key.is_int32 = inputs[attributes_.indices()].type == ort::kInt32;
    if (key.type == ort::kUndefined) return;
    for (const bool in_place : {false, true}) {
      key.in_place = in_place;
      Make(*shapes, key);
    }
  }

  std::shared_ptr<const Plan> Make(const Shapes& shapes, const Key& key) const {
    const ScatterShape shape = FitScatter(attributes_, shapes);
    auto plan = std::make_unique<Plan>();
    plan->choice = ChooseScatter(attributes_, key.type, shape, key.in_place);
    const ScatterAddresses addresses{key.alignment[0], key.alignment[1]};
    const ScatterVariant variant =
      MakeScatterVariant(attributes_, key.type, shape, plan->choice, key.is_int32, addresses);
    const std::string source = ScatterSource(attributes_, key.type, variant);
    const auto load = [&](const char* kernel) { return cuda::Load(device_, source, kernel, cuda::Warn); };
    const int64_t accesses = shape.is_empty() ? 0 : shape.units * (shape.width / variant.vector);
    plan->arguments = Arguments(shape, false);
    plan->copy_arguments = Arguments(shape, true);
    const int64_t tile = int64_t{32} * kTileItems * variant.vector;
    plan->unit_launch = Blocks(DivideUp(shape.units, kThreads));
    plan->launch = Blocks(DivideUp(accesses, kThreads));
    switch (plan->choice.form) {
      case ScatterForm::kCopy: break;
      case ScatterForm::kFused:
        plan->first = load("scatter_fused");
        plan->unit_launch.blocks =
          variant.covering ? unsigned(DivideUp(DivideUp(shape.width, tile) * shape.units, kWarps)) : 0;
        plan->launch = Blocks(DivideUp(shape.elements, kWarps * tile) + plan->unit_launch.blocks);
        if (variant.small) {
          plan->first = load("scatter_small");
          plan->launch = {1, 32 * DivideUp(shape.elements, 32 * variant.vector)};
        }
        break;
      case ScatterForm::kFew: {
        const int64_t items = attributes_.reduction == Reduction::kNone ? kTileItems : 1;
        plan->first = load("scatter_few");
        plan->launch = Blocks(DivideUp(DivideUp(shape.width, 32 * items * variant.vector) * shape.units, kWarps));
        if (attributes_.reduction == Reduction::kNone && variant.narrow && shape.units <= kFusedUnits) {
          plan->first = load("scatter_few_narrow");
          plan->launch = {1, 32};
        }
        break;
      }
      case ScatterForm::kWrite:
        plan->first = load(plan->choice.collects ? "scatter_collect" : "scatter_write");
        if (plan->choice.collects) plan->launch = Blocks(DivideUp(shape.elements / variant.vector, kThreads));
        if (plan->choice.owned) {
          if (shape.units >= int64_t{1} << 31)
            Fail(shape.units,
              " updates are more than the 2^31 among which the last can be found; say unique=1 if no "
              "index occurs twice, or split the updates");
          plan->second = load("scatter_unclaim");
          plan->third = load("scatter_claim");
          plan->scratch_bytes = size_t(shape.slots) * 4;
          // Where slots are many, only those that are written are prepared.
          if (shape.slots / 8 <= shape.units) {
            plan->filled = uint64_t(shape.slots);
            plan->fill = ~0u;
          }
        }
        break;
      case ScatterForm::kSort:
        plan->sort = LaySort(shape, variant.wide);
        plan->first = load("scatter_fold");
        plan->second = load("sort_count");
        plan->third = load("sort_pass");
        plan->scratch_bytes = plan->sort.bytes;
        plan->filled = plan->sort.cleared;
        break;
    }
    if ((plan->choice.copies && shape.elements > 0) || plan->filled > 0) {
      const ScatterChoice copy{ScatterForm::kCopy, true, false, false, false};
      const ScatterVariant copying = MakeScatterVariant(attributes_, key.type, shape, copy, key.is_int32, addresses);
      plan->copy = cuda::Load(device_, ScatterSource(attributes_, key.type, copying), "scatter_copy", cuda::Warn);
      const int64_t blocks =
        !plan->choice.copies ? 1 : DivideUp(shape.elements, int64_t{kWarps} * 32 * kTileItems * copying.vector);
      const int64_t filling = std::min<int64_t>(DivideUp(int64_t(plan->filled), 4 * kThreads), 2048);
      plan->copy_launch = Blocks(std::max(blocks, filling));
    }
    return plans_.Keep(shapes, key, std::move(plan));
  }

  ScatterAttributes attributes_;
  DeviceScratch scratch_;
  const DeviceFacts& device_;
  mutable PlanCache<Plan, Key> plans_;
};

}  // namespace

std::unique_ptr<Kernel> CreateCudaScatter(ScatterKind kind, const NodeInfo& info) {
  return std::make_unique<CudaScatter>(kind, info);
}

}  // namespace ortplugin
