// The scatter operators on the CPU: what docs/operators.md says, in the order of the updates.
//
// Every index is checked before anything is written. Then, slot s being the elements [s * width, (s + 1) * width):
//   - a slice writes its units in any order, no two of them to one slot;
//   - narrow units are applied one after another by one thread, as the formula says;
//   - the others, and 16-bit sums, which are rounded once at their end, are linked: each unit to the next one of its
//     slot. The first unit of each slot then applies them all, so that slots are independent and threads share them.

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <type_traits>

#include "ortplugin/ops/scatter/scatter.h"
#include "ortplugin/runtime/half.h"

namespace ortplugin {
namespace {

constexpr int64_t kTaskBytes = 256 << 10;  // worth a thread's waking
constexpr int64_t kTaskUnits = 16384;
constexpr int64_t kWideBytes = 256;  // of a unit, from which linking pays for the threads that it lets in

int64_t Pieces(int64_t count, int64_t each) { return (count + each - 1) / each; }

// Calls body(first, last) for ranges of at most `each` that make up [0, count).
template <typename Body>
void InParallel(Run& run, int64_t count, int64_t each, const Body& body) {
  const int64_t pieces = Pieces(count, each);
  if (pieces <= 1) return body(int64_t{0}, count);
  run.parallel_for(static_cast<size_t>(pieces), [&](size_t piece) {
    const int64_t first = static_cast<int64_t>(piece) * each;
    body(first, std::min(count, first + each));
  });
}

// ---- arithmetic -----------------------------------------------------------------------------------------------------

struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

// What a dtype is folded in.
template <typename T>
struct Precise {
  using Type = T;
  static T Load(T value) { return value; }
  static T Store(T value) { return value; }
};
template <>
struct Precise<Half> {
  using Type = float;
  static float Load(Half value) { return HalfToFloat(value.bits); }
  static Half Store(float value) { return {FloatToHalf(value)}; }
};
template <>
struct Precise<BFloat16> {
  using Type = float;
  static float Load(BFloat16 value) { return BFloat16ToFloat(value.bits); }
  static BFloat16 Store(float value) { return {FloatToBFloat16(value)}; }
};
template <typename T>
constexpr bool kIsPrecise = std::is_same_v<T, typename Precise<T>::Type>;

// IEEE 754-2019's minimum and maximum: NaN if either is NaN, -0 less than +0.
template <Reduction reduction, typename T>
ORTPLUGIN_INLINE T Extreme(T a, T b) {
  constexpr bool kMinimum = reduction == Reduction::kMin;
  if constexpr (std::is_floating_point_v<T>) {
    using Bits = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
    const Bits x = BitCast<Bits>(a), y = BitCast<Bits>(b);
    const T ordered = (kMinimum ? a < b : a > b) ? a : b;
    const T number = a == b ? BitCast<T>(kMinimum ? x | y : x & y) : ordered;  // equal, but perhaps zeros
    return a != a || b != b ? std::numeric_limits<T>::quiet_NaN() : number;
  } else {
    return (kMinimum ? b < a : a < b) ? b : a;
  }
}

template <Reduction reduction, typename T>
ORTPLUGIN_INLINE T Fold(T a, T b) {
  if constexpr (reduction == Reduction::kMin || reduction == Reduction::kMax) {
    return Extreme<reduction>(a, b);
  } else if constexpr (std::is_floating_point_v<T>) {
    return reduction == Reduction::kAdd ? a + b : a * b;
  } else {  // modulo 2^bits; small integers would be multiplied as signed ones
    using Wide = std::conditional_t<(sizeof(T) < 4), uint32_t, std::make_unsigned_t<T>>;
    const auto x = static_cast<Wide>(a), y = static_cast<Wide>(b);
    return static_cast<T>(reduction == Reduction::kAdd ? x + y : x * y);
  }
}

// ---- units and their slots ------------------------------------------------------------------------------------------

// The sum of terms for consecutive units, `step` apart as long as a run lasts.
struct Line {
  int64_t first, step;
};
Line LineAt(const std::vector<Term>& terms, int64_t unit) {
  Line line{0, 0};
  for (const Term& term : terms) {
    line.first += term.At(unit);
    if (term.divisor == 1) line.step += term.stride;
  }
  return line;
}

// For how many units a term goes on evenly. Units count axes in row-major order, so shorter runs divide longer ones.
int64_t RunOf(const std::vector<Term>& terms, int64_t run) {
  for (const Term& term : terms) {
    if (term.divisor > 1) run = std::min(run, term.divisor);
    if (term.divisor == 1 && term.modulus > 0) run = std::min(run, term.modulus);
  }
  return run;
}

// Calls body(unit, count) for the runs in [first, last), of at most `length` units each.
template <typename Body>
void ForRuns(int64_t length, int64_t first, int64_t last, const Body& body) {
  for (int64_t unit = first; unit < last;) {
    const int64_t count = std::min(last, (unit / length + 1) * length) - unit;
    body(unit, count);
    unit += count;
  }
}

std::string PositionOf(int64_t offset, const Shape& shape) {
  Shape position(shape.size());
  for (size_t axis = shape.size(); axis-- > 0; offset /= shape[axis]) position[axis] = offset % shape[axis];
  return ToString(position);
}

// The slot of each unit, from indices. Sets *invalid where one is out of range.
template <typename Index>
void FindSlots(const ScatterShape& fit, const Index* indices, int64_t first, int64_t last, int64_t* slots,
               std::atomic<bool>* invalid) {
  const size_t components = fit.components.size();
  bool bad = false;
  ForRuns(RunOf(fit.index, RunOf(fit.base, fit.units)), first, last, [&](int64_t unit, int64_t count) {
    const Line base = LineAt(fit.base, unit), index = LineAt(fit.index, unit);
    for (int64_t i = 0; i < count; ++i) slots[unit + i] = base.first + i * base.step;
    for (size_t c = 0; c < components; ++c) {
      const int64_t size = fit.components[c].size, stride = fit.components[c].stride;
      const Index* from = indices + index.first + static_cast<int64_t>(c);
      for (int64_t i = 0; i < count; ++i) {
        const int64_t given = from[i * index.step];
        const int64_t value = given < 0 ? given + size : given;
        bad |= static_cast<uint64_t>(value) >= static_cast<uint64_t>(size);
        slots[unit + i] += value * stride;
      }
    }
  });
  if (bad) *invalid = true;
}

// Says which index is out of range, the first one.
template <typename Index>
[[noreturn]] void FailOnIndex(const ScatterShape& fit, const Index* indices, const Shape& shape, int64_t first_axis) {
  for (int64_t unit = 0; unit < fit.units; ++unit) {
    int64_t offset = 0;
    for (const Term& term : fit.index) offset += term.At(unit);
    for (size_t c = 0; c < fit.components.size(); ++c, ++offset) {
      const int64_t size = fit.components[c].size, value = indices[offset];
      if (value >= -size && value < size) continue;
      Fail("the index ", value, " at ", PositionOf(offset, shape), " of indices is out of range: axis ",
           first_axis + static_cast<int64_t>(c), " of data has size ", size, ", so that it must be from ", -size,
           " to ", size - 1);
    }
  }
  Fail("the indices changed while the operator ran");
}

// ---- units of one slot, linked --------------------------------------------------------------------------------------

// For each unit the next one of its slot, or -1, and whether it is the first of them.
template <typename Id>
class Links {
 public:
  Links(const std::vector<int64_t>& slots, int64_t slot_count) : next_(slots.size()), is_first_(slots.size(), 1) {
    const auto units = static_cast<int64_t>(slots.size());
    // Where slots are few a table of them all, else a hash table, at most half full.
    if (slot_count <= 8 * units) {
      std::vector<Id> last(static_cast<size_t>(slot_count), Id{-1});
      for (int64_t unit = 0; unit < units; ++unit) Append(unit, &last[static_cast<size_t>(slots[At(unit)])]);
      return;
    }
    int bits = 1;
    while ((int64_t{1} << bits) < 2 * units) ++bits;
    std::vector<Id> last(size_t{1} << bits, Id{-1});
    for (int64_t unit = 0; unit < units; ++unit) {
      const int64_t slot = slots[At(unit)];
      size_t place = static_cast<size_t>(static_cast<uint64_t>(slot) * 0x9e3779b97f4a7c15u >> (64 - bits));
      while (last[place] >= 0 && slots[At(last[place])] != slot) place = (place + 1) & (last.size() - 1);
      Append(unit, &last[place]);
    }
  }

