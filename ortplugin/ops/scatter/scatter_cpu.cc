// The scatter operators on the CPU: what docs/operators.md says, in the order of the updates.
//
// Every index is checked before anything is written. Then, slot s being the elements [s * width, (s + 1) * width):
//   - a slice writes its units in any order, no two of them to one slot;
//   - units are applied one after another, by each thread for a part of the columns where units are wide, else for a
//     part of the slots, so that every element meets its updates in order;
//   - 16-bit sums, which are rounded once at their end, are taken in a copy of data in float; where that would be large
//     beside the updates, each unit is linked to the next one of its slot instead, and the first unit of each slot
//     applies them all.

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <limits>
#include <optional>
#include <type_traits>

#include "ortplugin/ops/scatter/scatter.h"
#include "ortplugin/runtime/half.h"
#include "ortplugin/runtime/host_memory.h"
#include "ortplugin/runtime/round_up.h"

namespace ortplugin {
namespace {

constexpr size_t kInputs = 3;
constexpr int64_t kTaskBytes = 256 << 10;  // worth a thread's waking
constexpr int64_t kTaskUnits = 8192;
constexpr int64_t kWideBytes = 1024;  // of a unit, from which threads share its columns
constexpr int64_t kPieceBytes = 512;  // the fewest of a unit that a thread takes
constexpr int64_t kMostParts = 8;  // of the slots; each reads all indices
constexpr int64_t kBlock = 1024;  // units whose slots are found at once

// Calls body(first, last) for ranges of at most `each` that make up [0, count). Returns how many ran at once.
int InParallel(Run& run, int64_t count, int64_t each, const std::function<void(int64_t, int64_t)>& body) {
  const int64_t pieces = DivideUp(count, each);
  if (pieces <= 1) {
    body(int64_t{0}, count);
    return 1;
  }
  std::atomic<int> running{0}, most{1};
  run.parallel_for(size_t(pieces), [&](size_t piece) {
    const int now = ++running;
    for (int known = most; now > known && !most.compare_exchange_weak(known, now);) continue;
    const int64_t first = int64_t(piece) * each;
    body(first, std::min(count, first + each));
    --running;
  });
  return most;
}

// ---- arithmetic

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
    const auto x = Wide(a), y = Wide(b);
    return T(reduction == Reduction::kAdd ? x + y : x * y);
  }
}

// ---- units and their slots

// Calls body(number) for every number of units at which one of the terms steps or wraps.
template <typename Body>
void ForBreaks(const std::vector<Term>& terms, const Body& body) {
  for (const Term& term : terms) {
    body(term.divisor);
    if (term.modulus > 0) body(term.divisor * term.modulus);
  }
}

int64_t SumAt(const std::vector<Term>& terms, int64_t unit) {
  int64_t sum = 0;
  for (const Term& term : terms) sum += term.At(unit);
  return sum;
}

// SumAt for the first units, without dividing for each.
std::vector<int64_t> SumsOf(const std::vector<Term>& terms, int64_t units) {
  std::vector<int64_t> sums(size_t(units), 0);
  for (const Term& term : terms) {
    int64_t units_left = term.divisor, steps_left = term.modulus, value = 0;
    for (int64_t& sum : sums) {
      sum += value;
      if (--units_left > 0) continue;
      units_left = term.divisor;
      value += term.stride;
      if (--steps_left == 0) {
        steps_left = term.modulus;
        value = 0;
      }
    }
  }
  return sums;
}

// Adds (or, for the first component, sets) `count` units' shares of their slots. `at` says where their indices are,
// `base` is null where it would hold zeros. False where an index is out of range.
template <bool is_first, typename Index, typename At>
ORTPLUGIN_INLINE bool AddComponent(const Index* indices, const At& at, const int64_t* base, int64_t first_item,
  int64_t count, int64_t size, int64_t stride, int64_t* slots) {
  bool bad = false;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t given = indices[at(i)];
    bad |= uint64_t(given) + uint64_t(size) >= uint64_t(size) * 2;
    // Unsigned: of an index that is out of range the slot is any number, which nobody uses.
    const uint64_t share = uint64_t(given < 0 ? given + size : given) * uint64_t(stride);
    const uint64_t before = uint64_t(is_first ? first_item + (base != nullptr ? base[i] : 0) : slots[i]);
    slots[i] = int64_t(before + share);
  }
  return !bad;
}

