#include "ortplugin/runtime/cudnn/cudnn.h"

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "ortplugin/runtime/cudnn/graph.h"
#include "ortplugin/runtime/cudnn/library.h"
#include "ortplugin/runtime/cudnn/plan.h"
#include "ortplugin/runtime/cudnn/pointwise.h"
#include "ortplugin/runtime/cudnn/problem.h"

namespace ortplugin::cudnn {
namespace {

// Runs `body` with the device's context, a handle, and leave to load and allocate.
template <typename Body>
auto OnDevice(const DeviceFacts& device, const Body& body) {
  Library();  // its Error first, before the driver's
  const cuda::ContextScope scope(device);
  const cuda::RelaxedCaptureScope relaxed;
  const HandleLoan handle(device, nullptr);
  return body(Target{cuda::Device(device.ordinal), handle.get()});
}

// What was asked once.
struct Answer {
  std::mutex mutex;
  bool is_known = false;
  Found found;
  uint64_t last_use = 0;
};
using Answers = std::map<std::string, std::shared_ptr<Answer>>;  // by question

// Takes out half of the answers that nobody holds, those that were unused for longest. What a CUDA graph has captured
// stays: a graph holds no plan.
Answers TakeUnused(Answers* answers) {
  std::vector<Answers::iterator> unused;
  for (auto answer = answers->begin(); answer != answers->end(); ++answer) {
    if (answer->second.use_count() > 1) continue;
    const std::lock_guard<std::mutex> lock(answer->second->mutex);  // so that what its last holder wrote is seen
    const std::shared_ptr<const Plan>& plan = answer->second->found.plan;
    if (plan == nullptr || (plan.use_count() == 1 && !plan->is_captured())) unused.push_back(answer);
  }
  std::sort(unused.begin(), unused.end(),
    [](const Answers::iterator& a, const Answers::iterator& b) { return a->second->last_use < b->second->last_use; });
  unused.resize((unused.size() + 1) / 2);
  Answers taken;
  for (const Answers::iterator& answer : unused) taken.insert(answers->extract(answer));
  return taken;
}

// Makes room where a device has kMostAnswers.
std::shared_ptr<Answer> AnswerFor(const DeviceFacts& device, const std::string& question) {
  static auto* const mutex = new std::mutex;
  static auto* const devices = new std::map<int, Answers>;
  static uint64_t uses = 0;
  Answers dropped;
  std::shared_ptr<Answer> answer;
  {
    const std::lock_guard<std::mutex> lock(*mutex);
    Answers& answers = (*devices)[device.ordinal];
    if (answers.size() >= kMostAnswers && answers.count(question) == 0) dropped = TakeUnused(&answers);
    std::shared_ptr<Answer>& place = answers[question];
    if (place == nullptr) place = std::make_shared<Answer>();
    place->last_use = ++uses;
    answer = place;
  }
  if (!dropped.empty()) {
    // Kernels that cuDNN compiled are unloaded with their plans.
    const cuda::ContextScope scope(device);
    const cuda::RelaxedCaptureScope relaxed;
    dropped.clear();
  }
  return answer;
}

// A few threads that build plans; they end when there is nothing to do.
class Builders {
 public:
  void Add(std::function<void()> task) {
    const std::lock_guard<std::mutex> lock(mutex_);
    tasks_.push_back(std::move(task));
    const size_t most = std::clamp<size_t>(std::thread::hardware_concurrency() / 2, 1, 8);
    if (threads_ >= most) return;
    KeepLibrary();
    try {
      std::thread([this] { Work(); }).detach();
      ++threads_;
    } catch (const std::system_error&) {
      // No thread to be had: whoever needs the plan builds it.
    }
  }

  // Drops what has not begun and waits for the rest, before what the threads use is torn down.
  void Stop() {
    std::unique_lock<std::mutex> lock(mutex_);
    tasks_.clear();
    // Not for ever: in a process that was forked meanwhile, they don't run.
    idle_.wait_for(lock, std::chrono::seconds(10), [this] { return threads_ == 0; });
  }

 private:
  // The code that the threads run must not be unloaded with the session that started them.
  static void KeepLibrary() {
    Dl_info info;
    if (dladdr(reinterpret_cast<const void*>(&KeepLibrary), &info) != 0 && info.dli_fname != nullptr)
      dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
  }