  bool IsFirst(int64_t unit) const { return is_first_[At(unit)] != 0; }
  int64_t Next(int64_t unit) const { return next_[At(unit)]; }

 private:
  static size_t At(int64_t unit) { return static_cast<size_t>(unit); }
  void Append(int64_t unit, Id* last) {
    if (*last >= 0) {
      next_[At(*last)] = static_cast<Id>(unit);
      is_first_[At(unit)] = 0;
    }
    next_[At(unit)] = -1;
    *last = static_cast<Id>(unit);
  }

  std::vector<Id> next_;
  std::vector<uint8_t> is_first_;
};

// As if every unit had a slot of its own.
struct NoLinks {
  bool IsFirst(int64_t) const { return true; }
  int64_t Next(int64_t) const { return -1; }
};

// ---- the kernel -----------------------------------------------------------------------------------------------------

class CpuScatter : public Kernel {
 public:
  CpuScatter(ScatterKind kind, const NodeInfo& info) : attributes_(ScatterAttributes::Parse(kind, info)) {
    CheckScatterNode(attributes_, info);
  }

  void Compute(Run& run) const override {
    const Tensor data = run.input(0), updates = run.input(attributes_.updates()),
                 indices = run.input(attributes_.indices());
    const bool is_slice = attributes_.kind == ScatterKind::kSlice;
    CheckScatterTypes(attributes_, is_slice ? std::vector<ort::ElementType>{data.type, updates.type, indices.type}
                                            : std::vector<ort::ElementType>{data.type, indices.type, updates.type});
    const ScatterShape fit =
        FitScatter(attributes_, is_slice ? std::vector<Shape>{data.shape, updates.shape, indices.shape}
                                         : std::vector<Shape>{data.shape, indices.shape, updates.shape});
    Work work{run, fit, data.type, static_cast<int64_t>(ScatterBytes(data.type)), nullptr, nullptr, {}, {}};
    if (!fit.is_empty()) is_slice ? CheckStarts(work, indices, updates) : FindAllSlots(work, indices);

    work.out = static_cast<char*>(run.output(0, fit.shape));
    const int64_t bytes = fit.elements * work.size, update_bytes = ElementCount(updates.shape) * work.size;
    work.updates = static_cast<const char*>(updates.data);
    std::vector<char> kept;
    if (update_bytes > 0 && work.updates < work.out + bytes && work.out < work.updates + update_bytes) {
      kept.assign(work.updates, work.updates + update_bytes);
      work.updates = kept.data();
    }
    if (work.out != data.data) {
      const char* from = static_cast<const char*>(data.data);
      InParallel(run, bytes, kTaskBytes, [&](int64_t first, int64_t last) {
        std::memcpy(work.out + first, from + first, static_cast<size_t>(last - first));
      });
    }
    if (fit.is_empty()) return;
    if (is_slice) return WriteSlice(work);
    if (attributes_.reduction == Reduction::kNone) return Assign(work);
    ForType(work);
  }