struct Block {
  int64_t first, count;  // units
  const int64_t* slots;  // theirs
};

// The units of a run, cut into blocks that all look alike: a block starts where the terms that step or wrap within it
// start anew, and ends before the others do. So what a block's units add to the sum at its start is known beforehand.
class Blocks {
 public:
  Blocks(const ScatterShape& fit, const Tensor& indices) : fit_(fit), indices_(indices) {
    int64_t inner = 1;
    const auto note = [&](int64_t units) {
      if (units <= kBlock) inner = std::max(inner, units);
      if (units > kBlock) even_ = even_ == 0 ? units : std::min(even_, units);
    };
    ForBreaks(fit.base, note);
    ForBreaks(fit.index, note);
    length_ = kBlock / inner * inner;
    const int64_t known = std::min(length_, fit.units);
    if (!fit.base.empty()) base_ = SumsOf(fit.base, known);
    is_even_ = fit.index.size() == 1 && fit.index[0].divisor == 1 && (fit.index[0].modulus == 0 || inner == 1);
    if (!is_even_) index_ = SumsOf(fit.index, known);
  }

  int64_t length() const { return length_; }  // of a block, in units, at most; all blocks start at its multiples

  // Calls body for the blocks of [first, last); `first` is a multiple of length(). False where an
  // index is out of range.
  bool ForEach(int64_t first, int64_t last, const std::function<void(const Block&)>& body) const {
    int64_t slots[kBlock];
    for (int64_t unit = first; unit < last;) {
      const int64_t left = even_ == 0 ? last : even_ - unit % even_;
      const int64_t count = std::min(std::min(length_, left), last - unit);
      const bool found =
        indices_.type == ort::kInt32 ? Find<int32_t>(unit, count, slots) : Find<int64_t>(unit, count, slots);
      if (!found) return false;
      body({unit, count, slots});
      unit += count;
    }
    return true;
  }

 private:
  template <typename Index>
  bool Find(int64_t unit, int64_t count, int64_t* slots) const {
    const Index* from = static_cast<const Index*>(indices_.data) + SumAt(fit_.index, unit);
    const int64_t first_item = SumAt(fit_.base, unit), step = is_even_ ? fit_.index[0].stride : 0;
    if (!is_even_) return Add(from, [&](int64_t i) { return index_[size_t(i)]; }, first_item, count, slots);
    if (step == 1) return Add(from, [](int64_t i) { return i; }, first_item, count, slots);
    return Add(from, [step](int64_t i) { return i * step; }, first_item, count, slots);
  }

  template <typename Index, typename At>
  bool Add(const Index* from, const At& at, int64_t first_item, int64_t count, int64_t* slots) const {
    const int64_t* base = base_.empty() ? nullptr : base_.data();
    const std::vector<ScatterShape::Component>& all = fit_.components;
    // A stride known to be 1 spares a multiplication, which few instruction sets have for many numbers at once.
    bool good = all[0].stride == 1
      ? AddComponent<true>(from, at, base, first_item, count, all[0].size, 1, slots)
      : AddComponent<true>(from, at, base, first_item, count, all[0].size, all[0].stride, slots);
    for (size_t c = 1; c < all.size(); ++c)
      good &= AddComponent<false>(from + c, at, nullptr, 0, count, all[c].size, all[c].stride, slots);
    return good;
  }

  const ScatterShape& fit_;
  const Tensor& indices_;
  int64_t length_, even_ = 0;  // even_: at its multiples a term steps or wraps that is even within a block; 0: none
  bool is_even_;  // indices lie in even steps
  std::vector<int64_t> base_, index_;
};

std::string PositionOf(int64_t offset, const Shape& shape) {
  Shape position(shape.size());
  for (size_t axis = shape.size(); axis-- > 0; offset /= shape[axis]) position[axis] = offset % shape[axis];
  return ToString(position);
}

