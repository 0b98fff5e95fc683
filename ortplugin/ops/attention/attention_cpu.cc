// FusedAttention on the CPU, with the online softmax of Milakov and Gimelshein ("Online normalizer calculation for
// softmax", 2018) over blocks of keys, as FlashAttention has it (Dao et al., 2022): for each block of queries
//
//   m' = max(m, max over the block of s)      p = exp(s - m')
//   l' = l exp(m - m') + sum of p             y' = y exp(m - m') + p V          at the end y / l
//
// Scores are kept transposed, a row for each key: then queries lie side by side, maxima and sums are loops over
// vectors, and K is the left operand of a product, which may lie anyhow. The products are cpu_gemm's.

#include <algorithm>
#include <cmath>
#include <cstring>
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
constexpr int64_t kColumns = 32;  // whose multiples cpu_gemm multiplies without copies
constexpr int64_t kFew = 4;  // queries, for which a product is not worth 32 columns
constexpr int64_t kTaskWork = 1 << 20;  // multiply-adds that are worth a task

// out[row * out_row + column * out_column] = the elements of a matrix that lies as `steps` says, as lanes.
template <typename T>
void LoadMatrix(DType dtype, const char* elements, int64_t row_step, int64_t column_step, int64_t rows, int64_t columns,
  T* out, int64_t out_row, int64_t out_column, std::vector<T>& line) {
  const auto size = int64_t(SizeOf(dtype));
  // Along the axis whose elements lie side by side.
  const bool by_rows = column_step == 1 || row_step != 1;
  if (!by_rows)
    return LoadMatrix(dtype, elements, column_step, row_step, columns, rows, out, out_column, out_row, line);
  line.resize(size_t(columns));
  for (int64_t row = 0; row < rows; ++row) {
    const char* first = elements + row * row_step * size;
    T* const target = out_column == 1 ? out + row * out_row : line.data();
    if (column_step == 1) {
      LoadLanes(dtype, first, size_t(columns), target);
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
        function_.evaluator_.Run(workspace_, size_t(std::min<int64_t>(kBlock, count - at)));
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

struct Tensors {
  const char *q, *k, *v, *mask, *cos, *sin, *past_key, *past_value;
  const int64_t* position;
  char *y, *present_key, *present_value;
};

// Rotates rows of Q or K, lanes, the first of which is at the position `first`, and rounds them to the dtype.
template <typename T>
class Rotation {
 public:
  Rotation(const AttentionProblem& problem, const Tensors& tensors) : p_(problem), tensors_(tensors) {}

  void Rotate(T* x, int64_t row_step, int64_t column_step, int64_t rows, int64_t batch, int64_t first) {
    const int64_t pairs = p_.pairs;
    const bool is_half = p_.rotary == AttentionProblem::Rotary::kHalf;
    line_.resize(size_t(4 * pairs));
    T *const cos = line_.data(), *const sin = cos + pairs, *const y = sin + pairs;
    uint16_t rounded[kMostHeadSize];
    for (int64_t i = 0; i < rows; ++i, x += row_step) {
      const int64_t at = batch * p_.rotary_batch + (first + i) * pairs;
      LoadTable(tensors_.cos, at, cos);
      LoadTable(tensors_.sin, at, sin);
      for (int64_t pair = 0; pair < pairs; ++pair) {
        const int64_t a = is_half ? pair : 2 * pair, b = is_half ? pair + pairs : a + 1;
        const T left = x[a * column_step], right = x[b * column_step];
        y[a] = left * cos[pair] - right * sin[pair];
        y[b] = right * cos[pair] + left * sin[pair];
      }
      if (SizeOf(p_.dtype) == 2) {
        StoreLanes(p_.dtype, y, size_t(2 * pairs), rounded);
        LoadLanes(p_.dtype, rounded, size_t(2 * pairs), y);
      }
      for (int64_t d = 0; d < 2 * pairs; ++d) x[d * column_step] = y[d];
    }
  }

 private:
  // `pairs` elements of cos or sin from an offset on.
  void LoadTable(const char* table, int64_t at, T* lanes) const {
    const char* const elements = table + at * int64_t(SizeOf(p_.rotary_dtype));
    if (std::is_same_v<T, double> && p_.rotary_dtype == DType::kFloat) {
      std::copy_n(reinterpret_cast<const float*>(elements), p_.pairs, lanes);
    } else {
      LoadLanes(p_.rotary_dtype, elements, size_t(p_.pairs), lanes);
    }
  }

  const AttentionProblem& p_;
  const Tensors& tensors_;
  std::vector<T> line_;
};

// One block of queries of one head.
template <typename T>
class Block {
 public:
  Block(const AttentionProblem& problem, const Tensors& tensors, const Function<T>& exp, const Function<T>& tanh)
    : p_(problem),
      tensors_(tensors),
      rotation_(problem, tensors_),
      exp_(exp),
      tanh_(tanh),
      width_(RoundUp(problem.value_size, kColumns)) {
    const int64_t queries = std::min(kQueries, RoundUp(p_.queries, kColumns)), keys = std::min(kKeys, p_.keys);
    const auto make = [](HostVector<T>& memory, int64_t count) { memory.resize(size_t(count)); };
    make(q_, queries * p_.head_size);
    make(k_, keys * p_.head_size);
    make(v_, keys * width_);
    make(s_, keys * queries);
    make(weights_, keys * queries);
    make(y_, queries * width_);
  }

  void Compute(int64_t batch, int64_t head, int64_t first) {
    batch_ = batch;
    head_ = head;
    first_ = first;
    rows_ = std::min(kQueries, p_.queries - first);
    pitch_ = rows_ <= kFew ? rows_ : RoundUp(rows_, kColumns);
    const int64_t row = rows_ <= kFew ? p_.head_size : 1, column = rows_ <= kFew ? 1 : pitch_;
    if (rows_ > kFew) std::fill(q_.begin(), q_.end(), T(0));
    LoadMatrix(p_.dtype, At(tensors_.q, p_.q, head, first), p_.q.row, p_.q.column, rows_, p_.head_size, q_.data(), row,
      column, line_);
    if (p_.is_rotary()) rotation_.Rotate(q_.data(), row, column, rows_, batch, first);
    std::fill(y_.begin(), y_.end(), T(0));
    std::fill(std::begin(most_), std::end(most_), -kInfinity);
    std::fill(std::begin(sum_), std::end(sum_), T(0));
    int64_t key = 0, last = p_.keys;  // what the block's queries see
    if (p_.causal != AttentionProblem::Causal::kNone) {
      last = std::clamp<int64_t>(first + rows_ + p_.last_seen(batch), 0, p_.keys);
      if (p_.window > 0) key = std::max<int64_t>(0, first + p_.last_seen(batch) - p_.window + 1);
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
    return tensor + (view.offset + batch_ * view.batch + head * view.head + row * view.row) * int64_t(SizeOf(p_.dtype));
  }

  // s_[j, i]: of key `key` + j and query `first_` + i, in rows of pitch_.
  void Scores(int64_t key, int64_t count) {
    const char* const elements = At(tensors_.k, p_.k, head_ / p_.group(), key);
    const bool in_place = SizeOf(p_.dtype) == sizeof(T) && !p_.rotates_keys();
    const T* k = in_place ? reinterpret_cast<const T*>(elements) : k_.data();
    const int64_t row = in_place ? p_.k.row : p_.head_size, column = in_place ? p_.k.column : 1;
    if (!in_place) LoadMatrix(p_.dtype, elements, p_.k.row, p_.k.column, count, p_.head_size, k_.data(), row, 1, line_);
    if (p_.rotates_keys()) rotation_.Rotate(k_.data(), row, 1, count, batch_, key);
    if (rows_ <= kFew) {
      for (int64_t j = 0; j < count; ++j)
        for (int64_t i = 0; i < rows_; ++i)
          s_[j * pitch_ + i] = Dot(k + j * row, column, q_.data() + i * p_.head_size, p_.head_size);
    } else {
      std::fill_n(s_.data(), count * pitch_, T(0));
      Multiply<T>(count, pitch_, p_.head_size, k, row, column, q_.data(), pitch_, s_.data(), pitch_);
    }
    const auto scale = static_cast<T>(p_.scale), softcap = static_cast<T>(p_.softcap);
    T* const s = s_.data();
    const int64_t all = count * pitch_;
    for (int64_t at = 0; at < all; ++at) s[at] *= scale;
    if (p_.softcap > 0) {
      for (int64_t at = 0; at < all; ++at) s[at] /= softcap;
      tanh_.Apply(s, weights_.data(), all);
      for (int64_t at = 0; at < all; ++at) s[at] = weights_[at] * softcap;
    }
    if (p_.has_mask) Mask(key, count);
    if (p_.causal == AttentionProblem::Causal::kNone) return;
    for (int64_t j = 0; j < count; ++j) {
      // The queries that see the key: from `begin` on, and before `end`.
      const int64_t begin = key + j - p_.last_seen(batch_) - first_, end = p_.window > 0 ? begin + p_.window : pitch_;
      T* const of_key = s + j * pitch_;
      std::fill_n(of_key, std::clamp<int64_t>(begin, 0, pitch_), -kInfinity);
      const int64_t behind = std::clamp<int64_t>(end, 0, pitch_);
      std::fill(of_key + behind, of_key + pitch_, -kInfinity);
    }
  }

  // The sum of x[d * step] y[d], in as many sums as a vector has lanes.
  static T Dot(const T* x, int64_t step, const T* y, int64_t count) {
    constexpr int64_t kLanes = 16;
    T sums[kLanes] = {};
    int64_t d = 0;
    if (step == 1)
      for (; d + kLanes <= count; d += kLanes)
        for (int64_t lane = 0; lane < kLanes; ++lane) sums[lane] += x[d + lane] * y[d + lane];
    for (; d < count; ++d) sums[d % kLanes] += x[d * step] * y[d];
    T sum = 0;
    for (const T each : sums) sum += each;
    return sum;
  }

  void Mask(int64_t key, int64_t count) {
    const View& view = p_.mask;
    const DType dtype = p_.mask_dtype;
    // Where all queries have one row of the mask, it is read once.
    const int64_t rows = view.row == 0 ? 1 : rows_;
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t offset = batch_ * view.batch + head_ * view.head + (first_ + i) * view.row + key * view.column;
      const char* const elements = tensors_.mask + offset * int64_t(SizeOf(dtype));
      alignas(64) double lanes[kKeys];  // of any dtype
      if (view.column == 1) {
        LoadLanes(dtype, elements, size_t(count), lanes);
      } else {
        FillLanes(dtype, elements, size_t(count), lanes);
      }
      const int64_t of_key = view.row == 0 ? rows_ : 1;
      for (int64_t j = 0; j < count; ++j) {
        T* const s = s_.data() + j * pitch_ + i;
        if (dtype == DType::kBool) {
          if (!reinterpret_cast<const uint8_t*>(lanes)[j]) std::fill_n(s, of_key, -kInfinity);
        } else {
          const T added = static_cast<T>(dtype == DType::kDouble ? lanes[j] : reinterpret_cast<const float*>(lanes)[j]);
          for (int64_t query = 0; query < of_key; ++query) s[query] += added;
        }
      }
    }
  }

  // The block's part of sums and results. A NaN is no maximum, but all that is made of its row.
  void Add(int64_t key, int64_t count) {
    alignas(64) T most[kQueries], base[kQueries], old[kQueries], factors[kQueries];
    T* const s = s_.data();
    std::copy_n(most_, pitch_, most);
    for (int64_t j = 0; j < count; ++j)
      for (int64_t i = 0; i < pitch_; ++i) most[i] = s[j * pitch_ + i] > most[i] ? s[j * pitch_ + i] : most[i];
    for (int64_t i = 0; i < pitch_; ++i) {
      base[i] = most[i] == -kInfinity ? T(0) : most[i];  // of nothing but -inf, exp(s) is 0
      old[i] = most_[i] - base[i];
    }
    std::copy_n(most, pitch_, most_);
    exp_.Apply(old, factors, pitch_);
    for (int64_t j = 0; j < count; ++j)
      for (int64_t i = 0; i < pitch_; ++i) s[j * pitch_ + i] -= base[i];
    exp_.Apply(s, weights_.data(), count * pitch_);
    for (int64_t i = 0; i < pitch_; ++i) sum_[i] *= factors[i];
    for (int64_t j = 0; j < count; ++j)
      for (int64_t i = 0; i < pitch_; ++i) sum_[i] += weights_[j * pitch_ + i];
    for (int64_t row = 0; row < rows_; ++row)
      for (int64_t e = 0; e < width_; ++e) y_[row * width_ + e] *= factors[row];
    if (SizeOf(p_.dtype) == 2) {
      uint16_t rounded[kBlock];
      for (int64_t at = 0; at < count * pitch_; at += kBlock) {
        const auto part = size_t(std::min<int64_t>(kBlock, count * pitch_ - at));
        StoreLanes(p_.dtype, weights_.data() + at, part, rounded);
        LoadLanes(p_.dtype, rounded, part, weights_.data() + at);
      }
    }
    const char* const elements = At(tensors_.v, p_.v, head_ / p_.group(), key);
    const bool in_place = SizeOf(p_.dtype) == sizeof(T) && p_.v.column == 1 && width_ == p_.value_size;
    if (!in_place)
      LoadMatrix(p_.dtype, elements, p_.v.row, p_.v.column, count, p_.value_size, v_.data(), width_, 1, line_);
    Multiply<T>(rows_, width_, count, weights_.data(), 1, pitch_,
      in_place ? reinterpret_cast<const T*>(elements) : v_.data(), in_place ? p_.v.row : width_, y_.data(), width_);
  }

  void Store() {
    const auto size = int64_t(SizeOf(p_.dtype));
    // Of weights that are 0 the sum is 0, or NaN where V is not finite, as ONNX's MatMul has it.
    const T nothing = p_.zero_where_nothing_is_seen() ? T(0) : std::numeric_limits<T>::quiet_NaN();
    for (int64_t row = 0; row < rows_; ++row) {
      T* const y = y_.data() + row * width_;
      for (int64_t e = 0; e < p_.value_size; ++e) y[e] = sum_[row] == 0 ? y[e] * nothing : y[e] / sum_[row];
      char* const to = const_cast<char*>(At(tensors_.y, p_.y, head_, first_ + row));
      if (p_.y.column == 1) {
        StoreLanes(p_.dtype, y, size_t(p_.value_size), to);
      } else {
        for (int64_t e = 0; e < p_.value_size; ++e) StoreLanes(p_.dtype, y + e, 1, to + e * p_.y.column * size);
      }
    }
  }

  const AttentionProblem& p_;
  Tensors tensors_;
  Rotation<T> rotation_;
  typename Function<T>::Workspace exp_, tanh_;
  int64_t width_;  // of a row of V and y, padded with zeros
  int64_t batch_ = 0, head_ = 0, first_ = 0, rows_ = 0, pitch_ = 0;  // pitch_: of a row of s, padded as well
  HostVector<T> q_, k_, v_, s_, weights_, y_;  // q_ is transposed, but for few queries
  std::vector<T> line_;
  T most_[kQueries], sum_[kQueries];  // m and l
};

template <typename T>
void Attend(Run& run, const AttentionProblem& problem, const Tensors& tensors) {
  static const auto* const exp = new Function<T>("Exp");
  static const auto* const tanh = new Function<T>("Tanh");
  const int64_t blocks = DivideUp(problem.queries, kQueries), all = problem.batch * problem.heads * blocks;
  if (all == 0) return;
  const double work =
    double(std::min(kQueries, problem.queries)) * double(problem.keys) * double(problem.head_size + problem.value_size);
  const int64_t step = std::max<int64_t>(1, int64_t(double(kTaskWork) / (work + 1)));
  run.parallel_for(size_t(DivideUp(all, step)), [&](size_t task) {
    Block<T> block(problem, tensors, *exp, *tanh);
    const int64_t first = int64_t(task) * step;
    for (int64_t number = first; number < std::min(all, first + step); ++number)
      block.Compute(number / blocks / problem.heads, number / blocks % problem.heads, number % blocks * kQueries);
  });
}

// A row of `size` elements, which lie `step` elements apart, to others.
void CopyRow(DType dtype, const char* from, int64_t from_step, char* to, int64_t to_step, int64_t size) {
  const auto width = int64_t(SizeOf(dtype));
  if (from_step == 1 && to_step == 1) {
    std::memcpy(to, from, size_t(size * width));
    return;
  }
  for (int64_t d = 0; d < size; ++d) std::memcpy(to + d * to_step * width, from + d * from_step * width, size_t(width));
}

// Past and new keys and values of one head to what is present; the new keys rotated.
template <typename T>
class Present {
 public:
  Present(const AttentionProblem& problem, const Tensors& tensors)
    : p_(problem), tensors_(tensors), rotation_(problem, tensors) {}

  void Write(int64_t batch, int64_t head) {
    Write(batch, head, p_.head_size, tensors_.past_key, p_.past_key, tensors_.k, p_.k, tensors_.present_key,
      p_.present_key, p_.is_rotary());
    Write(batch, head, p_.value_size, tensors_.past_value, p_.past_value, tensors_.v, p_.v, tensors_.present_value,
      p_.present_value, false);
  }

 private:
  void Write(int64_t batch, int64_t head, int64_t size, const char* past, const View& of_past, const char* added,
    const View& of_added, char* present, const View& of_present, bool rotates) {
    const auto at = [&](const View& view, int64_t row) {
      return (view.offset + batch * view.batch + head * view.head + row * view.row) * int64_t(SizeOf(p_.dtype));
    };
    // The caller may have given the cache's own memory to what is present.
    for (int64_t row = 0; row < p_.past && present != past; ++row)
      CopyRow(
        p_.dtype, past + at(of_past, row), of_past.column, present + at(of_present, row), of_present.column, size);
    const int64_t first = p_.has_position ? p_.positions[size_t(batch * p_.position_batch)] : p_.past;
    for (int64_t i = 0; i < p_.added; ++i) {
      const char* const from = added + at(of_added, i);
      char* const to = present + at(of_present, first + i);
      CopyRow(p_.dtype, from, of_added.column, to, of_present.column, size);
      if (rotates) Rotate(from, of_added.column, to, of_present.column, batch, i);
    }
  }

  // The elements of a row that are rotated.
  void Rotate(const char* from, int64_t from_step, char* to, int64_t to_step, int64_t batch, int64_t position) {
    const auto width = int64_t(SizeOf(p_.dtype));
    T lanes[kMostHeadSize];
    for (int64_t d = 0; d < 2 * p_.pairs; ++d) LoadLanes(p_.dtype, from + d * from_step * width, 1, lanes + d);
    rotation_.Rotate(lanes, 0, 1, 1, batch, position);
    for (int64_t d = 0; d < 2 * p_.pairs; ++d) StoreLanes(p_.dtype, lanes + d, 1, to + d * to_step * width);
  }

  const AttentionProblem& p_;
  const Tensors& tensors_;
  Rotation<T> rotation_;
};

template <typename T>
void Compute(Run& run, AttentionProblem problem, Tensors tensors) {
  if (!problem.has_past) return Attend<T>(run, problem, tensors);
  const int64_t positions = problem.has_position ? problem.position_batch * (problem.batch - 1) + 1 : 0;
  for (int64_t i = 0; i < positions; ++i) {
    const int64_t position = tensors.position[i], first = position < 0 ? position + problem.past : position;
    if (first < 0 || first > problem.past - problem.added)
      Fail("position is ", position, ", but ", problem.added, " rows from there on must be among the ", problem.past,
        " of the cache");
    problem.positions.push_back(first);
  }
  run.parallel_for(size_t(problem.batch * problem.kv_heads), [&](size_t task) {
    const auto both = int64_t(task);
    Present<T>(problem, tensors).Write(both / problem.kv_heads, both % problem.kv_heads);
  });
  tensors.k = tensors.present_key;
  tensors.v = tensors.present_value;
  Attend<T>(run, OverPresent(problem), tensors);
}

class CpuAttention : public Kernel {
 public:
  explicit CpuAttention(const NodeInfo& info) : attributes_(AttentionAttributes::Parse(info)) {
    CheckAttentionNode(attributes_, info);
  }

  void Compute(Run& run) const override {
    std::vector<Shape> shapes;
    const char* data[9] = {};
    for (size_t i = 0; i < attributes_.input_count(); ++i) {
      Tensor input = run.input(i);
      CheckAttentionType(attributes_, i, input.type);
      data[attributes_.RoleOf(i)] = static_cast<const char*>(input.data);
      shapes.push_back(std::move(input.shape));
    }
    const AttentionShape shape = FitAttention(attributes_, shapes);
    char* outputs[3] = {};
    for (size_t i = 0; i < shape.outputs.size(); ++i)
      outputs[i] = static_cast<char*>(run.output(i, shape.outputs[i], SizeOf(attributes_.dtype)));
    const Tensors tensors{data[0], data[1], data[2], data[3], data[4], data[5], data[6], data[7],
      reinterpret_cast<const int64_t*>(data[8]), outputs[0], outputs[1], outputs[2]};
    if (attributes_.dtype == DType::kDouble) {
      ortplugin::Compute<double>(run, shape.problem, tensors);
    } else {
      ortplugin::Compute<float>(run, shape.problem, tensors);
    }
  }

 private:
  AttentionAttributes attributes_;
};

}  // namespace

std::unique_ptr<Kernel> CreateCpuAttention(const NodeInfo& info) { return std::make_unique<CpuAttention>(info); }

}  // namespace ortplugin
