// The kernels of FusedAttention, in the variants that a configuration can take: no local memory. Limits are tested
// here, too.

#include <algorithm>
#include <iostream>
#include <sstream>
#include <vector>

#include "ortplugin/ops/attention/engines/decode.h"
#include "ortplugin/ops/attention/engines/engine.h"
#include "ortplugin/ops/attention/engines/flash.h"
#include "ortplugin/ops/attention/engines/flash_wgmma.h"
#include "ortplugin/ops/attention/engines/simt.h"
#include "tests/native/check.h"
#include "tests/native/kernel_remarks.h"

using namespace ortplugin;

namespace {

struct Sizes {
  int64_t batch, heads, kv_heads, queries, keys, head_size, value_size;
};

AttentionAttributes Attributes(DType dtype, const Sizes& sizes) {
  AttentionAttributes attributes;
  attributes.dtype = attributes.problem.dtype = dtype;
  attributes.problem.allow_tf32 = dtype == DType::kFloat;
  attributes.heads = attributes.problem.heads = sizes.heads;
  attributes.kv_heads = attributes.problem.kv_heads = sizes.kv_heads;
  attributes.q = AttentionLayout::Parse("q_layout", "b h s d", sizes.heads, false);
  attributes.k = attributes.v = AttentionLayout::Parse("k_layout", "b h s d", sizes.kv_heads, false);
  attributes.y = AttentionLayout::Parse("y_layout", "b h s d", sizes.heads, true);
  return attributes;
}

AttentionProblem Standard(DType dtype, const Sizes& sizes) {
  return FitAttention(Attributes(dtype, sizes),
    {{sizes.batch, sizes.heads, sizes.queries, sizes.head_size},
      {sizes.batch, sizes.kv_heads, sizes.keys, sizes.head_size},
      {sizes.batch, sizes.kv_heads, sizes.keys, sizes.value_size}})
    .problem;
}

struct Case {
  std::string name;
  AttentionProblem problem;
  bool is_for_first = false;  // for the engine that is taken, not for those behind it
};

// The problem with the first 2 * `pairs` elements of Q and K rotated, in both ways.
void AddRotary(Case plain, int64_t pairs, std::vector<Case>& cases) {
  using Rotary = AttentionProblem::Rotary;
  for (const Rotary rotary : {Rotary::kHalf, Rotary::kInterleaved}) {
    Case made = plain;
    made.problem.rotary = rotary;
    made.problem.rotary_dtype = rotary == Rotary::kHalf ? DType::kFloat : plain.problem.dtype;
    made.problem.pairs = pairs;
    made.name += std::string(rotary == Rotary::kHalf ? ", rotary half, " : ", rotary interleaved, ") +
      std::to_string(pairs) + " pairs";
    cases.push_back(made);
  }
}

// With a cache of so many rows; with a position the new ones replace some of them.
AttentionProblem WithPast(DType dtype, const Sizes& sizes, int64_t past, int64_t pairs = 0, bool has_position = false) {
  AttentionAttributes attributes = Attributes(dtype, sizes);
  attributes.problem.has_past = true;
  attributes.past = AttentionLayout::Parse("past_layout", "b h s d", sizes.kv_heads, false);
  std::vector<Shape> shapes{{sizes.batch, sizes.heads, sizes.queries, sizes.head_size},
    {sizes.batch, sizes.kv_heads, sizes.keys, sizes.head_size},
    {sizes.batch, sizes.kv_heads, sizes.keys, sizes.value_size}};
  if (pairs > 0) {
    attributes.problem.rotary = AttentionProblem::Rotary::kHalf;
    shapes.insert(shapes.end(), 2, {sizes.queries, pairs});
  }
  for (const int64_t size : {sizes.head_size, sizes.value_size})
    shapes.push_back({sizes.batch, sizes.kv_heads, past, size});
  attributes.problem.has_position = has_position;
  if (has_position) shapes.push_back({sizes.queries == 1 ? sizes.batch : 1});
  return FitAttention(attributes, shapes).problem;
}

void AddPast(std::vector<Case>& cases) {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kFloat, DType::kDouble})
    for (const int64_t size : {8, 40, 64, 72, 128, 256, 33}) {
      if (dtype != DType::kFloat16 && size != 64 && size != 33) continue;
      for (const int64_t queries : {1, 4, 40}) {
        Case plain{std::string(NameOf(dtype)) + " past, " + std::to_string(queries) + " queries, heads of " +
            std::to_string(size),
          WithPast(dtype, {2, 8, 2, queries, queries, size, size}, 1000)};
        cases.push_back(plain);
        if (size % 8 != 0 && queries > 1) continue;
        plain.problem = WithPast(dtype, {2, 8, 2, queries, queries, size, size}, 1000, size / 2);
        plain.name += ", rotated";
        cases.push_back(plain);
        if (size % 32 == 0) {
          Case written = plain;
          written.problem = WithPast(dtype, {2, 8, 2, queries, queries, size, size}, 1000, size / 2, true);
          written.name += ", written";
          cases.push_back(written);
        }
        if (size != 64) continue;
        AttentionProblem& problem = plain.problem;
        problem.rotary = AttentionProblem::Rotary::kInterleaved;
        problem.causal = AttentionProblem::Causal::kLowerRight;
        problem.window = 7;
        problem.softcap = 30;
        problem.has_mask = true;
        problem.mask_dtype = queries == 1 ? DType::kBool : dtype;
        plain.name += ", everything";
        cases.push_back(plain);
      }
    }
  for (const int64_t size : {64, 128})
    cases.push_back(
      {"few queries, heads of " + std::to_string(size), Standard(DType::kFloat16, {8, 8, 2, 3, 1500, size, size})});
}

