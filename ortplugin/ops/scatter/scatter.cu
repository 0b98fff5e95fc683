// out = data, but out[slot(n)] is written over or combined with updates[n], for n = 0, 1, ...
//
// A unit n is `width` consecutive elements of updates; slot(n) is where its index says they go. The text in front of
// this one is generated for the node at hand (scatter_cuda.cc): element_t (bits alone where nothing is computed),
// compute_t, word_t (what an atomic exchange takes), index_t, count_t (counts of elements, 64 bits where they need
// them), VECTOR (elements of an access), REDUCTION, FORM and how an index is found. Every result is that of the units
// taken one after another; how, depends on FORM:
//   COPY    out = data, and scratch memory is filled
//   FUSED   few units, out of place: who copies an element looks for units that hit it
//   FEW     few units, in place: a unit that is not the last (reductions: the first) of its slot stands back
//   WRITE   units whose slots are distinct, or won (CLAIM), or combined atomically
//   SORT    units sorted by slot (scatter_sort.cu), each slot's folded in order

struct Term {
  unsigned long long divisor, modulus;  // modulus 0: none
  long long stride;
};
struct Component {
  unsigned long long size, stride;
  Term steps;
};

#define AT_LEAST_ONE(n) ((n) > 0 ? (n) : 1)
struct Arguments {
  const element_t* data;
  const index_t* indices;
  const element_t* updates;
  element_t* out;
  unsigned long long elements, units, width, slots;
  Component components[COMPONENTS];
  Term base[AT_LEAST_ONE(BASE_TERMS)], index[AT_LEAST_ONE(INDEX_TERMS)], update[AT_LEAST_ONE(UPDATE_TERMS)];
};

DEVICE count_t coordinate(const Term& term, count_t n) {
  n /= (count_t)term.divisor;
  return term.modulus != 0 ? n % (count_t)term.modulus : n;
}

template <int COUNT, bool IS_LINEAR>
DEVICE count_t sum_of_terms(const Term* terms, count_t n) {
  if (IS_LINEAR) return n * (count_t)terms[0].stride;
  count_t sum = 0;
#pragma unroll
  for (int t = 0; t < COUNT; ++t) sum += coordinate(terms[t], n) * (count_t)terms[t].stride;
  return sum;
}

// The slot of a unit; false where its index is out of range.
DEVICE bool slot_of(const Arguments& args, count_t n, count_t& slot) {
  slot = sum_of_terms<BASE_TERMS, false>(args.base, n);
  const index_t* index = args.indices + (IS_SLICE ? 0 : sum_of_terms<INDEX_TERMS, INDEX_IS_LINEAR>(args.index, n));
  bool is_valid = true;
#pragma unroll
  for (int c = 0; c < COMPONENTS; ++c) {
    const Component& component = args.components[c];
    long long i = __ldg(index + c);
    if (i < 0) i += (long long)component.size;
    // Beyond 64 bits it wraps to a number that is out of range, too: there are fewer elements than 2^48.
    if (IS_SLICE && component.steps.stride != 0)
      i = (long long)((unsigned long long)i +
        (unsigned long long)coordinate(component.steps, n) * (unsigned long long)component.steps.stride);
    is_valid = is_valid && (unsigned long long)i < component.size;
    slot += (count_t)i * (count_t)component.stride;
  }
  return is_valid;
}

DEVICE const element_t* unit_of(const Arguments& args, count_t n) {
  return args.updates + sum_of_terms<UPDATE_TERMS, UPDATE_IS_LINEAR>(args.update, n);
}

// ---- arithmetic

#define NONE 0
#define ADD 1
#define MUL 2
#define MIN 3
#define MAX 4

