#include "ortplugin/runtime/cudnn/plan.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>
#include <set>
#include <stdexcept>
#include <utility>

#include "ortplugin/runtime/cudnn/problem.h"
#include "ortplugin/runtime/error.h"

namespace ortplugin::cudnn {
namespace {

DType ResultType(const Problem& problem) {
  return problem.program == nullptr ? problem.dtype : problem.program->result(0).dtype;
}

bool IsOnePixel(const Tensor& image) {
  return std::all_of(image.dims.begin() + 2, image.dims.end(), [](int64_t size) { return size == 1; });
}

bool IsOnePixelInGroups(const Problem& problem) {
  return problem.groups > 1 && (IsOnePixel(problem.x) || IsOnePixel(problem.y));
}

bool HasUnevenPads(const Problem& problem) { return problem.pads_begin != problem.pads_end; }
constexpr const char* kPadsBothSidesAlike = "its pads at the end are those at the beginning, as was measured";

// Tiles of channels reach behind the last group's: whatever is there, times 0, is added.
constexpr const char* kReadsBehindGroups =
  "it reads behind the last group's channels where the image is one pixel, as was measured";

// What engines do that their notes do not say. All were measured with cuDNN 9.19.
struct Fault {
  int64_t engine;
  Direction direction;
  bool (*has)(const Problem&);
  const char* reason;
};

const Fault kFaults[] = {
  // Of 12 plans for 17 to 8 channels, 5 x 5, in float16 with channels first, this one was off by up to 8 units in the
  // last place for 16% of the elements, all others by 0.51.
  {2, Direction::kDataGradient, [](const Problem& problem) { return SizeOf(problem.dtype) == 2; },
    "it accumulates in less than fp32, as was measured"},
  // Of 16 or 4 to 4 channels, 3 wide, dW in fp32 from fp16 or bf16 is another tensor.
  {2, Direction::kWeightGradient, [](const Problem& problem) { return ResultType(problem) != problem.dtype; },
    "its weight gradients in another dtype than their operands' are wrong, as was measured"},
  // Of a depthwise convolution, 3 wide, of images 2 wide with one pad at the beginning, the first writes two pixels
  // for each channel, where there is one, and dX of the second is another tensor.
  {5, Direction::kForward, HasUnevenPads, kPadsBothSidesAlike},
  {6, Direction::kDataGradient, HasUnevenPads, kPadsBothSidesAlike},
  // 3 groups of 4 channels, 1 x 1, in fp16 and bf16.
  {10, Direction::kForward, IsOnePixelInGroups, kReadsBehindGroups},
  {22, Direction::kForward, IsOnePixelInGroups, kReadsBehindGroups},
  // dW of 3 x 3 is not 0 where all products are.
  {17, Direction::kWeightGradient, [](const Problem&) { return true; },
    "it transforms the images, as was measured: a NaN or infinity spreads to elements that do not see it"},
};

struct Notes {
  std::set<int> numerical, behavior;
  explicit Notes(const Descriptor& engine) {
    int values[32];
    int64_t count = engine.Get(abi::kEngineNumericalNotes, abi::kTypeNumericalNote, 32, values);
    numerical.insert(values, values + std::clamp<int64_t>(count, 0, 32));
    count = engine.Get(abi::kEngineBehaviorNotes, abi::kTypeBehaviorNote, 32, values);
    behavior.insert(values, values + std::clamp<int64_t>(count, 0, 32));
  }
  bool Has(abi::NumericalNote note) const { return numerical.count(note) != 0; }
  bool is_compiled_here() const { return behavior.count(abi::kNoteRuntimeCompilation) != 0; }
  bool is_deterministic() const { return !Has(abi::kNoteNondeterministic); }
  // cuDNN's engine that can do everything, tens of times slower than any other.
  bool is_reference() const { return Has(abi::kNoteStrictNanPropagation) && !Has(abi::kNoteTensorCore); }