// Many keys, with all that an engine for these has beside masks, for few blocks and for many.
void AddLong(std::vector<Case>& cases) {
  for (const auto& [keys, size] : {std::pair{256, 64}, {197, 64}, {197, 32}, {512, 64}})
    cases.push_back({"many heads of " + std::to_string(size) + ", " + std::to_string(keys) + " keys",
      Standard(DType::kFloat16, {64, 24, 24, keys, keys, size, size}), true});
  for (const int64_t head_size : {8, 40, 64, 80, 96, 128, 192, 256})
    for (const int64_t heads : {1, 64}) {
      const DType dtype = head_size == 64 ? DType::kBFloat16 : head_size == 96 ? DType::kFloat : DType::kFloat16;
      AttentionProblem problem =
        Standard(dtype, {1, heads, 1, 1500, 1500, head_size, head_size == 40 ? 72 : head_size});
      const std::string name = std::to_string(heads) + " long heads of " + std::to_string(head_size);
      cases.push_back({name, problem, true});
      problem.causal = AttentionProblem::Causal::kUpperLeft;
      cases.push_back({name + ", causal", problem, true});
      problem.window = 100;
      problem.softcap = 30;
      if (heads == 64 || head_size == 64) cases.push_back({name + ", window and softcap", problem, true});
    }
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  AddPast(cases);
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kFloat, DType::kDouble})
    for (const auto& [head_size, value_size] :
      {std::pair<int64_t, int64_t>{1, 1}, {8, 40}, {64, 64}, {72, 33}, {128, 128}, {256, 256}})
      for (const int64_t queries : {1, 197}) {
        AttentionProblem problem = Standard(dtype, {2, 12, 4, queries, 197, head_size, value_size});
        std::ostringstream name;
        name << NameOf(dtype) << " " << queries << " queries, heads of " << head_size << " and " << value_size;
        cases.push_back({name.str(), problem});
        if (queries == 197 && head_size > 1) AddRotary(cases.back(), head_size / 2, cases);
        if (head_size != 64) continue;
        if (queries == 197 && dtype != DType::kDouble) {
          for (const int64_t pairs : {12, 31}) AddRotary({name.str(), problem}, pairs, cases);
          Case tall{name.str() + ", long", Standard(dtype, {8, 12, 4, 2048, 2048, head_size, value_size})};
          cases.push_back(tall);
          AddRotary(tall, 32, cases);
        }
        problem.causal = AttentionProblem::Causal::kLowerRight;
        cases.push_back({name.str() + ", causal", problem});
        problem.window = 7;
        problem.softcap = 30;
        problem.has_mask = true;
        for (const DType mask : {DType::kBool, DType::kFloat, dtype}) {
          problem.mask_dtype = mask;
          cases.push_back({name.str() + ", everything, mask of " + NameOf(mask), problem});
        }
      }
  AddLong(cases);
  return cases;
}