#if REDUCTION != NONE
#if IS_FLOATING
DEVICE compute_t widen(element_t x) { return to_compute(x); }
// The conversions leave open which NaN a NaN becomes.
DEVICE void set_nan(half_t& x) { x.bits = 0x7e00; }
DEVICE void set_nan(bfloat_t& x) { x.bits = 0x7fc0; }
DEVICE void set_nan(float&) {}
DEVICE void set_nan(double&) {}
DEVICE element_t narrow(compute_t x) {
  element_t y;
  from_compute(x, y);
  if (x != x) set_nan(y);
  return y;
}
// Of equal numbers that differ in sign, the minimum is -0 and the maximum +0; a NaN wins and is always the same one.
DEVICE float either(float a, float b) {
  if (a != b) return __int_as_float(0x7fc00000);
  const int x = __float_as_int(a), y = __float_as_int(b);
  return __int_as_float(REDUCTION == MIN ? x | y : x & y);
}
DEVICE double either(double a, double b) {
  if (a != b) return __longlong_as_double(0x7ff8000000000000ll);
  const long long x = __double_as_longlong(a), y = __double_as_longlong(b);
  return __longlong_as_double(REDUCTION == MIN ? x | y : x & y);
}
#else
DEVICE compute_t widen(element_t x) { return (compute_t)x; }
DEVICE element_t narrow(compute_t x) { return (element_t)x; }
DEVICE compute_t either(compute_t a, compute_t) { return a; }
#endif

DEVICE compute_t combine(compute_t a, compute_t b) {
#if REDUCTION == ADD
  return a + b;
#elif REDUCTION == MUL
  return a * b;
#elif REDUCTION == MIN
  return a < b ? a : b < a ? b : either(a, b);
#else
  return a > b ? a : b > a ? b : either(a, b);
#endif
}
#endif

// ---- accesses

typedef Vector<element_t, VECTOR> Pack;

// VECTOR elements of a tensor that this kernel also writes, so not through the read-only path.
DEVICE Pack load_shared(const element_t* p) {
  Pack pack;
#pragma unroll
  for (int i = 0; i < Pack::kBytes / Pack::kStep; ++i) pack.chunks[i] = ((const typename Pack::chunk_t*)p)[i];
  return pack;
}

#if REDUCTION != NONE
// The elements of a slot that are being combined.
struct Sums {
  compute_t x[VECTOR];
  DEVICE void start(const Pack& pack) {
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) x[j] = widen(pack.elements[j]);
  }
  DEVICE void add(const Pack& pack) {
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) x[j] = combine(x[j], widen(pack.elements[j]));
  }
  DEVICE Pack result() const {
    Pack pack;
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) pack.set(j, narrow(x[j]));
    return pack;
  }
};
#endif

#define FULL_WARP 0xffffffffu
#define THREADS 256
#define WARPS (THREADS / 32)
#define ITEMS (FORM == FEW && REDUCTION != NONE ? 1 : 4)  // accesses of a lane, where a warp takes a run of elements
#define TILE (32 * ITEMS * VECTOR)  // elements of a warp

#if FORM == COPY || FORM == FUSED

struct Tile {
  count_t first, elements;
  int lane;
  Pack packs[ITEMS];

  DEVICE count_t at(int i) const { return first + (count_t)((i * 32 + lane) * VECTOR); }
  DEVICE void load(const element_t* data) {
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      if (at(i) + VECTOR <= elements) {
        packs[i].load_once(data + at(i));
      } else {
#pragma unroll
        for (int j = 0; j < VECTOR; ++j)
          if (at(i) + j < elements) packs[i].set(j, data[at(i) + j]);
      }
    }
  }
  DEVICE void store(element_t* out) const {
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      if (at(i) + VECTOR <= elements) {
        packs[i].store(out + at(i));
      } else {
#pragma unroll
        for (int j = 0; j < VECTOR; ++j)
          if (at(i) + j < elements) out[at(i) + j] = packs[i].elements[j];
      }
    }
  }
};

DEVICE Tile tile_of(const Arguments& args, count_t block) {
  Tile tile;
  tile.lane = threadIdx.x % 32;
  tile.elements = (count_t)args.elements;
  tile.first = (block * WARPS + threadIdx.x / 32) * TILE;
  return tile;
}

#endif

#if FORM == COPY

// Where out is data there is only the filling: `words` words of scratch memory.
extern "C" __global__ void __launch_bounds__(THREADS)
  scatter_copy(const Arguments args, unsigned* scratch, unsigned long long words, unsigned value) {
  grid_dependency_wait();
  const unsigned long long threads = (unsigned long long)gridDim.x * THREADS;
  for (unsigned long long i = (unsigned long long)blockIdx.x * THREADS + threadIdx.x; i < words; i += threads)
    scratch[i] = value;
  if (args.out == args.data) return;
  Tile tile = tile_of(args, blockIdx.x);
  if (tile.first >= tile.elements) return;
  tile.load(args.data);
  tile.store(args.out);
}