 private:
  // One run.
  struct Work {
    Run& run;
    const ScatterShape& fit;
    ort::ElementType type;
    int64_t size;  // bytes of an element
    char* out;
    const char* updates;
    std::vector<int64_t> starts;  // UpdateSlice; from the front
    std::vector<int64_t> slots;   // of each unit, else
  };

  void CheckStarts(Work& work, const Tensor& tensor, const Tensor& updates) const {
    const auto* starts = static_cast<const int64_t*>(tensor.data);
    for (size_t c = 0; c < attributes_.axes.size(); ++c) {
      const int64_t axis = attributes_.axes[c], size = work.fit.components[c].size, step = attributes_.steps[c];
      const int64_t count = updates.shape[static_cast<size_t>(axis)], span = (count - 1) * step;  // fits: see FitSlice
      const int64_t lowest = span < 0 ? -span : 0, highest = size - 1 - (span > 0 ? span : 0);
      const int64_t start = starts[c] < 0 ? starts[c] + size : starts[c];
      if (start < lowest || start > highest)
        Fail("starts[", c, "] is ", starts[c], ", from where ", count, " elements at step ", step, " leave axis ", axis,
             " of data, whose size is ", size, ": it must be from ", lowest, " to ", highest, " or from ",
             lowest - size, " to ", highest - size);
      work.starts.push_back(start);
    }
  }

