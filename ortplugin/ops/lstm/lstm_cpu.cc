// FusedLSTM on the CPU: each direction of each sequence by itself, on ORT's threads. A step's sums are those of R's
// columns, each gate's element of a unit beside the others as in G, so that its loop vectorises.

#include <algorithm>
#include <cmath>

#include "ortplugin/ops/lstm/lstm.h"
#include "ortplugin/runtime/host_memory.h"
#include "ortplugin/runtime/half.h"
#include "ortplugin/runtime/program/evaluator.h"
#include "ortplugin/runtime/x86_level.h"

namespace ortplugin {
namespace {

constexpr int64_t kGates = 4;

// sums[i] += scale x[i]; the same lane by lane whatever the vectors.
ORTPLUGIN_INLINE void AddScaled(const float* x, float scale, float* __restrict sums, int64_t count) {
  for (int64_t i = 0; i < count; ++i) sums[i] += scale * x[i];
}
using Loop = void (*)(const float*, float, float*, int64_t);
#define ORTPLUGIN_LOOP(Name, attribute) \
  attribute void Add##Name(const float* x, float scale, float* sums, int64_t count) { \
    AddScaled(x, scale, sums, count); \
  }
ORTPLUGIN_LOOP(Baseline, )
#if defined(__x86_64__) && defined(__GNUC__)
ORTPLUGIN_LOOP(Avx2, __attribute__((target("avx2"))))
#endif
#undef ORTPLUGIN_LOOP

Loop ChooseLoop() {
#if defined(__x86_64__) && defined(__GNUC__)
  static const int level = X86Level();
  if (level >= 3) return AddAvx2;
#endif
  return AddBaseline;
}

float Sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

class Recurrence {
 public:
  Recurrence(const LstmAttributes& attributes, const LstmRun& lstm)
    : attributes_(attributes),
      lstm_(lstm),
      hidden_(attributes.hidden),
      size_(static_cast<int64_t>(SizeOf(attributes.dtype))) {
    // R[d, gate, unit, k] as columns[d, k, unit, gate].
    const int64_t all = attributes.directions() * kGates * hidden_ * hidden_;
    HostVector<float> r(static_cast<size_t>(all));
    LoadLanes(attributes.dtype, lstm.r, r.size(), r.data());
    columns_.resize(r.size());
    for (int64_t d = 0; d < attributes.directions(); ++d)
      for (int64_t row = 0; row < kGates * hidden_; ++row)
        for (int64_t k = 0; k < hidden_; ++k)
          columns_[static_cast<size_t>(((d * hidden_ + k) * hidden_ + row % hidden_) * kGates + row / hidden_)] =
            r[static_cast<size_t>((d * kGates * hidden_ + row) * hidden_ + k)];
  }

  void Compute(int64_t d, int64_t sequence) const {
    const int64_t steps = lstm_.shape.steps, batch = lstm_.shape.batch, width = attributes_.directions() * hidden_;
    HostVector<float> memory(static_cast<size_t>((kGates + 2) * hidden_));
    float *const sums = memory.data(), *const h = sums + kGates * hidden_, *const c = h + hidden_;
    const int64_t state = (d * batch + sequence) * hidden_;
    if (lstm_.h0 != nullptr) {
      Load(lstm_.h0, state, hidden_, h);
      Load(lstm_.c0, state, hidden_, c);
    }
    const float* const columns = columns_.data() + d * hidden_ * hidden_ * kGates;
    for (int64_t step = 0; step < steps; ++step) {
      const int64_t t = attributes_.is_reverse(d) ? steps - 1 - step : step;
      const int64_t row = lstm_.shape.Row(sequence, t);
      Load(lstm_.g, (row * width + d * hidden_) * kGates, kGates * hidden_, sums);
      for (int64_t k = 0; k < hidden_; ++k) add_(columns + k * hidden_ * kGates, h[k], sums, kGates * hidden_);
      for (int64_t unit = 0; unit < hidden_; ++unit) {
        const float* const gates = sums + unit * kGates;  // i, o, f, c
        c[unit] = Sigmoid(gates[2]) * c[unit] + Sigmoid(gates[0]) * std::tanh(gates[3]);
        h[unit] = Sigmoid(gates[1]) * std::tanh(c[unit]);
      }
      char* const y = Store(lstm_.y, row * width + d * hidden_, h);
      LoadLanes(attributes_.dtype, y, static_cast<size_t>(hidden_), h);
    }
    if (lstm_.y_h != nullptr) Store(lstm_.y_h, state, h);
    if (lstm_.y_c != nullptr) Store(lstm_.y_c, state, c);
  }

 private:
  void Load(const void* tensor, int64_t first, int64_t count, float* lanes) const {
    LoadLanes(attributes_.dtype, static_cast<const char*>(tensor) + first * size_, static_cast<size_t>(count), lanes);
  }
  char* Store(void* tensor, int64_t first, const float* lanes) const {
    char* const to = static_cast<char*>(tensor) + first * size_;
    StoreLanes(attributes_.dtype, lanes, static_cast<size_t>(hidden_), to);
    return to;
  }

  const LstmAttributes& attributes_;
  const LstmRun& lstm_;
  int64_t hidden_, size_;
  HostVector<float> columns_;
  const Loop add_ = ChooseLoop();
};

class CpuLstm : public Kernel {
 public:
  explicit CpuLstm(const NodeInfo& info) : attributes_(LstmAttributes::Parse(info)) {}

  void Compute(Run& run) const override {
    const LstmRun lstm = PrepareLstm(attributes_, run, true);
    const int64_t tasks = attributes_.directions() * lstm.shape.batch;
    if (tasks == 0) return;
    const Recurrence recurrence(attributes_, lstm);
    run.parallel_for(static_cast<size_t>(tasks), [&](size_t task) {
      const auto number = static_cast<int64_t>(task);
      recurrence.Compute(number / lstm.shape.batch, number % lstm.shape.batch);
    });
  }

 private:
  LstmAttributes attributes_;
};

}  // namespace

std::unique_ptr<Kernel> CreateCpuLstm(const NodeInfo& info) { return std::make_unique<CpuLstm>(info); }

}  // namespace ortplugin