#endif

#if REDUCTION == NONE && (FORM == FEW || IS_COVERING)

// Writes a tile of a unit, if it is the last unit of its slot. What is written is on its way before that is known.
DEVICE void write_tile_of_unit(const Arguments& args, count_t warp) {
  const count_t units = (count_t)args.units, width = (count_t)args.width;
  const bool is_one_tile = width <= TILE;
  const count_t n = is_one_tile ? warp : warp % units, lane = threadIdx.x % 32;
  const count_t tile = is_one_tile ? 0 : warp / units * TILE, first = tile + lane * VECTOR;
  if (n >= units || tile >= width) return;
  const element_t* unit = unit_of(args, n);
  Pack packs[ITEMS];
#pragma unroll
  for (int i = 0; i < ITEMS; ++i)
    if (first + i * 32 * VECTOR < width) packs[i].load(unit + first + i * 32 * VECTOR);
  count_t slot;
  if (units <= 64) {  // one look at all of them
    count_t slots[2];
    bool is_valid[2];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      slots[c] = 0;
      is_valid[c] = c * 32 + lane < units && slot_of(args, c * 32 + lane, slots[c]);
    }
    slot = __shfl_sync(FULL_WARP, n < 32 ? slots[0] : slots[1], (int)(n % 32));
    const bool is_written = __shfl_sync(FULL_WARP, n < 32 ? is_valid[0] : is_valid[1], (int)(n % 32));
    const bool is_lost =
      (is_valid[0] && lane > n && slots[0] == slot) || (is_valid[1] && 32 + lane > n && slots[1] == slot);
    if (__any_sync(FULL_WARP, is_lost) || !is_written) return;
  } else {
    if (!slot_of(args, n, slot)) return;
    for (count_t chunk = n / 32 * 32; chunk < units; chunk += 32) {
      count_t other;
      const bool is_later = chunk + lane > n && chunk + lane < units && slot_of(args, chunk + lane, other);
      if (__any_sync(FULL_WARP, is_later && other == slot)) return;
    }
  }
  element_t* out = args.out + slot * width + first;
#pragma unroll
  for (int i = 0; i < ITEMS; ++i)
    if (first + i * 32 * VECTOR < width) packs[i].store(out + i * 32 * VECTOR);
}

#endif

#if FORM == FUSED

#define CHUNKS 2  // of 32 units, at most

#if IS_SINGLE  // units of one element
DEVICE Vector<element_t, 1> from_lane(Vector<element_t, 1> x, int lane) {
#pragma unroll
  for (int i = 0; i < (int)(sizeof(x.words) / 4); ++i) x.words[i] = __shfl_sync(FULL_WARP, x.words[i], lane);
  return x;
}

template <typename Take>
DEVICE void meet(const Vector<element_t, 1>& unit, count_t start, count_t, count_t element, Take take) {
#pragma unroll
  for (int j = 0; j < VECTOR; ++j)
    if (element + j == start) take(j, unit.elements[0]);
}
#else
// Takes what a unit has for VECTOR elements of the output, from `element` on.
template <typename Take>
DEVICE void meet(const element_t* unit, count_t start, count_t width, count_t element, Take take) {
#if WHOLE  // slots begin and end with an access
  if (element - start < width) {
    Pack update;
    update.load(unit + (element - start));
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) take(j, update.elements[j]);
  }
#else
#pragma unroll
  for (int j = 0; j < VECTOR; ++j)
    if (element + j - start < width) take(j, unit[element + j - start]);
#endif
}
#endif

#if IS_SMALL

// At most 4 units of one element each, into a tensor of which each thread of a block takes one access: every thread
// reads all units itself, which is sooner done than passed on.
extern "C" __global__ void __launch_bounds__(THREADS) scatter_small(const Arguments args) {
  grid_dependency_wait();
  const count_t element = threadIdx.x * VECTOR;
  if (element >= (count_t)args.elements) return;
  Pack pack;
  pack.load_once(args.data + element);
  Vector<element_t, 1> units[4];
  count_t starts[4];
  bool is_valid[4];
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    is_valid[n] = n < (count_t)args.units && slot_of(args, n, starts[n]);
    if (n < (count_t)args.units) units[n].load(unit_of(args, n));
  }