  void FindAllSlots(Work& work, const Tensor& tensor) const {
    work.slots.resize(static_cast<size_t>(work.fit.units));
    if (tensor.type == ort::kInt32) {
      FindAllSlots(work, static_cast<const int32_t*>(tensor.data), tensor.shape);
    } else {
      FindAllSlots(work, static_cast<const int64_t*>(tensor.data), tensor.shape);
    }
  }
  template <typename Index>
  void FindAllSlots(Work& work, const Index* indices, const Shape& shape) const {
    std::atomic<bool> invalid{false};
    InParallel(work.run, work.fit.units, kTaskUnits, [&](int64_t first, int64_t last) {
      FindSlots(work.fit, indices, first, last, work.slots.data(), &invalid);
    });
    if (!invalid) return;
    const auto rank = static_cast<int64_t>(work.fit.shape.size());
    const int64_t axis = attributes_.axis < 0 ? attributes_.axis + rank : attributes_.axis;
    FailOnIndex(work.fit, indices, shape, attributes_.kind == ScatterKind::kElements ? axis : 0);
  }

  // A strided copy, run by run.
  static void WriteSlice(Work& work) {
    switch (work.size) {
      case 1:
        return WriteSlice<1>(work);
      case 2:
        return WriteSlice<2>(work);
      case 4:
        return WriteSlice<4>(work);
      case 8:
        return WriteSlice<8>(work);
      default:
        return WriteSlice<16>(work);
    }
  }
  template <size_t size>
  static void WriteSlice(Work& work) {
    const ScatterShape& fit = work.fit;
    int64_t length = RunOf(fit.update, RunOf(fit.base, fit.units));
    for (const ScatterShape::Component& component : fit.components) length = RunOf({component.steps}, length);
    const size_t bytes = static_cast<size_t>(fit.width) * size;
    const int64_t each = std::max<int64_t>(1, kTaskBytes / static_cast<int64_t>(bytes));
    InParallel(work.run, fit.units, each, [&](int64_t first, int64_t last) {
      ForRuns(length, first, last, [&](int64_t unit, int64_t count) {
        Line slot = LineAt(fit.base, unit);
        for (size_t c = 0; c < fit.components.size(); ++c) {
          const ScatterShape::Component& component = fit.components[c];
          const Line steps = LineAt({component.steps}, unit);
          slot.first += (work.starts[c] + steps.first) * component.stride;
          slot.step += steps.step * component.stride;
        }
        const Line update = LineAt(fit.update, unit);
        char* to = work.out + slot.first * static_cast<int64_t>(bytes);
        const char* from = work.updates + update.first * static_cast<int64_t>(size);
        if (slot.step == 1 && update.step == fit.width)  // one after another on both sides
          return std::memcpy(to, from, bytes * static_cast<size_t>(count)), void();
        const int64_t to_step = slot.step * static_cast<int64_t>(bytes);
        const int64_t from_step = update.step * static_cast<int64_t>(size);
        if (fit.width == 1) {
          for (int64_t i = 0; i < count; ++i) std::memcpy(to + i * to_step, from + i * from_step, size);
        } else {
          for (int64_t i = 0; i < count; ++i) std::memcpy(to + i * to_step, from + i * from_step, bytes);
        }
      });
    });
  }

  // Calls body(links) with the units of each slot linked.
  template <typename Body>
  void Linked(const Work& work, const Body& body) const {
    if (attributes_.unique || work.fit.units == 1) return body(NoLinks{});
    if (work.fit.units <= std::numeric_limits<int32_t>::max()) return body(Links<int32_t>(work.slots, work.fit.slots));
    body(Links<int64_t>(work.slots, work.fit.slots));
  }

  // Calls body(unit, first column, columns) for all that the units write, in pieces that threads share.
  template <typename Body>
  static void ForPieces(const Work& work, const Body& body) {
    const int64_t width = work.fit.width, columns = std::min(width, kTaskBytes / work.size);
    const int64_t pieces = Pieces(width, columns);
    const int64_t each = std::max<int64_t>(1, kTaskBytes / (columns * work.size));
    InParallel(work.run, work.fit.units * pieces, each, [&](int64_t first, int64_t last) {
      for (int64_t item = first; item < last; ++item) {
        const int64_t unit = pieces == 1 ? item : item / pieces, column = (item - unit * pieces) * columns;
        body(unit, column, std::min(width - column, columns));
      }
    });
  }