[[noreturn]] void FailOnChange() { Fail("the indices changed while the operator ran"); }

// Says which index is out of range, the first one.
template <typename Index>
[[noreturn]] void FailOnIndex(const ScatterShape& fit, const Index* indices, const Shape& shape, int64_t first_axis) {
  for (int64_t unit = 0; unit < fit.units; ++unit) {
    int64_t offset = SumAt(fit.index, unit);
    for (size_t c = 0; c < fit.components.size(); ++c, ++offset) {
      const int64_t size = fit.components[c].size, value = indices[offset];
      if (value >= -size && value < size) continue;
      Fail("the index ", value, " at ", PositionOf(offset, shape), " of indices is out of range: axis ",
        first_axis + int64_t(c), " of data has size ", size, ", so that it must be from ", -size, " to ", size - 1);
    }
  }
  FailOnChange();
}

// ---- units of one slot, linked

// For each unit the next one of its slot, or -1, and whether it is the first of them.
template <typename Id>
class Links {
 public:
  explicit Links(const HostVector<int64_t>& slots) : next_(slots.size()), is_first_(slots.size(), 1) {
    const auto units = int64_t(slots.size());
    // A hash table of each slot's last unit so far, at most half full.
    int bits = 1;
    while ((int64_t{1} << bits) < 2 * units) ++bits;
    HostVector<Id> last(size_t{1} << bits, Id{-1});
    for (int64_t unit = 0; unit < units; ++unit) {
      const int64_t slot = slots[At(unit)];
      size_t place = size_t(uint64_t(slot) * 0x9e3779b97f4a7c15u >> (64 - bits));
      while (last[place] >= 0 && slots[At(last[place])] != slot) place = (place + 1) & (last.size() - 1);
      if (last[place] >= 0) {
        next_[At(last[place])] = static_cast<Id>(unit);
        is_first_[At(unit)] = 0;
      }
      next_[At(unit)] = -1;
      last[place] = static_cast<Id>(unit);
    }
  }

  bool IsFirst(int64_t unit) const { return is_first_[At(unit)] != 0; }
  int64_t Next(int64_t unit) const { return next_[At(unit)]; }

 private:
  static size_t At(int64_t unit) { return size_t(unit); }
  HostVector<Id> next_;
  HostVector<uint8_t> is_first_;
};

// ---- the kernel

// One run.
struct Work {
  const ScatterAttributes& attributes;
  Run& run;
  const ScatterShape& fit;
  ort::ElementType type;
  int64_t size;  // bytes of an element
  const Tensor& indices;
  char* out;
  const char* updates;
  std::vector<int64_t> starts;  // UpdateSlice; from the front
  int threads = 1;  // that were seen to run at once
  std::optional<Blocks> blocks = std::nullopt;  // of the indices
};

void CheckStarts(Work& work, const Shape& updates) {
  const auto* starts = static_cast<const int64_t*>(work.indices.data);
  for (size_t c = 0; c < work.attributes.axes.size(); ++c) {
    const int64_t axis = work.attributes.axes[c], size = work.fit.components[c].size, step = work.attributes.steps[c];
    const int64_t count = updates[size_t(axis)], span = (count - 1) * step;  // fits: see FitSlice
    const int64_t lowest = span < 0 ? -span : 0, highest = size - 1 - (span > 0 ? span : 0);
    const int64_t start = starts[c] < 0 ? starts[c] + size : starts[c];
    if (start < lowest || start > highest)
      Fail("starts[", c, "] is ", starts[c], ", from where ", count, " elements at step ", step, " leave axis ", axis,
        " of data, whose size is ", size, ": it must be from ", lowest, " to ", highest, " or from ", lowest - size,
        " to ", highest - size);
    work.starts.push_back(start);
  }
}