#pragma unroll
  for (int n = 0; n < 4; ++n)
    if (is_valid[n]) meet(units[n], starts[n], 1, element, [&](int j, element_t x) { pack.set(j, x); });
  pack.store(args.out + element);
}

#endif

// Copies the elements of a tile that no unit covers.
DEVICE void copy_rest(
  const Arguments& args, Tile& tile, const count_t (&start)[CHUNKS], const unsigned (&hits)[CHUNKS]) {
  const count_t width = (count_t)args.width;
  unsigned covered = 0;
#pragma unroll
  for (int c = 0; c < CHUNKS; ++c)
    for (unsigned left = hits[c]; left != 0; left &= left - 1) {
      const count_t first = __shfl_sync(FULL_WARP, start[c], __ffs(left) - 1);
#pragma unroll
      for (int i = 0; i < ITEMS; ++i)
        if (tile.at(i) - first < width) covered |= 1u << i;
    }
#pragma unroll
  for (int i = 0; i < ITEMS; ++i)
    if (tile.at(i) < tile.elements && (covered >> i & 1) == 0) tile.packs[i].load_once(args.data + tile.at(i));
#pragma unroll
  for (int i = 0; i < ITEMS; ++i)
    if (tile.at(i) < tile.elements && (covered >> i & 1) == 0) tile.packs[i].store(args.out + tile.at(i));
}

// With IS_COVERING (units are much of the output) the first blocks write units, and the others only what none writes.
extern "C" __global__ void __launch_bounds__(THREADS, 4) scatter_fused(const Arguments args, unsigned unit_blocks) {
  grid_dependency_wait();
#if IS_COVERING
  if (blockIdx.x < unit_blocks) return write_tile_of_unit(args, blockIdx.x * WARPS + threadIdx.x / 32);
#endif
  Tile tile = tile_of(args, blockIdx.x - unit_blocks);
  if (tile.first >= tile.elements) return;
  if (!IS_COVERING) tile.load(args.data);  // arrives while units are looked for
  const count_t width = (count_t)args.width, units = (count_t)args.units;
  count_t start[CHUNKS];
  unsigned hits[CHUNKS];
#if IS_SINGLE
  Vector<element_t, 1> single[CHUNKS];  // each lane's units
#endif
#pragma unroll
  for (int c = 0; c < CHUNKS; ++c) {
    const count_t n = c * 32 + tile.lane;
#if IS_SINGLE
    if (n < units) single[c].load(unit_of(args, n));
#endif
    start[c] = 0;
    bool is_hit = false;
    if (n < units && slot_of(args, n, start[c])) {
      start[c] *= width;
      is_hit = start[c] < tile.first + TILE && start[c] + width > tile.first;
    }
    hits[c] = __ballot_sync(FULL_WARP, is_hit);
  }
#if IS_COVERING
  copy_rest(args, tile, start, hits);
#else
  if ((hits[0] | hits[1]) != 0) {
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
#if REDUCTION != NONE
      compute_t sums[VECTOR];
      unsigned taken = 0;  // elements not combined keep their bits
#endif
#pragma unroll
      for (int c = 0; c < CHUNKS; ++c) {
        for (unsigned left = hits[c]; left != 0; left &= left - 1) {
          const int source = __ffs(left) - 1;
          const count_t first = __shfl_sync(FULL_WARP, start[c], source);
#if IS_SINGLE
          const Vector<element_t, 1> unit = from_lane(single[c], source);
#else
          const element_t* unit = unit_of(args, c * 32 + source);
#endif
          meet(unit, first, width, tile.at(i), [&](int j, element_t x) {
#if REDUCTION == NONE
            tile.packs[i].set(j, x);
#else
            sums[j] = combine(taken >> j & 1 ? sums[j] : widen(tile.packs[i].elements[j]), widen(x));
            taken |= 1u << j;
#endif
          });
        }
      }
#if REDUCTION != NONE
#pragma unroll
      for (int j = 0; j < VECTOR; ++j)
        if (taken >> j & 1) tile.packs[i].set(j, narrow(sums[j]));
#endif
    }
  }
  tile.store(args.out);
#endif
}

#elif FORM == FEW

