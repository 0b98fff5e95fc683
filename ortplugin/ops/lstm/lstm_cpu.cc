// FusedLSTM on the CPU: each direction of a few sequences by itself, on ORT's threads. A step adds R's columns to the
// gates, four at a time for each sequence, and then computes the states as a pointwise program.

#include <algorithm>

#include "ortplugin/ops/lstm/lstm.h"
#include "ortplugin/runtime/half.h"
#include "ortplugin/runtime/host_memory.h"
#include "ortplugin/runtime/program/evaluator.h"
#include "ortplugin/runtime/round_up.h"
#include "ortplugin/runtime/x86_level.h"

namespace ortplugin {
namespace {

constexpr int64_t kGates = 4, kSequences = 8, kColumns = 4;
constexpr const char* kStates =
  "(float i, float o, float f, float g, float c) => (float d, float h) {"
  "  si = Sigmoid(i) tg = Tanh(g) added = Mul(si, tg) sf = Sigmoid(f) kept = Mul(sf, c) d = Add(kept, added)"
  "  so = Sigmoid(o) td = Tanh(d) h = Mul(so, td) }";

// sums[i] += scales[0] x[i] + scales[1] x[i + count] + .., one after the other: the same lane by lane whatever the
// vectors.
ORTPLUGIN_INLINE void AddScaled(
  const float* x, const float* scales, int64_t columns, float* __restrict sums, int64_t count) {
  if (columns < kColumns) {
    for (int64_t k = 0; k < columns; ++k)
      for (int64_t i = 0; i < count; ++i) sums[i] += scales[k] * x[k * count + i];
    return;
  }
  const float *const x1 = x + count, *const x2 = x1 + count, *const x3 = x2 + count;
  const float a0 = scales[0], a1 = scales[1], a2 = scales[2], a3 = scales[3];
  for (int64_t i = 0; i < count; ++i) sums[i] = sums[i] + a0 * x[i] + a1 * x1[i] + a2 * x2[i] + a3 * x3[i];
}
using Loop = void (*)(const float*, const float*, int64_t, float*, int64_t);
#define ORTPLUGIN_LOOP(Name, attribute) \
  attribute void Add##Name(const float* x, const float* scales, int64_t columns, float* sums, int64_t count) { \
    AddScaled(x, scales, columns, sums, count); \
  }
ORTPLUGIN_LOOP(Baseline, )
#if defined(__x86_64__) && defined(__GNUC__)
ORTPLUGIN_LOOP(Avx2, __attribute__((target("avx2"))))
ORTPLUGIN_LOOP(Avx512, __attribute__((target("avx512f"))))
#endif
#undef ORTPLUGIN_LOOP

Loop ChooseLoop() {
#if defined(__x86_64__) && defined(__GNUC__)
  static const int level = X86Level();
  if (level >= 4) return AddAvx512;
  if (level >= 3) return AddAvx2;
#endif
  return AddBaseline;
}

// One run.
class Recurrence {
 public:
  Recurrence(const LstmAttributes& attributes, const LstmRun& lstm)
    : attributes_(attributes), lstm_(lstm), hidden_(attributes.hidden), size_(int64_t(SizeOf(attributes.dtype))) {
    // R[d, gate, unit, k] as columns[d, gate, k, unit].
    const int64_t matrices = attributes.directions() * kGates;
    HostVector<float> r(size_t(matrices * hidden_ * hidden_));
    LoadLanes(attributes.dtype, lstm.r, r.size(), r.data());
    columns_.resize(r.size());
    for (int64_t matrix = 0; matrix < matrices; ++matrix)
      for (int64_t k = 0; k < hidden_; ++k)
        for (int64_t unit = 0; unit < hidden_; ++unit)
          columns_[size_t((matrix * hidden_ + k) * hidden_ + unit)] =
            r[size_t((matrix * hidden_ + unit) * hidden_ + k)];
  }