void CheckIndices(Work& work, const Shape& shape) {
  std::atomic<bool> valid{true};
  const Blocks& blocks = work.blocks.emplace(work.fit, work.indices);
  const int64_t each = kTaskUnits / blocks.length() * blocks.length();
  work.threads = InParallel(work.run, work.fit.units, each, [&](int64_t first, int64_t last) {
    if (!blocks.ForEach(first, last, [](const Block&) {})) valid = false;
  });
  if (valid) return;
  const auto rank = int64_t(work.fit.shape.size());
  const int64_t axis = work.attributes.axis < 0 ? work.attributes.axis + rank : work.attributes.axis;
  const int64_t first_axis = work.attributes.kind == ScatterKind::kElements ? axis : 0;
  if (work.indices.type == ort::kInt32)
    FailOnIndex(work.fit, static_cast<const int32_t*>(work.indices.data), shape, first_axis);
  FailOnIndex(work.fit, static_cast<const int64_t*>(work.indices.data), shape, first_axis);
}

// A strided copy, run by run.
template <int64_t size>
void WriteSlice(Work& work) {
  const ScatterShape& fit = work.fit;
  const int64_t bytes = fit.width * size;
  std::vector<Term> terms = fit.base;
  char* first_item = work.out;
  for (size_t c = 0; c < fit.components.size(); ++c) {
    const ScatterShape::Component& component = fit.components[c];
    first_item += work.starts[c] * component.stride * bytes;
    const Term& steps = component.steps;
    if (steps.stride != 0) terms.push_back({steps.divisor, steps.modulus, steps.stride * component.stride});
  }
  int64_t run = fit.units;  // of units that lie in even steps on both sides
  const auto note = [&](int64_t units) {
    if (units > 1) run = std::min(run, units);
  };
  ForBreaks(terms, note);
  ForBreaks(fit.update, note);
  const auto step_of = [](const std::vector<Term>& all) {
    int64_t step = 0;
    for (const Term& term : all) step += term.divisor == 1 ? term.stride : 0;
    return step;
  };
  const int64_t to_step = step_of(terms) * bytes, from_step = step_of(fit.update) * size;
  InParallel(work.run, fit.units, std::max<int64_t>(1, kTaskBytes / bytes), [&](int64_t first, int64_t last) {
    for (int64_t unit = first, count = 0; unit < last; unit += count) {
      count = std::min(last, (unit / run + 1) * run) - unit;
      char* to = first_item + SumAt(terms, unit) * bytes;
      const char* from = work.updates + SumAt(fit.update, unit) * size;
      if (to_step == bytes && from_step == bytes) {  // one after another on both sides
        std::memcpy(to, from, size_t(bytes * count));
      } else if (fit.width == 1) {
        for (int64_t i = 0; i < count; ++i) std::memcpy(to + i * to_step, from + i * from_step, size);
      } else {
        for (int64_t i = 0; i < count; ++i) std::memcpy(to + i * to_step, from + i * from_step, size_t(bytes));
      }
    }
  });
}

void WriteSlice(Work& work) {
  switch (work.size) {
    case 1: return WriteSlice<1>(work);
    case 2: return WriteSlice<2>(work);
    case 4: return WriteSlice<4>(work);
    case 8: return WriteSlice<8>(work);
    default: return WriteSlice<16>(work);
  }
}

// Units that are applied one after another.
struct Units {
  void* out;
  const void* updates;
  int64_t size, width;  // bytes of an element, elements of a unit
  uint8_t* met = nullptr;  // for each element of `out` whether it had an update
  int64_t column = 0, columns = width;  // what is applied of each
  Block block = {};
  const int32_t* chosen = nullptr;  // these of the block, `count` of them; null: all
};
using Apply = void(const Units&);

// Calls apply(place in out, place in updates, elements) for each.
template <typename Body>
ORTPLUGIN_INLINE void ForUnits(const Units& units, const Body& body) {
  const int64_t count = units.block.count, width = units.width, columns = units.columns;
  const int64_t to = units.column, from = units.block.first * width + to;
  const int64_t* slots = units.block.slots;
  const int32_t* chosen = units.chosen;
  if (width == 1 && chosen == nullptr) {
    for (int64_t i = 0; i < count; ++i) body(slots[i], from + i, 1);
  } else if (width == 1) {
    for (int64_t j = 0; j < count; ++j) body(slots[chosen[j]], from + chosen[j], 1);
  } else if (chosen == nullptr) {
    for (int64_t i = 0; i < count; ++i) body(to + slots[i] * width, from + i * width, columns);
  } else {
    for (int64_t j = 0; j < count; ++j) body(to + slots[chosen[j]] * width, from + chosen[j] * width, columns);
  }
}