#if REDUCTION == NONE && IS_NARROW

// Up to 64 units of one access each, by one warp. Each writes its number where its slot's hash says, and finds it there
// again unless two meet. Where any did: the last of each slot among 32 is matched, and the later 32 come after the
// first.
extern "C" __global__ void __launch_bounds__(32) scatter_few_narrow(const Arguments args) {
  grid_dependency_wait();
  __shared__ unsigned table[8192];
  const count_t units = (count_t)args.units;
  const int lane = threadIdx.x;
  count_t slots[2];
  bool is_valid[2];
  Pack updates[2];
  unsigned places[2];
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    const count_t n = c * 32 + lane;
    if (n < units) updates[c].load(unit_of(args, n));
    is_valid[c] = n < units && slot_of(args, n, slots[c]);
    places[c] = (unsigned)slots[c] * 2654435761u >> 19;
    if (is_valid[c]) atomicExch(table + places[c], (unsigned)n);
  }
  __syncwarp();
  bool is_met = false;
#pragma unroll
  for (int c = 0; c < 2; ++c) is_met = is_met || (is_valid[c] && table[places[c]] != c * 32 + lane);
  const bool is_matched = __any_sync(FULL_WARP, is_met);
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    bool is_last = is_valid[c];
    if (is_matched) {
      const unsigned valid = __ballot_sync(FULL_WARP, is_last);
      is_last = is_last && __match_any_sync(valid, slots[c]) >> lane == 1;
    }
    if (is_last) updates[c].store(args.out + slots[c] * (count_t)args.width);
    __syncwarp();  // orders the stores
  }
}

#endif

// A warp for each tile of each unit.
extern "C" __global__ void __launch_bounds__(THREADS, 4) scatter_few(const Arguments args) {
  grid_dependency_wait();
  const count_t warp = (count_t)blockIdx.x * WARPS + threadIdx.x / 32;
#if REDUCTION == NONE
  write_tile_of_unit(args, warp);
#else
  const count_t units = (count_t)args.units, width = (count_t)args.width, lane = threadIdx.x % 32;
  const count_t n = warp % units, tile = warp / units * TILE, first = tile + lane * VECTOR;
  if (tile >= width) return;
  count_t slot;
  if (!slot_of(args, n, slot)) return;
  element_t* out = args.out + slot * width + first;
  Sums sums;
  const bool is_active = first < width;
  if (is_active) sums.start(load_shared(out));
  for (count_t chunk = 0; chunk < units; chunk += 32) {
    count_t other;
    const bool is_same = chunk + lane < units && slot_of(args, chunk + lane, other) && other == slot;
    for (unsigned left = __ballot_sync(FULL_WARP, is_same); left != 0; left &= left - 1) {
      const count_t same = chunk + (__ffs(left) - 1);
      if (same < n) return;
      Pack update;
      if (is_active) {
        update.load(unit_of(args, same) + first);
        sums.add(update);
      }
    }
  }
  if (is_active) sums.result().store(out);
#endif
}

#elif FORM == WRITE

// owner: for each slot the last unit that goes there, -1 where there is none.

extern "C" __global__ void __launch_bounds__(THREADS) scatter_unclaim(const Arguments args, int* owner) {
  grid_dependency_wait();
  const count_t n = (count_t)blockIdx.x * THREADS + threadIdx.x;
  count_t slot;
  if (n < (count_t)args.units && slot_of(args, n, slot)) owner[slot] = -1;
}

extern "C" __global__ void __launch_bounds__(THREADS) scatter_claim(const Arguments args, int* owner) {
  grid_dependency_wait();
  const count_t n = (count_t)blockIdx.x * THREADS + threadIdx.x;
  count_t slot;
  if (n < (count_t)args.units && slot_of(args, n, slot)) atomicMax(owner + slot, (int)n);
}

// A thread for each access of the output. Where out is data, what no unit goes to stays as it is.
extern "C" __global__ void __launch_bounds__(THREADS) scatter_collect(const Arguments args, const int* owner) {
  grid_dependency_wait();
  const count_t accesses = (count_t)args.width / VECTOR;
  const count_t t = (count_t)blockIdx.x * THREADS + threadIdx.x;
  const count_t slot = IS_NARROW ? t : t / accesses;
  if (slot >= (count_t)args.slots) return;
  const count_t column = IS_NARROW ? 0 : (t - slot * accesses) * VECTOR;
  const int n = __ldg(owner + slot);
  if (n < 0 && args.out == args.data) return;
  Pack pack;
  pack.load(n < 0 ? args.data + t * VECTOR : unit_of(args, n) + column);
  pack.store(args.out + t * VECTOR);
}