void Compile(
  const cuda::DeviceFacts& gpu, const std::string& architecture, const std::string& name, const EngineKernel& kernel) {
  const auto is = [&](const char* name) { return test::Defined(kernel.source, name, 0); };
  if (!test::TakesTurn(test::Joined(kernel.entry, is("HAS_SOFTCAP"), is("ROTARY")), 120)) return;
  test::Compiled compiled(kernel.source, architecture + (gpu.has_wgmma() ? "a" : ""));
  compiled.Check(architecture + " " + name + ":");
  compiled.CheckLaunch(gpu, kernel.entry, kernel.launch.threads, kernel.launch.shared_bytes);
  CHECK_WITH(kernel.launch.blocks > 0 && kernel.launch.shared_bytes <= gpu.shared_per_block, compiled.variant());
  if (architecture == "sm_90")
    compiled.CheckWaits("prefetch.tensormap");  // tensor maps are the kernel's own parameters
}

void Compile(const cuda::DeviceFacts& gpu, const std::string& architecture, const Case& test_case) {
  for (const bool aligned : {false, true}) {
    if (test_case.is_for_first && !aligned) continue;
    for (const AttentionEngine& engine : AttentionEngines()) {
      if (!engine.fits(test_case.problem, aligned, gpu)) continue;
      const std::optional<EngineKernel> kernel = engine.make(test_case.problem, gpu);
      CHECK_WITH(kernel.has_value(), test_case.name);
      // What fits whatever the addresses is compiled once.
      if (kernel && !(aligned && engine.fits(test_case.problem, false, gpu)))
        Compile(gpu, architecture, std::string(engine.name) + ", " + test_case.name, *kernel);
      if (test_case.is_for_first) break;
    }
  }
  AttentionProblem exact = test_case.problem;
  exact.allow_tf32 = false;
  for (int64_t i = 0; test_case.problem.allow_tf32 && i < 2 && FitsFlash(exact, true, gpu); ++i, exact.batch *= 8)
    Compile(gpu, architecture, "flash without TF32, " + test_case.name, *MakeFlash(exact, gpu));
  if (!test_case.problem.has_past) return;
  // A cache that no engine takes in: the copy, and attention over what is present.
  for (const bool aligned : {false, true}) {
    const std::vector<AttentionLaunch> launches = PlanAttention(test_case.problem, aligned, gpu);
    CHECK_WITH(launches.size() == (FitsDecode(test_case.problem, aligned, gpu) ? 1 : 2), test_case.name);
    for (const AttentionLaunch& launch : launches)
      if (launches.size() > 1) Compile(gpu, architecture, launch.kernel.entry + (", " + test_case.name), launch.kernel);
  }
}

// Groups of warps divide the keys where warps are few, and there are tiles for each of them.
void TestGroups(const cuda::DeviceFacts& gpu) {
  AttentionProblem llama = Standard(DType::kFloat16, {1, 16, 4, 256, 256, 64, 64});
  llama.rotary = AttentionProblem::Rotary::kHalf;
  AttentionProblem t5 = Standard(DType::kFloat16, {8, 8, 8, 128, 128, 64, 64});
  t5.has_mask = true;
  const AttentionProblem bert = Standard(DType::kFloat16, {1, 12, 12, 128, 128, 64, 64}),
                         many = Standard(DType::kFloat16, {64, 12, 12, 256, 256, 64, 64});
  const FlashConfig of_llama = ConfigureFlash(llama, gpu);
  CHECK(of_llama.groups == 4 && of_llama.warps == 2 && ConfigureFlash(t5, gpu).groups == 2);
  CHECK(ConfigureFlash(bert, gpu).groups == 1 && ConfigureFlash(many, gpu).groups == 1);
}