void ByColumns(Work& work, const Units& all, Apply* apply) {
  const int64_t width = work.fit.width, least = kPieceBytes / work.size;
  const int64_t tasks = std::max<int64_t>(1, work.fit.units * width * work.size / kTaskBytes);
  const int64_t each = RoundUp(std::max(least, DivideUp(width, tasks)), least);
  InParallel(work.run, width, each, [&](int64_t first, int64_t last) {
    Units units = all;
    units.column = first;
    units.columns = last - first;
    const bool valid = work.blocks->ForEach(0, work.fit.units, [&](const Block& block) {
      units.block = block;
      apply(units);
    });
    if (!valid) FailOnChange();
  });
}

void BySlots(Work& work, const Units& all, Apply* apply) {
  const int64_t slots_in_all = work.fit.slots;
  const int64_t parts = std::min(kMostParts, int64_t(work.threads));
  const int64_t each = DivideUp(slots_in_all, parts);
  InParallel(work.run, slots_in_all, each, [&](int64_t first, int64_t last) {
    Units units = all;
    const bool valid = work.blocks->ForEach(0, work.fit.units, [&](const Block& block) {
      units.block = block;
      if (each >= slots_in_all) return apply(units);
      int32_t chosen[kBlock];  // without a branch, which nobody could predict
      int64_t found = 0;
      for (int64_t i = 0; i < block.count; ++i) {
        chosen[found] = int32_t(i);
        found += uint64_t(block.slots[i] - first) < uint64_t(last - first);
      }
      units.block.count = found;
      units.chosen = chosen;
      apply(units);
    });
    if (!valid) FailOnChange();
  });
}

// Applies all units such that every element meets its updates in order.
void InOrder(Work& work, const Units& all, Apply* apply) {
  work.fit.width* work.size >= kWideBytes ? ByColumns(work, all, apply) : BySlots(work, all, apply);
}

Units UnitsOf(const Work& work) { return {work.out, work.updates, work.size, work.fit.width}; }

template <typename T>
void AssignElements(const Units& units) {
  auto* out = static_cast<T*>(units.out);
  const auto* updates = static_cast<const T*>(units.updates);
  ForUnits(units, [&](int64_t to, int64_t from, int64_t) { out[to] = updates[from]; });
}

void AssignRows(const Units& units) {
  auto* out = static_cast<char*>(units.out);
  const auto* updates = static_cast<const char*>(units.updates);
  const int64_t size = units.size;
  ForUnits(units, [&](int64_t to, int64_t from, int64_t count) {
    std::memcpy(out + to * size, updates + from * size, size_t(count * size));
  });
}

Apply* AssignmentOf(const Work& work) {
  struct Complex {
    uint64_t parts[2];
  };
  if (work.fit.width > 1) return AssignRows;
  switch (work.size) {
    case 1: return AssignElements<uint8_t>;
    case 2: return AssignElements<uint16_t>;
    case 4: return AssignElements<uint32_t>;
    case 8: return AssignElements<uint64_t>;
    default: return AssignElements<Complex>;
  }
}

template <typename T, Reduction reduction, typename Out = T>
void FoldUnits(const Units& units) {
  auto* out = static_cast<Out*>(units.out);
  const auto* updates = static_cast<const T*>(units.updates);
  uint8_t* met = units.met;
  ForUnits(units, [&](int64_t to, int64_t from, int64_t count) {
    for (int64_t j = 0; j < count; ++j) {
      Out& result = out[to + j];
      result = Precise<Out>::Store(Fold<reduction>(Precise<Out>::Load(result), Precise<T>::Load(updates[from + j])));
      if constexpr (!std::is_same_v<T, Out>) met[to + j] = 1;
    }
  });
}