#if IS_ATOMIC
union Word {
  word_t word;
  element_t elements[sizeof(word_t) / sizeof(element_t)];
};

#if REDUCTION == ADD && HAS_ATOMIC_ADD
// The atomic sum of floats takes subnormal numbers for 0. With a large enough summand that makes no difference: a
// subnormal number is lost beside it anyhow, and no difference of the two is subnormal.
DEVICE bool is_added_exactly(float x) { return fabsf(x) >= 0x1p-100f; }
template <typename T>
DEVICE bool is_added_exactly(T) {
  return true;
}
#if __CUDA_ARCH__ < 900
DEVICE bool is_added_exactly(bfloat_t) { return false; }  // there is none
DEVICE void add_without_answer(bfloat_t*, bfloat_t) {}
#else
DEVICE void add_without_answer(bfloat_t* p, bfloat_t x) {
  asm volatile("red.global.add.noftz.bf16 [%0], %1;" ::"l"(p), "h"(x.bits) : "memory");
}
#endif
DEVICE void add_without_answer(half_t* p, half_t x) {
  asm volatile("red.global.add.noftz.f16 [%0], %1;" ::"l"(p), "h"(x.bits) : "memory");
}
template <typename T>
DEVICE void add_without_answer(T* p, T x) {
  atomicAdd(p, x);
}
#endif

// IS_UNIQUE: nobody else is at the element; that no answer is waited for is all the gain.
DEVICE void combine_atomically(element_t* p, element_t x) {
#if REDUCTION == ADD && HAS_ATOMIC_ADD
  if (is_added_exactly(x)) {
    add_without_answer(p, x);
    return;
  }
#elif REDUCTION == MIN && HAS_ATOMIC_MIN
  atomicMin((atomic_t*)p, (atomic_t)x);
  return;
#elif REDUCTION == MAX && HAS_ATOMIC_MIN
  atomicMax((atomic_t*)p, (atomic_t)x);
  return;
#endif
#if IS_UNIQUE
  *p = narrow(combine(widen(*p), widen(x)));
#else
  // The word that holds the element; its other elements are written back as they are.
  word_t* address = (word_t*)((unsigned long long)p / sizeof(word_t) * sizeof(word_t));
  const int place = (int)(p - (element_t*)address);
  Word seen, wanted;
  seen.word = *(volatile word_t*)address;
  for (;;) {
    wanted = seen;
#pragma unroll
    for (int j = 0; j < (int)(sizeof(word_t) / sizeof(element_t)); ++j)
      if (j == place) wanted.elements[j] = narrow(combine(widen(seen.elements[j]), widen(x)));
    if (wanted.word == seen.word) return;
    const word_t before = atomicCAS(address, seen.word, wanted.word);
    if (before == seen.word) return;
    seen.word = before;
  }
#endif
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS) scatter_write(const Arguments args, const int* owner) {
  grid_dependency_wait();
  const count_t accesses = (count_t)args.width / VECTOR;  // of a unit
  const count_t t = (count_t)blockIdx.x * THREADS + threadIdx.x;
  const count_t n = IS_NARROW ? t : t / accesses;
  if (n >= (count_t)args.units) return;
  const count_t column = IS_NARROW ? 0 : (t - n * accesses) * VECTOR;
  Pack update;
  update.load(unit_of(args, n) + column);
  count_t slot;
  if (!slot_of(args, n, slot)) return;
  element_t* out = args.out + slot * (count_t)args.width + column;
#if IS_OWNED
  if (__ldg(owner + slot) != (int)n) return;
#endif
#if IS_ATOMIC
#pragma unroll
  for (int j = 0; j < VECTOR; ++j) combine_atomically(out + j, update.elements[j]);
#elif REDUCTION != NONE
  Sums sums;
  sums.start(load_shared(out));
  sums.add(update);
  sums.result().store(out);
#else
  update.store(out);
#endif
}

#endif
