// FusedAttention on the CPU, with the online softmax of Milakov and Gimelshein ("Online normalizer calculation for
// softmax", 2018) over blocks of keys, as FlashAttention has it (Dao et al., 2022): for each block of queries
//
//   m' = max(m, max over the block of s)      p = exp(s - m')
//   l' = l exp(m - m') + sum of p             y' = y exp(m - m') + p V          at the end y / l
//
// K and V become lanes, float or double, block by block; the products are cpu_gemm's.

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "ortplugin/ops/attention/attention.h"
#include "ortplugin/ops/conv_grad/cpu_gemm.h"
#include "ortplugin/runtime/host_memory.h"
#include "ortplugin/runtime/program/evaluator.h"
#include "ortplugin/runtime/round_up.h"

namespace ortplugin {
namespace {

using View = AttentionProblem::View;

constexpr int64_t kQueries = 64, kKeys = 64;  // of a block
constexpr int64_t kColumns = 32;              // whose multiples cpu_gemm multiplies without copies

// out[row * out_row + column * out_column] = the elements of a matrix that lies as `steps` says, as lanes.
template <typename T>
void LoadMatrix(DType dtype, const char* elements, int64_t row_step, int64_t column_step, int64_t rows, int64_t columns,
                T* out, int64_t out_row, int64_t out_column, std::vector<T>& line) {
  const auto size = static_cast<int64_t>(SizeOf(dtype));
  // Along the axis whose elements lie side by side.
  const bool by_rows = column_step == 1 || row_step != 1;
  if (!by_rows)
    return LoadMatrix(dtype, elements, column_step, row_step, columns, rows, out, out_column, out_row, line);
  line.resize(static_cast<size_t>(columns));
  for (int64_t row = 0; row < rows; ++row) {
    const char* first = elements + row * row_step * size;
    T* const target = out_column == 1 ? out + row * out_row : line.data();
    if (column_step == 1) {
      LoadLanes(dtype, first, static_cast<size_t>(columns), target);
    } else {
      for (int64_t column = 0; column < columns; ++column)
        LoadLanes(dtype, first + column * column_step * size, 1, target + column);
    }
    if (out_column != 1)
      for (int64_t column = 0; column < columns; ++column) out[row * out_row + column * out_column] = target[column];
  }
}

// A function of one operand, such as Exp, over many lanes.
template <typename T>
class Function {
 public:
  explicit Function(const std::string& op)
      : program_(Program::Parse("(" + Type() + " x) => (" + Type() + " y) { y = " + op + "(x) }")),
        evaluator_(program_, {0}) {}

  class Workspace {
   public:
    explicit Workspace(const Function& function) : function_(function), workspace_(function.evaluator_) {}
    void Apply(const T* x, T* y, int64_t count) {
      for (int64_t at = 0; at < count; at += kBlock) {
        workspace_.Bind(function_.program_.parameters()[0], x + at);
        workspace_.Bind(function_.program_.results()[0], y + at);
        function_.evaluator_.Run(workspace_, static_cast<size_t>(std::min<int64_t>(kBlock, count - at)));
      }
    }

   private:
    const Function& function_;
    Evaluator::Workspace workspace_;
  };

 private:
  static std::string Type() { return std::is_same_v<T, double> ? "double" : "float"; }
  Program program_;
  Evaluator evaluator_;
};

// One block of queries of one head.
template <typename T>
class Block {
 public:
  struct Tensors {
    const char *q, *k, *v, *mask;
    char* y;
  };
  Block(const AttentionProblem& problem, const Tensors& tensors, const Function<T>& exp, const Function<T>& tanh)
      : p_(problem), tensors_(tensors), exp_(exp), tanh_(tanh), width_(RoundUp(problem.value_size, kColumns)) {
    const auto make = [](HostVector<T>& memory, int64_t count) { memory.resize(static_cast<size_t>(count)); };
    make(q_, kQueries * p_.head_size);
    make(k_, p_.head_size * kKeys);
    make(v_, kKeys * width_);
    make(s_, kQueries * kKeys);
    make(weights_, kQueries * kKeys);
    make(y_, kQueries * width_);
  }