  // Why the engine is left out for a problem; null where it is not.
  const char* Objection(const PlanText& text, const Problem& problem, bool has_epilogue) const {
    if (Has(abi::kNoteReducedPrecisionReduction)) return "it accumulates in less than fp32";
    for (const Fault& fault : kFaults)
      if (fault.engine == text.engine && fault.direction == problem.direction && fault.has(problem))
        return fault.reason;
    if (MayCutFactors(problem, text)) return "it cuts factors off where TF32 ends, as was measured";
    // What it computes in is fp32: such a result that is read again is kept in registers, and not written, which shows
    // where the memory is not that of a right run before (4 and 7 in fp16, others in TF32). No engine is asked.
    if (has_epilogue && MayLoseResult(problem))
      return "it leaves one of several results in fp32 unwritten, as was measured";
    // All that are asked for dX of one pixel in groups; what reads no tiles does not.
    if (problem.direction == Direction::kDataGradient && IsOnePixelInGroups(problem) && Has(abi::kNoteTensorCore))
      return kReadsBehindGroups;
    if (Has(abi::kNoteWinograd) || Has(abi::kNoteFft))
      return "a NaN or infinity spreads to elements that do not see it";
    const bool is_exact = !Has(abi::kNoteTensorCore) && !Has(abi::kNoteDownConvertInputs);
    if (problem.dtype == DType::kFloat && !problem.allow_tf32 && !is_exact)
      return "it rounds the operands of products and allow_tf32 is 0";
    // These pay in no case: a plan without the epilogue, and a kernel after it, is faster, up to a hundred times.
    if (has_epilogue && is_reference()) return "cuDNN's reference engine is slower than an epilogue apart";
    if (has_epilogue && !Has(abi::kNoteTensorCore) && IsSlowWithoutTensorCores(problem.dtype, is_compiled_here()))
      return "without tensor cores it is slower than an epilogue apart";
    return nullptr;
  }
};

struct Candidate {
  PlanText text;
  Notes notes;
};

std::vector<Candidate> Propose(const Graph& graph, abi::HeuristicMode mode) {
  std::vector<Candidate> candidates;
  const bool has_identity = HasIdentity(graph.problem());
  try {
    Descriptor heuristic(abi::kHeuristic);
    heuristic.SetDescriptor(abi::kHeuristicGraph, graph.descriptor());
    heuristic.SetEnum(abi::kHeuristicMode, abi::kTypeHeuristicMode, mode);
    heuristic.Finalize("a heuristic");
    const int64_t count = heuristic.Get(abi::kHeuristicResults, abi::kTypeDescriptor, 0, nullptr);
    std::deque<Descriptor> configurations;
    std::vector<abi::RawDescriptor> raw;
    for (int64_t i = 0; i < count; ++i) raw.push_back(configurations.emplace_back(abi::kEngineConfiguration).raw());
    const int64_t given = heuristic.Get(abi::kHeuristicResults, abi::kTypeDescriptor, count, raw.data());
    for (int64_t i = 0; i < std::min(count, given); ++i) {
      const Descriptor& configuration = configurations[size_t(i)];
      const Descriptor engine(abi::kEngine);
      abi::RawDescriptor raw_engine = engine.raw();
      configuration.Get(abi::kConfigurationEngine, abi::kTypeDescriptor, 1, &raw_engine);
      PlanText text{};
      engine.Get(abi::kEngineIndex, abi::kTypeInt64, 1, &text.engine);
      // Asked for none, cuDNN says that there are none: so offer room for more than there can be.
      std::deque<Descriptor> choices;
      std::vector<abi::RawDescriptor> raw_choices;
      for (size_t k = 0; k < kMaxKnobs; ++k) raw_choices.push_back(choices.emplace_back(abi::kKnobChoice).raw());
      const int64_t knobs =
        configuration.Get(abi::kConfigurationKnobChoices, abi::kTypeDescriptor, int64_t(kMaxKnobs), raw_choices.data());
      while (int64_t(choices.size()) > std::max<int64_t>(knobs, 0)) choices.pop_back();
      for (const Descriptor& choice : choices) {
        int type = 0;
        int64_t value = 0;
        choice.Get(abi::kKnobChoiceType, abi::kTypeKnob, 1, &type);
        choice.Get(abi::kKnobChoiceValue, abi::kTypeInt64, 1, &value);
        text.knobs.emplace_back(type, value);
      }
      text.has_identity = has_identity;
      std::sort(text.knobs.begin(), text.knobs.end());
      candidates.push_back({std::move(text), Notes(engine)});
    }
  } catch (const std::runtime_error&) {
    // A heuristic that can't judge this graph proposes nothing; the next one may.
  }
  return candidates;
}

class GraphPlan : public Plan {
 public:
  // Throws Refused or Error where cuDNN can't build it.
  GraphPlan(std::shared_ptr<const Graph> graph, const Target& target, PlanText text)
    : graph_(std::move(graph)), device_(target.device), text_(std::move(text)) {
    engine_.SetDescriptor(abi::kEngineGraph, graph_->descriptor());
    engine_.SetInt64(abi::kEngineIndex, text_.engine);
    engine_.Finalize("the engine");
    const Notes notes(engine_);
    if (const char* objection = notes.Objection(text_, graph_->problem(), graph_->HasEpilogue()))
      throw Refused("engine " + std::to_string(text_.engine) + " is left out: " + objection);
    is_deterministic_ = notes.is_deterministic();
    is_compiled_here_ = notes.is_compiled_here();
    std::vector<abi::RawDescriptor> raw;
    for (const auto& [type, value] : text_.knobs) {
      Descriptor& choice = choices_.emplace_back(abi::kKnobChoice);
      choice.SetEnum(abi::kKnobChoiceType, abi::kTypeKnob, int(type));
      choice.SetInt64(abi::kKnobChoiceValue, value);
      choice.Finalize("a knob");
      raw.push_back(choice.raw());
    }
    configuration_.SetDescriptor(abi::kConfigurationEngine, engine_);
    if (!raw.empty()) configuration_.SetDescriptors(abi::kConfigurationKnobChoices, raw);
    configuration_.Finalize("the engine's knobs");
    plan_.SetHandle(abi::kPlanHandle, target.handle);
    plan_.SetDescriptor(abi::kPlanConfiguration, configuration_);
    plan_.Finalize("the plan");
    int64_t bytes = 0;
    plan_.Get(abi::kPlanWorkspaceSize, abi::kTypeInt64, 1, &bytes);
    workspace_bytes_ = size_t(std::max<int64_t>(bytes, 0));
  }