// Tiles of keys that the busiest block of flash_wgmma has, over the average.
double MostOverAverage(const AttentionProblem& problem, const cuda::DeviceFacts& gpu) {
  const FlashWgmmaConfig config = ConfigureFlashWgmma(problem, gpu);
  const FlashWgmmaOrder order = OrderFlashWgmma(problem, config, gpu);
  const int64_t rows = int64_t{64} * config.consumers, of_head = (problem.queries + rows - 1) / rows;
  const int64_t all_heads = problem.batch * problem.heads, all = of_head * all_heads;
  const int64_t blocks = std::min(all, int64_t{gpu.multiprocessors} * config.min_blocks);
  CHECK(order.blocks == blocks || order.blocks == all);
  std::vector<double> loads(size_t(blocks), 0);
  double sum = 0;
  for (int64_t at = 0; at < all; ++at) {  // as Schedule does (flash_wgmma.cu)
    const int64_t first = at / (order.section * of_head) * order.section, rest = at - first * of_head;
    const int64_t row = (of_head - 1 - rest / std::min(order.section, all_heads - first)) * rows;
    double tiles = 0;
    for (int64_t own = row; own < std::min(row + rows, problem.queries); own += 64) {
      const int64_t last = std::min(own + 64, problem.queries);
      const bool is_causal = problem.causal != AttentionProblem::Causal::kNone;
      tiles += double(((is_causal ? last : problem.keys) + config.tile_n - 1) / config.tile_n);
    }
    const size_t place = size_t(at % blocks), block = at / blocks % 2 ? size_t(blocks) - 1 - place : place;
    double& load = order.blocks == blocks ? loads[block] : *std::min_element(loads.begin(), loads.end());
    load += tiles;
    sum += tiles;
  }
  return *std::max_element(loads.begin(), loads.end()) / sum * double(blocks);
}

// Blocks have as much to do as each other, however long sequences are. Those of 16384 keys were 1.3 times the average.
void TestOrder(const cuda::DeviceFacts& gpu) {
  for (const int64_t length : {256, 512, 1000, 1024, 1500, 2048, 4096, 8192, 16384, 40000})
    for (const int64_t size : {32, 64, 80, 128, 192})
      for (const int64_t kv_heads : {1, 6, 12})
        for (const bool is_causal : {false, true}) {
          AttentionProblem problem =
            Standard(DType::kFloat16, {std::max<int64_t>(2, 32768 / length), 12, kv_heads, length, length, size, size});
          if (is_causal) problem.causal = AttentionProblem::Causal::kUpperLeft;
          const double most = MostOverAverage(problem, gpu);
          CHECK_WITH(most < 1.1, test::Joined(length, " keys, size ", size, ": ", most));
        }
}

// Views of all layouts, and masks, are what tests/ort/test_attention.py runs.
void TestViews() {
  // Strides beyond 2^31; sizes whose product nobody has.
  const Sizes large{70000, 4, 4, 1000, 1000, 64, 64};
  const AttentionProblem far = Standard(DType::kFloat, large);
  CHECK(far.q.batch == 256000 && far.q.batch * far.batch > int64_t{1} << 31);
  const auto fails = [](const Sizes& sizes, const char* words) {
    const std::string message = test::ErrorOf([&] { Standard(DType::kFloat, sizes); });
    CHECK_WITH(test::Contains(message, words), message);
  };
  fails({int64_t{1} << 40, 4, 4, 1 << 20, 1, 64, 64}, "more elements");
  fails({0, 1, 1, int64_t{1} << 40, 0, 1, int64_t{1} << 40}, "head size");
}

// Whatever the sizes, there is a kernel, or a reason; and no engine asks for more than the GPU has.
void TestLimits() {
  for (const test::Gpu& gpu : test::kGpus)
    for (const DType dtype : {DType::kFloat16, DType::kFloat, DType::kDouble})
      for (const int64_t keys : {0, 1, 7, 1 << 20})
        for (int64_t size = 1; size <= kMostHeadSize; size += size < 16 ? 1 : 24) {
          const EngineKernel kernel = MakeAttention(Standard(dtype, {2, 12, 4, 33, keys, size, size}), true, gpu.facts);
          CHECK_WITH(kernel.launch.blocks > 0 && kernel.launch.threads <= 1024 &&
              kernel.launch.shared_bytes <= gpu.facts.shared_per_block,
            gpu.name);
        }
  const Sizes most{1 << 20, 4096, 1, 1, 1, 1, 1};
  CHECK(test::ErrorOf([&] {
    MakeAttention(Standard(DType::kFloat, most), true, test::H200());
  }).find("more blocks than a launch has") != std::string::npos);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string argument = argc == 2 ? argv[1] : "";
  if (argument.rfind("sm_", 0) != 0) {
    for (const Case& test_case : Cases())
      if (test_case.name == argument) std::cout << MakeAttention(test_case.problem, true, test::H200()).source;
    return argument.empty() ? test::AskForArchitecture("test_attention_kernels") : 0;
  }
  TestGroups(test::H200());
  TestOrder(test::H200());
  TestViews();
  TestLimits();
  const cuda::DeviceFacts& gpu = test::DeviceOf(argument);
  for (const Case& test_case : Cases()) Compile(gpu, argument, test_case);
  return test::Summary();
}