  // One direction of the sequences from `first` on.
  void Compute(int64_t d, int64_t first) const {
    const int64_t steps = lstm_.shape.steps, width = attributes_.directions() * hidden_;
    const int64_t count = std::min(kSequences, lstm_.shape.batch - first), all = count * hidden_;
    HostVector<float> memory(size_t((kGates + 2) * all + kGates * hidden_));
    float *const gates = memory.data(), *const h = gates + kGates * all, *const c = h + all, *const loaded = c + all;
    const int64_t state = (d * lstm_.shape.batch + first) * hidden_;
    if (lstm_.h0 != nullptr) {
      Load(lstm_.h0, state, all, h);
      Load(lstm_.c0, state, all, c);
    }
    Evaluator::Workspace workspace(evaluator_);
    for (int64_t step = 0; step < steps; ++step) {
      const int64_t t = attributes_.is_reverse(d) ? steps - 1 - step : step;
      for (int64_t s = 0; s < count; ++s) {
        Load(lstm_.g, (lstm_.shape.Row(first + s, t) * width + d * hidden_) * kGates, kGates * hidden_, loaded);
        for (int64_t gate = 0; gate < kGates; ++gate)
          for (int64_t unit = 0; unit < hidden_; ++unit)
            gates[gate * all + s * hidden_ + unit] = loaded[unit * kGates + gate];
      }
      AddProducts(d, h, count, gates);
      Advance(gates, all, h, c, workspace);
      for (int64_t s = 0; s < count; ++s) {  // h as it is read again
        const char* const y =
          Store(lstm_.y, lstm_.shape.Row(first + s, t) * width + d * hidden_, hidden_, h + s * hidden_);
        LoadLanes(attributes_.dtype, y, size_t(hidden_), h + s * hidden_);
      }
    }
    if (lstm_.y_h != nullptr) Store(lstm_.y_h, state, all, h);
    if (lstm_.y_c != nullptr) Store(lstm_.y_c, state, all, c);
  }

 private:
  void AddProducts(int64_t d, const float* h, int64_t count, float* gates) const {
    for (int64_t gate = 0; gate < kGates; ++gate)
      for (int64_t k = 0; k < hidden_; k += kColumns)
        for (int64_t s = 0; s < count; ++s)
          add_(columns_.data() + ((d * kGates + gate) * hidden_ + k) * hidden_, h + s * hidden_ + k,
            std::min(kColumns, hidden_ - k), gates + (gate * count + s) * hidden_, hidden_);
  }

  void Advance(const float* gates, int64_t all, float* h, float* c, Evaluator::Workspace& workspace) const {
    for (int64_t at = 0; at < all; at += int64_t(kBlock)) {
      for (int64_t gate = 0; gate < kGates; ++gate)
        workspace.Bind(program_.parameters()[size_t(gate)], gates + gate * all + at);
      workspace.Bind(program_.parameters()[kGates], c + at);
      workspace.Bind(program_.results()[0], c + at);
      workspace.Bind(program_.results()[1], h + at);
      evaluator_.Run(workspace, size_t(std::min<int64_t>(kBlock, all - at)));
    }
  }

  void Load(const void* tensor, int64_t first, int64_t count, float* lanes) const {
    LoadLanes(attributes_.dtype, static_cast<const char*>(tensor) + first * size_, size_t(count), lanes);
  }
  char* Store(void* tensor, int64_t first, int64_t count, const float* lanes) const {
    char* const to = static_cast<char*>(tensor) + first * size_;
    StoreLanes(attributes_.dtype, lanes, size_t(count), to);
    return to;
  }

  const LstmAttributes& attributes_;
  const LstmRun& lstm_;
  int64_t hidden_, size_;
  HostVector<float> columns_;
  const Program program_ = Program::Parse(kStates);
  const Evaluator evaluator_{program_, program_.Closure(program_.results(), program_.parameters())};
  const Loop add_ = ChooseLoop();
};

class CpuLstm : public Kernel {
 public:
  explicit CpuLstm(const NodeInfo& info) : attributes_(LstmAttributes::Parse(info)) {}

  void Compute(Run& run) const override {
    const LstmRun lstm = PrepareLstm(attributes_, run, true);
    const int64_t groups = DivideUp(lstm.shape.batch, kSequences);
    if (groups == 0) return;
    const Recurrence recurrence(attributes_, lstm);
    run.parallel_for(size_t(attributes_.directions() * groups), [&](size_t task) {
      const auto number = int64_t(task);
      recurrence.Compute(number / groups, number % groups * kSequences);
    });
  }

 private:
  LstmAttributes attributes_;
};

}  // namespace

std::unique_ptr<Kernel> CreateCpuLstm(const NodeInfo& info) { return std::make_unique<CpuLstm>(info); }

}  // namespace ortplugin