template <typename T, Reduction reduction>
void ReduceInOrder(Work& work) {
  InOrder(work, UnitsOf(work), FoldUnits<T, reduction>);
}

template <typename T>
void ReduceInCopy(Work& work, Apply* fold) {
  auto* out = reinterpret_cast<T*>(work.out);
  const auto elements = size_t(work.fit.elements);
  HostVector<float> folded(elements);
  HostVector<uint8_t> is_met(elements, 0);  // the others keep their bits
  InParallel(work.run, work.fit.elements, kTaskBytes / 4, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) folded[size_t(i)] = Precise<T>::Load(out[i]);
  });
  Units units = UnitsOf(work);
  units.out = folded.data();
  units.met = is_met.data();
  InOrder(work, units, fold);
  InParallel(work.run, work.fit.elements, kTaskBytes / 4, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i)
      if (is_met[size_t(i)]) out[i] = Precise<T>::Store(folded[size_t(i)]);
  });
}

template <typename T, Reduction reduction, typename AnyLinks>
void ReduceLinked(Work& work, const HostVector<int64_t>& slots, const AnyLinks& links) {
  auto* out = reinterpret_cast<T*>(work.out);
  const auto* updates = reinterpret_cast<const T*>(work.updates);
  constexpr int64_t kColumns = 512;
  const int64_t width = work.fit.width, pieces = DivideUp(width, kColumns);
  const int64_t columns = std::min(width, kColumns), size = int64_t(sizeof(T));
  InParallel(work.run, work.fit.units * pieces, DivideUp(kTaskBytes / 8, columns * size),
    [&](int64_t first_item, int64_t last_item) {
      typename Precise<T>::Type folded[kColumns];
      for (int64_t item = first_item; item < last_item; ++item) {
        const int64_t first = pieces == 1 ? item : item / pieces, column = (item - first * pieces) * kColumns;
        if (!links.IsFirst(first)) continue;
        const int64_t count = std::min(width - column, kColumns);
        T* to = out + slots[size_t(first)] * width + column;
        for (int64_t j = 0; j < count; ++j) folded[j] = Precise<T>::Load(to[j]);
        for (int64_t unit = first; unit >= 0; unit = links.Next(unit)) {
          const T* update = updates + unit * width + column;
          for (int64_t j = 0; j < count; ++j) folded[j] = Fold<reduction>(folded[j], Precise<T>::Load(update[j]));
        }
        for (int64_t j = 0; j < count; ++j) to[j] = Precise<T>::Store(folded[j]);
      }
    });
}

template <typename T, Reduction reduction>
void ReduceInFloat(Work& work) {
  const int64_t units = work.fit.units;
  if (work.attributes.unique || units == 1) return ReduceInOrder<T, reduction>(work);
  if (work.fit.elements / 4 <= units * work.fit.width) return ReduceInCopy<T>(work, FoldUnits<T, reduction, float>);
  HostVector<int64_t> slots(static_cast<size_t>(units));
  const auto keep = [&](const Block& found) {
    std::copy(found.slots, found.slots + found.count, slots.begin() + found.first);
  };
  if (!work.blocks->ForEach(0, units, keep)) FailOnChange();
  if (units <= std::numeric_limits<int32_t>::max())
    return ReduceLinked<T, reduction>(work, slots, Links<int32_t>(slots));
  ReduceLinked<T, reduction>(work, slots, Links<int64_t>(slots));
}

template <typename T, Reduction reduction>
void Accumulate(Work& work) {
  if constexpr (kIsPrecise<T>) {
    ReduceInOrder<T, reduction>(work);
  } else {
    ReduceInFloat<T, reduction>(work);
  }
}

template <typename T>
void Reduce(Work& work) {
  // Modulo 2^bits a sum or product is the same for both kinds of integers.
  using Sum = typename std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>, std::common_type<T>>::type;
  switch (work.attributes.reduction) {
    case Reduction::kAdd: return Accumulate<Sum, Reduction::kAdd>(work);
    case Reduction::kMul: return Accumulate<Sum, Reduction::kMul>(work);
    case Reduction::kMin: return ReduceInOrder<T, Reduction::kMin>(work);  // exact, whatever is rounded when
    default: return ReduceInOrder<T, Reduction::kMax>(work);
  }
}