  const PlanText& text() const override { return text_; }
  size_t workspace_bytes() const override { return workspace_bytes_; }
  bool is_deterministic() const override { return is_deterministic_; }
  bool is_compiled_here() const override { return is_compiled_here_; }
  bool is_captured() const override { return is_captured_; }

  void Run(cuda::Stream stream, const Arguments& arguments) const override {
    const Problem& problem = graph_->problem();
    try {
      const std::vector<const void*> addresses = graph_->Addresses(arguments);
      CheckAlignment(arguments);
      const cuda::ContextScope scope(device_);
      if (!is_captured_.load(std::memory_order_relaxed) && cuda::IsCapturing(device_, stream)) is_captured_ = true;
      const HandleLoan handle(device_, stream);
      Descriptor pack(abi::kVariantPack);
      pack.SetInt64s(abi::kVariantPackUniqueIds, graph_->ids());
      pack.Set(abi::kVariantPackPointers, abi::kTypePointer, int64_t(addresses.size()), addresses.data());
      pack.Set(abi::kVariantPackWorkspace, abi::kTypePointer, 1, &arguments.workspace);
      pack.Finalize("the addresses");
      cuda::LaunchForeign(device_, stream, [&] {
        CheckStatus(Library().cudnnBackendExecute(handle.get(), plan_.raw(), pack.raw()), "cudnnBackendExecute");
      });
    } catch (const std::runtime_error& error) {
      Fail(error.what(), "; plan ", text_.ToString(), " of ", problem.ToString());
    }
  }

 private:
  void CheckAlignment(const Arguments& arguments) const {
    const Problem& problem = graph_->problem();
    const auto check = [&](const void* address) {
      if (reinterpret_cast<uintptr_t>(address) % static_cast<uintptr_t>(problem.alignment) != 0)
        Fail("the address ", address, " is not aligned to ", problem.alignment, " bytes");
    };
    for (const void* input : arguments.inputs) check(input);
    for (size_t i = 0; i < problem.operands.size(); ++i) check(arguments.operands[i]);
    for (size_t i = 0; i < std::max<size_t>(problem.results.size(), 1); ++i) check(arguments.results[i]);
  }