  void Work() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!tasks_.empty()) {
      const std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
      lock.lock();
    }
    --threads_;
    idle_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable idle_;
  std::deque<std::function<void()>> tasks_;
  size_t threads_ = 0;
};

Builders& TheBuilders() {
  static auto* const builders = [] {
    std::atexit([] { TheBuilders().Stop(); });
    return new Builders;
  }();
  return *builders;
}

// All that cuDNN's heuristics propose.
std::vector<PlanText> Propose(const Target& target, const Problem& problem) {
  std::vector<PlanText> texts;
  try {
    const Graph graph(problem, target.handle);
    ForEachCandidate(graph, [&](const PlanText& text, bool) {
      texts.push_back(text);
      return false;
    });
  } catch (const Refused&) {
    texts.clear();  // no graph, no plans
  }
  return texts;
}

// The first of each list, then the second ones, and so on, each once.
std::vector<PlanText> Alternate(const std::vector<std::vector<PlanText>>& lists) {
  std::vector<PlanText> all;
  std::set<std::string> seen;
  size_t longest = 0;
  for (const std::vector<PlanText>& list : lists) longest = std::max(longest, list.size());
  for (size_t i = 0; i < longest; ++i)
    for (const std::vector<PlanText>& list : lists)
      if (i < list.size() && seen.insert(list[i].ToString()).second) all.push_back(list[i]);
  return all;
}

}  // namespace

std::string RefusalOf(const Program& program) {
  std::string why;
  return MapProgram(program, &why) ? "" : why;
}

bool HasErf(const Program& program) {
  std::string why;
  const std::optional<PointwiseGraph> mapped = MapProgram(program, &why);
  return mapped && std::any_of(mapped->nodes.begin(), mapped->nodes.end(), [](const PointwiseNode& node) {
    return node.mode == abi::PointwiseMode::kGelu || node.mode == abi::PointwiseMode::kErf;
  });
}

Found FindPlan(const DeviceFacts& device, const Problem& problem, size_t workspace_limit, const PlanText* text) {
  Check(problem);
  const std::shared_ptr<Answer> answer = AnswerFor(device,
    std::to_string(workspace_limit) + " " + (text == nullptr ? "" : text->ToString()) + " " + Signature(problem));
  const std::lock_guard<std::mutex> lock(answer->mutex);
  if (!answer->is_known) {
    answer->found =
      OnDevice(device, [&](const Target& target) { return Search(target, problem, workspace_limit, text); });
    answer->is_known = true;
  }
  return answer->found;
}

void Prepare(const DeviceFacts& device, const Problem& problem, size_t workspace_limit, const PlanText* text) {
  const auto wanted = text == nullptr ? nullptr : std::make_shared<const PlanText>(*text);
  TheBuilders().Add([device, problem, workspace_limit, wanted] {
    try {
      FindPlan(device, problem, workspace_limit, wanted.get());
    } catch (const std::exception&) {
      // The FindPlan that follows meets it again, where somebody is told.
    }
  });
}

std::vector<PlanText> ListPlans(
  const DeviceFacts& device, const Problem& problem, size_t workspace_limit, size_t most) {
  Check(problem);
  std::vector<std::vector<PlanText>> proposed;
  OnDevice(device, [&](const Target& target) {
    proposed.push_back(Propose(target, problem));
    if (!TakesIdentity(problem)) return;
    proposed.push_back(Propose(target, WithIdentity(problem)));
    // The tiles that suit the same sums of a forward convolution suit a gradient's too, but are not proposed for it.
    if (const std::optional<Problem> turned = Rotated180(problem))
      proposed.back() = Alternate({proposed.back(), Propose(target, WithIdentity(*turned))});
  });
  for (const std::vector<PlanText>& texts : proposed)
    for (size_t i = 0; i < std::min(most, texts.size()); ++i)
      Prepare(device, problem, workspace_limit, &texts[i]);  // several at a time
  for (std::vector<PlanText>& texts : proposed) {
    std::vector<PlanText> built;
    for (const PlanText& text : texts) {
      if (built.size() == most) break;
      const Found found = FindPlan(device, problem, workspace_limit, &text);
      if (found.plan != nullptr && found.plan->is_deterministic()) built.push_back(text);
    }
    texts = std::move(built);
  }
  return Alternate(proposed);
}

}  // namespace ortplugin::cudnn