void Reduce(Work& work) {
  switch (work.type) {
    case ort::kFloat16: return Reduce<Half>(work);
    case ort::kBFloat16: return Reduce<BFloat16>(work);
    case ort::kFloat: return Reduce<float>(work);
    case ort::kDouble: return Reduce<double>(work);
    case ort::kInt8: return Reduce<int8_t>(work);
    case ort::kInt16: return Reduce<int16_t>(work);
    case ort::kInt32: return Reduce<int32_t>(work);
    case ort::kInt64: return Reduce<int64_t>(work);
    case ort::kUInt8: return Reduce<uint8_t>(work);
    case ort::kUInt16: return Reduce<uint16_t>(work);
    case ort::kUInt32: return Reduce<uint32_t>(work);
    case ort::kUInt64: return Reduce<uint64_t>(work);
    default: Fail(NameOfOrt(work.type), " has no reduction");
  }
}

class CpuScatter : public Kernel {
 public:
  CpuScatter(ScatterKind kind, const NodeInfo& info)
    : attributes_(ScatterAttributes::Parse(kind, info)), types_(CheckScatterNode(attributes_, info)) {}

  void Compute(Run& run) const override {
    Tensor inputs[kInputs];
    Shapes shapes(kInputs);
    for (size_t i = 0; i < kInputs; ++i) {
      inputs[i] = run.input(i);
      if (inputs[i].type != types_[i].type)
        Fail("input ", i, " is of dtype ", NameOfOrt(inputs[i].type), " but of ", NameOfOrt(types_[i].type),
          " in the model");
      shapes[i] = std::move(inputs[i].shape);
    }
    const Tensor &data = inputs[0], &indices = inputs[attributes_.indices()], &updates = inputs[attributes_.updates()];
    const Shape& update_shape = shapes[attributes_.updates()];
    const bool is_slice = attributes_.kind == ScatterKind::kSlice,
               is_replacing = attributes_.reduction == Reduction::kNone;
    const ScatterShape fit = FitScatter(attributes_, shapes);
    Work work{attributes_, run, fit, data.type, int64_t(ScatterBytes(data.type)), indices, nullptr, nullptr, {}};
    if (!fit.is_empty()) is_slice ? CheckStarts(work, update_shape) : CheckIndices(work, shapes[attributes_.indices()]);

    work.out = static_cast<char*>(run.output(0, fit.shape, ScatterBytes(data.type)));
    work.updates = static_cast<const char*>(updates.data);
    const int64_t bytes = fit.elements * work.size, update_bytes = ElementCount(update_shape) * work.size;
    HostVector<char> kept;  // updates that lie where the output comes
    if (update_bytes > 0 && work.updates < work.out + bytes && work.out < work.updates + update_bytes) {
      kept.assign(work.updates, work.updates + update_bytes);
      work.updates = kept.data();
    }
    const bool is_overwritten = fit.slots == 1 && is_replacing && !fit.is_empty();
    if (bytes > 0 && work.out != data.data && !is_overwritten) {
      const char* from = static_cast<const char*>(data.data);
      const int threads = InParallel(run, bytes, kTaskBytes,
        [&](int64_t first, int64_t last) { std::memcpy(work.out + first, from + first, size_t(last - first)); });
      work.threads = std::max(work.threads, threads);
    }
    if (fit.is_empty()) return;
    if (is_slice) return WriteSlice(work);
    is_replacing ? InOrder(work, UnitsOf(work), AssignmentOf(work)) : Reduce(work);
  }

 private:
  ScatterAttributes attributes_;
  TensorTypes types_;
};

}  // namespace

std::unique_ptr<Kernel> CreateCpuScatter(ScatterKind kind, const NodeInfo& info) {
  return std::make_unique<CpuScatter>(kind, info);
}

}  // namespace ortplugin