  void Assign(Work& work) const {
    const int64_t bytes = work.fit.width * work.size;
    if (bytes >= kWideBytes) {
      return Linked(work, [&](const auto& links) {
        ForPieces(work, [&](int64_t unit, int64_t column, int64_t columns) {
          if (links.Next(unit) >= 0) return;  // a later one stays
          std::memcpy(work.out + work.slots[static_cast<size_t>(unit)] * bytes + column * work.size,
                      work.updates + unit * bytes + column * work.size, static_cast<size_t>(columns * work.size));
        });
      });
    }
    switch (bytes) {
      case 1:
        return AssignInOrder<1>(work);
      case 2:
        return AssignInOrder<2>(work);
      case 4:
        return AssignInOrder<4>(work);
      case 8:
        return AssignInOrder<8>(work);
      case 16:
        return AssignInOrder<16>(work);
      default:
        for (int64_t unit = 0; unit < work.fit.units; ++unit)
          std::memcpy(work.out + work.slots[static_cast<size_t>(unit)] * bytes, work.updates + unit * bytes,
                      static_cast<size_t>(bytes));
    }
  }
  template <size_t bytes>
  static void AssignInOrder(Work& work) {
    const size_t units = work.slots.size();
    for (size_t unit = 0; unit < units; ++unit)
      std::memcpy(work.out + work.slots[unit] * static_cast<int64_t>(bytes), work.updates + unit * bytes, bytes);
  }

  template <typename T, Reduction reduction>
  void Reduce(Work& work) const {
    using Wide = typename Precise<T>::Type;
    auto* out = reinterpret_cast<T*>(work.out);
    const auto* updates = reinterpret_cast<const T*>(work.updates);
    const int64_t width = work.fit.width;
    if constexpr (kIsPrecise<T>) {
      if (width * work.size < kWideBytes) {
        for (int64_t unit = 0; unit < work.fit.units; ++unit) {
          T* to = out + work.slots[static_cast<size_t>(unit)] * width;
          for (int64_t j = 0; j < width; ++j) to[j] = Fold<reduction>(to[j], updates[unit * width + j]);
        }
        return;
      }
    }
    Linked(work, [&](const auto& links) {
      ForPieces(work, [&](int64_t first, int64_t column, int64_t columns) {
        if (!links.IsFirst(first)) return;
        T* to = out + work.slots[static_cast<size_t>(first)] * width + column;
        const T* from = updates + column;
        constexpr int64_t kBlock = 512;
        Wide folded[kBlock];
        for (int64_t block = 0; block < columns; block += kBlock) {
          const int64_t count = std::min(columns - block, kBlock);
          for (int64_t j = 0; j < count; ++j) folded[j] = Precise<T>::Load(to[block + j]);
          for (int64_t unit = first; unit >= 0; unit = links.Next(unit)) {
            const T* update = from + unit * width + block;
            for (int64_t j = 0; j < count; ++j) folded[j] = Fold<reduction>(folded[j], Precise<T>::Load(update[j]));
          }
          for (int64_t j = 0; j < count; ++j) to[block + j] = Precise<T>::Store(folded[j]);
        }
      });
    });
  }

  template <typename T>
  void ForReduction(Work& work) const {
    switch (attributes_.reduction) {
      case Reduction::kAdd:
        return Reduce<T, Reduction::kAdd>(work);
      case Reduction::kMul:
        return Reduce<T, Reduction::kMul>(work);
      case Reduction::kMin:
        return Reduce<T, Reduction::kMin>(work);
      default:
        return Reduce<T, Reduction::kMax>(work);
    }
  }

  void ForType(Work& work) const {
    switch (work.type) {
      case ort::kFloat16:
        return ForReduction<Half>(work);
      case ort::kBFloat16:
        return ForReduction<BFloat16>(work);
      case ort::kFloat:
        return ForReduction<float>(work);
      case ort::kDouble:
        return ForReduction<double>(work);
      case ort::kInt8:
        return ForReduction<int8_t>(work);
      case ort::kInt16:
        return ForReduction<int16_t>(work);
      case ort::kInt32:
        return ForReduction<int32_t>(work);
      case ort::kInt64:
        return ForReduction<int64_t>(work);
      case ort::kUInt8:
        return ForReduction<uint8_t>(work);
      case ort::kUInt16:
        return ForReduction<uint16_t>(work);
      case ort::kUInt32:
        return ForReduction<uint32_t>(work);
      case ort::kUInt64:
        return ForReduction<uint64_t>(work);
      default:
        Fail(NameOfOrt(work.type), " has no reduction");
    }
  }

  ScatterAttributes attributes_;
};

}  // namespace

std::unique_ptr<Kernel> CreateCpuScatter(ScatterKind kind, const NodeInfo& info) {
  return std::make_unique<CpuScatter>(kind, info);
}

}  // namespace ortplugin