  void Compute(int64_t batch, int64_t head, int64_t first) {
    batch_ = batch;
    head_ = head;
    first_ = first;
    rows_ = std::min(kQueries, p_.queries - first);
    LoadMatrix(p_.dtype, At(tensors_.q, p_.q, head, first), p_.q.row, p_.q.column, rows_, p_.head_size, q_.data(),
               p_.head_size, 1, line_);
    std::fill(y_.begin(), y_.end(), T(0));
    std::fill(std::begin(most_), std::end(most_), -kInfinity);
    std::fill(std::begin(sum_), std::end(sum_), T(0));
    int64_t key = 0, last = p_.keys;  // what the block's queries see
    if (p_.causal != AttentionProblem::Causal::kNone) {
      last = std::clamp<int64_t>(first + rows_ + p_.last_seen(), 0, p_.keys);
      if (p_.window > 0) key = std::max<int64_t>(0, first + p_.last_seen() - p_.window + 1);
    }
    for (; key < last; key += kKeys) {
      const int64_t count = std::min(kKeys, last - key);
      Scores(key, count);
      Add(key, count);
    }
    Store();
  }

 private:
  static constexpr T kInfinity = std::numeric_limits<T>::infinity();

  const char* At(const char* tensor, const View& view, int64_t head, int64_t row) const {
    return tensor + (view.offset + batch_ * view.batch + head * view.head + row * view.row) *
                        static_cast<int64_t>(SizeOf(p_.dtype));
  }

  // s_ [rows, kKeys], -inf beyond `count` keys.
  void Scores(int64_t key, int64_t count) {
    std::fill(k_.begin(), k_.end(), T(0));
    LoadMatrix(p_.dtype, At(tensors_.k, p_.k, head_ / p_.group(), key), p_.k.row, p_.k.column, count, p_.head_size,
               k_.data(), 1, kKeys, line_);
    std::fill(s_.begin(), s_.end(), T(0));
    Multiply<T>(rows_, kKeys, p_.head_size, q_.data(), p_.head_size, 1, k_.data(), kKeys, s_.data(), kKeys);
    const auto scale = static_cast<T>(p_.scale), softcap = static_cast<T>(p_.softcap);
    const int64_t all = rows_ * kKeys;
    for (int64_t i = 0; i < all; ++i) s_[i] *= scale;
    if (p_.softcap > 0) {
      for (int64_t i = 0; i < all; ++i) s_[i] /= softcap;
      tanh_.Apply(s_.data(), weights_.data(), all);
      for (int64_t i = 0; i < all; ++i) s_[i] = weights_[i] * softcap;
    }
    for (int64_t row = 0; row < rows_; ++row) {
      T* const s = s_.data() + row * kKeys;
      if (p_.has_mask) Mask(row, key, count, s);
      std::fill(s + count, s + kKeys, -kInfinity);
      if (p_.causal == AttentionProblem::Causal::kNone) continue;
      const int64_t last = first_ + row + p_.last_seen() - key;  // of this block
      for (int64_t j = 0; j < count; ++j)
        if (j > last || (p_.window > 0 && j <= last - p_.window)) s[j] = -kInfinity;
    }
  }

  void Mask(int64_t row, int64_t key, int64_t count, T* s) {
    const View& view = p_.mask;
    const DType dtype = p_.mask_dtype;
    const int64_t offset = batch_ * view.batch + head_ * view.head + (first_ + row) * view.row + key * view.column;
    const char* const elements = tensors_.mask + offset * static_cast<int64_t>(SizeOf(dtype));
    alignas(64) double lanes[kKeys];  // of any dtype
    if (view.column == 1) {
      LoadLanes(dtype, elements, static_cast<size_t>(count), lanes);
    } else {
      FillLanes(dtype, elements, static_cast<size_t>(count), lanes);
    }
    if (dtype == DType::kBool) {
      const auto* seen = reinterpret_cast<const uint8_t*>(lanes);
      for (int64_t j = 0; j < count; ++j) s[j] = seen[j] ? s[j] : -kInfinity;
    } else if (dtype == DType::kDouble) {
      for (int64_t j = 0; j < count; ++j) s[j] += static_cast<T>(lanes[j]);
    } else {
      const auto* added = reinterpret_cast<const float*>(lanes);
      for (int64_t j = 0; j < count; ++j) s[j] += static_cast<T>(added[j]);
    }
  }