  std::shared_ptr<const Graph> graph_;
  const DeviceFacts& device_;
  PlanText text_;
  Descriptor engine_{abi::kEngine};
  std::deque<Descriptor> choices_;
  Descriptor configuration_{abi::kEngineConfiguration};
  Descriptor plan_{abi::kPlan};
  size_t workspace_bytes_ = 0;
  bool is_deterministic_ = true, is_compiled_here_ = false;
  mutable std::atomic<bool> is_captured_{false};
};

// Why an epilogue is known not to be worth a plan whose kernels are compiled for it on this GPU: the convolution alone,
// and a pointwise kernel after it, is faster. Null where it may be, and where nothing was measured.
const char* WhyApart(const Graph& graph, const Target& target) {
  const MeasuredGpu* const measured = FindTarget(target.device);
  if (!graph.HasEpilogue() || measured == nullptr) return nullptr;
  const TargetLimits& limits = measured->limits;
  if (limits.cudnn_erf_apart != 0 && HasErf(*graph.problem().program))
    return "Gelu and Erf are faster apart than in the kernels that cuDNN compiles";
  if (IsSlowWithEpilogue(graph.problem(), limits))
    return "strided data gradients like this are faster without an epilogue";
  if (graph.problem().direction == Direction::kForward &&
    HasLongSums(graph.problem(), limits, target.device.multiprocessors))
    return "long sums for few elements are faster without an epilogue";
  return nullptr;
}

constexpr abi::HeuristicMode kModes[] = {abi::kHeuristicA, abi::kHeuristicB, abi::kHeuristicFallback};

}  // namespace

void ForEachCandidate(const Graph& graph, const std::function<bool(const PlanText&, bool)>& visit) {
  std::set<std::string> seen;
  std::vector<Candidate> nondeterministic, reference;
  for (const abi::HeuristicMode mode : kModes) {
    for (Candidate& candidate : Propose(graph, mode)) {
      if (candidate.notes.Objection(candidate.text, graph.problem(), graph.HasEpilogue()) != nullptr ||
        !seen.insert(candidate.text.ToString()).second)
        continue;
      if (candidate.notes.is_reference()) {
        reference.push_back(std::move(candidate));
      } else if (!candidate.notes.is_deterministic()) {
        nondeterministic.push_back(std::move(candidate));
      } else if (visit(candidate.text, candidate.notes.is_compiled_here())) {
        return;
      }
    }
  }
  for (const std::vector<Candidate>* candidates : {&nondeterministic, &reference})
    for (const Candidate& candidate : *candidates)
      if (visit(candidate.text, candidate.notes.is_compiled_here())) return;
}

Found Search(const Target& target, const Problem& problem, size_t workspace_limit, const PlanText* text) {
  const MeasuredGpu* const measured = FindTarget(target.device);
  if (text == nullptr && measured != nullptr &&
    IsFasterWithIdentity(problem, measured->limits, target.device.multiprocessors)) {
    Found found = Search(target, WithIdentity(problem), workspace_limit, nullptr);
    if (found.plan != nullptr && found.plan->is_deterministic()) return found;
  }
  if (text != nullptr && text->has_identity && !HasIdentity(problem)) {
    if (!TakesIdentity(problem))
      return {nullptr, "an identity follows only convolutions and data gradients in 16 bits without an epilogue"};
    return Search(target, WithIdentity(problem), workspace_limit, text);
  }
  std::shared_ptr<const Graph> graph;
  try {
    graph = std::make_shared<const Graph>(problem, target.handle);
  } catch (const Refused& refused) {
    return {nullptr, refused.what()};
  }
  Found found;
  size_t tried = 0, too_large = 0;
  std::string first;
  const char* apart = text == nullptr ? WhyApart(*graph, target) : nullptr;
  if (apart != nullptr && HasErf(*problem.program))
    return {nullptr, apart};  // which no engine has that is not compiled here
  const auto attempt = [&](const PlanText& candidate, bool is_compiled_here) {
    if (is_compiled_here && apart != nullptr) return false;
    ++tried;
    try {
      auto plan = std::make_shared<const GraphPlan>(graph, target, candidate);
      if (plan->workspace_bytes() <= workspace_limit) {
        found.plan = std::move(plan);
        return true;
      }
      ++too_large;
      if (first.empty())
        first = "plan " + candidate.ToString() + " needs a workspace of " + std::to_string(plan->workspace_bytes()) +
          " bytes, more than " + std::to_string(workspace_limit);
    } catch (const std::runtime_error& error) {  // this plan can't be built, the next one may
      if (first.empty()) first = "plan " + candidate.ToString() + ": " + error.what();
    }
    return false;
  };
  if (text != nullptr)
    attempt(*text, false);
  else
    ForEachCandidate(*graph, attempt);
  if (found.plan == nullptr)
    found.refusal = tried == 0 ? apart != nullptr ? apart : "cuDNN's heuristics propose no plan"
                               : "none of " + std::to_string(tried) + " plans can be used (" +
        std::to_string(too_large) + " for their workspace); " + first;
  return found;
}

}  // namespace ortplugin::cudnn