  // The block's part of sums and results. A NaN is no maximum, but all that is made of its row.
  void Add(int64_t key, int64_t count) {
    T old[kQueries], factors[kQueries];
    for (int64_t row = 0; row < rows_; ++row) {
      T* const s = s_.data() + row * kKeys;
      T most = most_[row];
      for (int64_t j = 0; j < kKeys; ++j) most = s[j] > most ? s[j] : most;
      const T base = most == -kInfinity ? T(0) : most;  // of nothing but -inf, exp(s) is 0
      for (int64_t j = 0; j < kKeys; ++j) s[j] -= base;
      old[row] = most_[row] - base;
      most_[row] = most;
    }
    exp_.Apply(old, factors, rows_);
    exp_.Apply(s_.data(), weights_.data(), rows_ * kKeys);
    for (int64_t row = 0; row < rows_; ++row) {
      T sum = 0;
      for (int64_t j = 0; j < kKeys; ++j) sum += weights_[row * kKeys + j];
      sum_[row] = sum_[row] * factors[row] + sum;
      T* const y = y_.data() + row * width_;
      for (int64_t e = 0; e < width_; ++e) y[e] *= factors[row];
    }
    if (SizeOf(p_.dtype) == 2) {
      uint16_t rounded[kKeys];
      for (int64_t row = 0; row < rows_; ++row) {
        StoreLanes(p_.dtype, weights_.data() + row * kKeys, kKeys, rounded);
        LoadLanes(p_.dtype, rounded, kKeys, weights_.data() + row * kKeys);
      }
    }
    std::fill(v_.begin(), v_.end(), T(0));
    LoadMatrix(p_.dtype, At(tensors_.v, p_.v, head_ / p_.group(), key), p_.v.row, p_.v.column, count, p_.value_size,
               v_.data(), width_, 1, line_);
    Multiply<T>(rows_, width_, count, weights_.data(), kKeys, 1, v_.data(), width_, y_.data(), width_);
  }

  void Store() {
    const auto size = static_cast<int64_t>(SizeOf(p_.dtype));
    const T nothing = p_.zero_where_nothing_is_seen() ? T(0) : std::numeric_limits<T>::quiet_NaN();
    for (int64_t row = 0; row < rows_; ++row) {
      T* const y = y_.data() + row * width_;
      for (int64_t e = 0; e < p_.value_size; ++e) y[e] = sum_[row] == 0 ? nothing : y[e] / sum_[row];
      char* const to = const_cast<char*>(At(tensors_.y, p_.y, head_, first_ + row));
      if (p_.y.column == 1) {
        StoreLanes(p_.dtype, y, static_cast<size_t>(p_.value_size), to);
      } else {
        for (int64_t e = 0; e < p_.value_size; ++e) StoreLanes(p_.dtype, y + e, 1, to + e * p_.y.column * size);
      }
    }
  }

  const AttentionProblem& p_;
  Tensors tensors_;
  typename Function<T>::Workspace exp_, tanh_;
  int64_t width_;  // of a row of V, padded with zeros
  int64_t batch_ = 0, head_ = 0, first_ = 0, rows_ = 0;
  HostVector<T> q_, k_, v_, s_, weights_, y_;
  std::vector<T> line_;
  T most_[kQueries], sum_[kQueries];  // m and l
};

template <typename T>
void Attend(Run& run, const AttentionProblem& problem, const typename Block<T>::Tensors& tensors) {
  static const auto* const exp = new Function<T>("Exp");
  static const auto* const tanh = new Function<T>("Tanh");
  const int64_t blocks = DivideUp(problem.queries, kQueries);
  run.parallel_for(static_cast<size_t>(problem.batch * problem.heads * blocks), [&](size_t task) {
    const auto number = static_cast<int64_t>(task);
    const int64_t head = number / blocks % problem.heads, batch = number / blocks / problem.heads;
    Block<T>(problem, tensors, *exp, *tanh).Compute(batch, head, number % blocks * kQueries);
  });
}

class CpuAttention : public Kernel {
 public:
  explicit CpuAttention(const NodeInfo& info) : attributes_(AttentionAttributes::Parse(info)) {
    CheckAttentionNode(attributes_, info);
  }

  void Compute(Run& run) const override {
    std::vector<Shape> shapes;
    const char* data[4] = {};
    for (size_t i = 0; i < attributes_.input_count(); ++i) {
      Tensor input = run.input(i);
      CheckAttentionType(attributes_, i, input.type);
      data[i] = static_cast<const char*>(input.data);
      shapes.push_back(std::move(input.shape));
    }
    const AttentionShape shape = FitAttention(attributes_, shapes);
    auto* const y = static_cast<char*>(run.output(0, shape.output, SizeOf(attributes_.dtype)));
    if (ElementCount(shape.output) == 0) return;
    if (attributes_.dtype == DType::kDouble) {
      Attend<double>(run, shape.problem, {data[0], data[1], data[2], data[3], y});
    } else {
      Attend<float>(run, shape.problem, {data[0], data[1], data[2], data[3], y});
    }
  }

 private:
  AttentionAttributes attributes_;
};

}  // namespace

std::unique_ptr<Kernel> CreateCpuAttention(const NodeInfo& info) { return std::make_unique<CpuAttention>(info); }

}  // namespace ortplugin
