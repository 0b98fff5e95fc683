// The sorting form: units ordered by slot, equal slots by number (a stable radix sort from the lowest digit on), then
// each slot's units folded in that order. A pass reads and writes the keys once, as in Adinets and Merrill, "Onesweep:
// A Faster Least Significant Digit Radix Sort for GPUs", 2022: a tile finds out how many keys of the tiles before it
// have each digit by looking back at what they have published.
//
// A key is a unit's slot, or `slots` where its index is out of range: those come last.

#define DIGITS 256
#define SORT_THREADS 512
#define SORT_ITEMS (sizeof(count_t) == 4 ? 16 : 8)
#define SORT_TILE (SORT_THREADS * SORT_ITEMS)
#define SORT_WARPS (SORT_THREADS / 32)

DEVICE count_t key_of(const Arguments& args, count_t n) {
  count_t slot;
  return slot_of(args, n, slot) ? slot : (count_t)args.slots;
}

// counts: [passes, DIGITS], zero before: how many keys have each digit.
extern "C" __global__ void __launch_bounds__(SORT_THREADS, 1)
  sort_count(const Arguments args, unsigned* counts, int passes, int bits) {
  grid_dependency_wait();
  __shared__ unsigned local[8 * DIGITS];
  for (int i = threadIdx.x; i < passes * DIGITS; i += SORT_THREADS) local[i] = 0;
  __syncthreads();
  const unsigned units = (unsigned)args.units;
  for (unsigned n = blockIdx.x * SORT_THREADS + threadIdx.x; n < units; n += gridDim.x * SORT_THREADS) {
    count_t key = key_of(args, n);
    for (int pass = 0; pass < passes; ++pass, key >>= bits)
      atomicAdd(local + pass * DIGITS + (unsigned)(key & ((1u << bits) - 1)), 1u);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < passes * DIGITS; i += SORT_THREADS)
    if (local[i] != 0) atomicAdd(counts + i, local[i]);
}

// The sum of x over the threads before this one.
DEVICE unsigned sum_before(unsigned x, unsigned* slots) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  unsigned sum = x;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const unsigned other = __shfl_up_sync(FULL_WARP, sum, distance);
    if (lane >= distance) sum += other;
  }
  __syncthreads();  // the slots may still be read from the last call
  if (lane == 31) slots[warp] = sum;
  __syncthreads();
  for (int i = 0; i < warp; ++i) sum += slots[i];
  return sum - x;
}

// What a tile has published of a digit: nothing yet, its own count, or the count of all tiles up to it.
#define OWN (1u << 30)
#define ALL (2u << 30)
#define COUNT_BITS ((1u << 30) - 1)
constexpr int kWindow = 16;

// Place of each key among its warp's of the same digit.
DEVICE void rank_keys(
  unsigned short (&rank)[SORT_ITEMS], const count_t (&key)[SORT_ITEMS], unsigned short* counts, int shift, int bits) {
  const unsigned lane = threadIdx.x % 32, digit_mask = (1u << bits) - 1;
#pragma unroll
  for (int i = 0; i < SORT_ITEMS; ++i) {
    const unsigned digit = (unsigned)(key[i] >> shift) & digit_mask;
    unsigned peers = FULL_WARP;
    for (int bit = 0; bit < bits; ++bit) {
      const bool is_set = digit >> bit & 1;
      const unsigned with = __ballot_sync(FULL_WARP, is_set);
      peers &= is_set ? with : ~with;
    }
    const unsigned before = counts[digit];
    __syncwarp();
    const unsigned ahead = __popc(peers & ((1u << lane) - 1));
    if (ahead == 0) counts[digit] = (unsigned short)(before + __popc(peers));
    __syncwarp();
    rank[i] = (unsigned short)(before + ahead);
  }
}

// How many keys of the digit the tiles before have: each group of threads looks at kWindow of them, the first at the
// nearest, until one has the count of all before it.
DEVICE unsigned count_before(volatile const unsigned* published, unsigned* partial, unsigned tile, unsigned digit,
  unsigned group, unsigned groups, unsigned digit_mask) {
  unsigned before = 0;
  bool is_known = tile == 0;
  for (int last = (int)tile - 1; tile > 0; last -= (int)(groups * kWindow)) {
    const int nearest = last - (int)group * kWindow;
    volatile const unsigned* nearest_count = published + (long long)nearest * DIGITS + digit;
    unsigned seen[kWindow], sum = 0;
#pragma unroll
    for (int i = 0; i < kWindow; ++i) seen[i] = nearest >= i ? nearest_count[-i * DIGITS] : (unsigned)ALL;
#pragma unroll
    for (int i = 0; i < kWindow; ++i) {
      while (seen[i] == 0) seen[i] = nearest_count[-i * DIGITS];
      if ((sum & ALL) == 0) sum += seen[i];  // OWN is taken off again
      sum &= ~OWN;
    }
    partial[threadIdx.x] = sum;
    __syncthreads();
    for (unsigned other = digit; other < SORT_THREADS && !is_known; other += digit_mask + 1) {
      before += partial[other] & COUNT_BITS;
      is_known = (partial[other] & ALL) != 0;
    }
    if (__syncthreads_and(is_known)) break;
  }
  return before;
}

// One pass by the digit from bit `shift` on. published: [tiles, DIGITS] and ticket: zero before. The first pass takes
// keys and units from args.
extern "C" __global__ void __launch_bounds__(SORT_THREADS, 1) sort_pass(const Arguments args, const count_t* keys,
  const unsigned* units, count_t* sorted_keys, unsigned* sorted_units, const unsigned* counts,
  volatile unsigned* published, unsigned* ticket, int shift, int bits) {
  grid_dependency_wait();
  __shared__ unsigned short warp_counts[SORT_WARPS][DIGITS];
  __shared__ count_t exchange[SORT_TILE];
  __shared__ unsigned target[DIGITS], partial[SORT_THREADS], slots[SORT_WARPS], ticket_drawn;
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, total = (unsigned)args.units;
  // Tiles are numbered in the order in which blocks start, so that those before are running or done.
  if (threadIdx.x == 0) ticket_drawn = atomicAdd(ticket, 1u);
  for (int i = threadIdx.x; i < SORT_WARPS * DIGITS; i += SORT_THREADS) (&warp_counts[0][0])[i] = 0;
  __syncthreads();
  const unsigned tile = ticket_drawn, first = tile * SORT_TILE;
  const unsigned mine = first + warp * (32 * SORT_ITEMS) + lane;  // a warp's keys lie side by side

  count_t key[SORT_ITEMS];
  unsigned unit[SORT_ITEMS];
#pragma unroll
  for (int i = 0; i < SORT_ITEMS; ++i) {
    const unsigned n = mine + i * 32;
    key[i] = ~(count_t)0;  // past the end: the last digit, behind all that are there
    if (n < total) key[i] = keys == nullptr ? key_of(args, n) : keys[n];
    unit[i] = n < total && units != nullptr ? units[n] : n;
  }

  unsigned short rank[SORT_ITEMS];
  const unsigned digit_mask = (1u << bits) - 1;
  rank_keys(rank, key, warp_counts[warp], shift, bits);
  __syncthreads();

  // A thread for each digit: the warps' shares.
  unsigned count = 0;
  const unsigned digit = threadIdx.x & digit_mask, group = threadIdx.x >> bits, groups = SORT_THREADS >> bits;
  if (group == 0) {
#pragma unroll
    for (int w = 0; w < SORT_WARPS; ++w) {
      const unsigned share = warp_counts[w][digit];
      warp_counts[w][digit] = (unsigned short)count;
      count += share;
    }
    published[tile * DIGITS + digit] = (tile == 0 ? ALL : OWN) | count;
  }
  const unsigned in_tile = sum_before(count, slots);
  const unsigned smaller = sum_before(group == 0 ? counts[digit] : 0, slots);

  const unsigned before = count_before(published, partial, tile, digit, group, groups, digit_mask);
  if (group == 0) {
    if (tile > 0) published[tile * DIGITS + digit] = ALL | (before + count);
    target[digit] = smaller + before - in_tile;
    // Each warp's keys of the digit go on from there in the tile.
#pragma unroll
    for (int w = 0; w < SORT_WARPS; ++w) warp_counts[w][digit] += (unsigned short)in_tile;
  }
  __syncthreads();

  // Through shared memory, so that what goes side by side is written side by side.
#pragma unroll
  for (int i = 0; i < SORT_ITEMS; ++i)
    exchange[rank[i] += warp_counts[warp][(unsigned)(key[i] >> shift) & digit_mask]] = key[i];
  __syncthreads();
  const unsigned left = total - first < SORT_TILE ? total - first : SORT_TILE;
  unsigned place[SORT_ITEMS];
#pragma unroll
  for (int i = 0; i < SORT_ITEMS; ++i) {
    const unsigned p = i * SORT_THREADS + threadIdx.x;
    const count_t moved = exchange[p];
    place[i] = target[(unsigned)(moved >> shift) & digit_mask] + p;
    if (p < left) sorted_keys[place[i]] = moved;
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < SORT_ITEMS; ++i) ((unsigned*)exchange)[rank[i]] = unit[i];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < SORT_ITEMS; ++i) {
    const unsigned p = i * SORT_THREADS + threadIdx.x;
    if (p < left) sorted_units[place[i]] = ((const unsigned*)exchange)[p];
  }
}

#if REDUCTION != NONE && IS_NARROW

// Adds the units of `slot` from `next` on, up to AHEAD * 32 of them, in order and in every lane; returns how many there
// were. The warp loads them side by side.
template <int AHEAD>
DEVICE int add_units(
  const Arguments& args, const count_t* keys, const unsigned* units, count_t slot, count_t next, Sums& sums) {
  const count_t lane = threadIdx.x % 32, total = (count_t)args.units;
  Pack ahead[AHEAD];
  int count = 0;
#pragma unroll
  for (int i = 0; i < AHEAD; ++i) {
    const count_t mine = next + i * 32 + lane;
    const bool is_same = mine < total && keys[mine] == slot;
    if (is_same) ahead[i].load(unit_of(args, units[mine]));
    count += __popc(__ballot_sync(FULL_WARP, is_same));
  }
#pragma unroll
  for (int i = 0; i < AHEAD; ++i) {
    Sums one;
    one.start(ahead[i]);
#pragma unroll 8
    for (int lane_of = 0; lane_of < 32; ++lane_of) {
      if (i * 32 + lane_of >= count) break;
#pragma unroll
      for (int j = 0; j < VECTOR; ++j) sums.x[j] = combine(sums.x[j], __shfl_sync(FULL_WARP, one.x[j], lane_of));
    }
  }
  return count;
}

// Each lane loads its unit; a slot's first then takes its neighbours' one after another.
DEVICE void fold_narrow(
  const Arguments& args, const count_t* keys, const unsigned* units, count_t place, count_t slot, element_t* out) {
  const bool is_valid = slot < (count_t)args.slots;
  const int lane = threadIdx.x % 32;
  Pack pack;
  if (is_valid) pack.load(unit_of(args, units[place]));
  count_t previous = __shfl_up_sync(FULL_WARP, slot, 1);
  bool is_start = lane == 0 || previous != slot;
  const unsigned starts = __ballot_sync(FULL_WARP, is_start);
  if (lane == 0 && place > 0 && is_valid) is_start = keys[place - 1] != slot;
  const bool is_first = is_valid && is_start;
  if (__ballot_sync(FULL_WARP, is_first) == 0) return;
  const unsigned later = starts & ~((2u << lane) - 1);  // none: the slot's units go on in the next warp
  const int length = is_first ? (later != 0 ? __ffs(later) - 1 : 32) - lane : 0;
  Sums sums, own;
  own.start(pack);
  if (is_first) {
    sums.start(load_shared(out));
    sums.add(pack);
  }
  for (int step = 1; __any_sync(FULL_WARP, step < length); ++step) {
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) {
      const compute_t x = __shfl_down_sync(FULL_WARP, own.x[j], step);
      if (step < length) sums.x[j] = combine(sums.x[j], x);
    }
  }
  const int last = 31 - __clz(starts);
  if (__shfl_sync(FULL_WARP, is_first, last)) {
    const count_t slot_of_last = __shfl_sync(FULL_WARP, slot, last);
    count_t next = place - lane + 32;
    Sums all;
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) all.x[j] = __shfl_sync(FULL_WARP, sums.x[j], last);
    constexpr int kAhead = sizeof(Pack) < 4 ? 8 : sizeof(Pack) > 16 ? 1 : 32 / sizeof(Pack);
    int count = add_units<1>(args, keys, units, slot_of_last, next, all);
    if (count == 32) {
      next += 32;
      while ((count = add_units<kAhead>(args, keys, units, slot_of_last, next, all)) == kAhead * 32) next += count;
    }
    if (lane == last) sums = all;
  }
  if (is_first) sums.result().store(out);
}
#endif

// A thread for each access of each sorted unit; those of a slot's first unit (without a reduction its last) do the
// work.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
  scatter_fold(const Arguments args, const count_t* keys, const unsigned* units) {
  grid_dependency_wait();
  const count_t accesses = (count_t)args.width / VECTOR;
  const count_t t = (count_t)blockIdx.x * THREADS + threadIdx.x;
  const count_t place = IS_NARROW ? t : t / accesses, total = (count_t)args.units;
  const count_t column = IS_NARROW ? 0 : (t - place * accesses) * VECTOR;
  const count_t slot = place < total ? keys[place] : (count_t)args.slots;
  const bool is_valid = slot < (count_t)args.slots;
  element_t* out = args.out + slot * (count_t)args.width + column;
#if REDUCTION == NONE
  if (!is_valid || (place + 1 < total && keys[place + 1] == slot)) return;
  Pack update;
  update.load(unit_of(args, units[place]) + column);
  update.store(out);
#elif IS_NARROW
  fold_narrow(args, keys, units, place, slot, out);
#else
  if (!is_valid || (place > 0 && keys[place - 1] == slot)) return;
  Sums sums;
  Pack update;
  sums.start(load_shared(out));
  update.load(unit_of(args, units[place]) + column);
  sums.add(update);
  // Many loads are on their way while their predecessors are added one by one.
  constexpr int kAhead = sizeof(Pack) > 8 ? 4 : 8;
  unsigned number[kAhead];
  count_t next = place + 1;
  const auto fetch = [&] {
    int count = 0;
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      if (next + i < total && keys[next + i] == slot) {
        number[i] = units[next + i];
        count = i + 1;
      }
    next += count;
    return count;
  };
  for (int count = fetch(); count > 0;) {
    Pack ahead[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      if (i < count) ahead[i].load(unit_of(args, number[i]) + column);
    const int more = count == kAhead ? fetch() : 0;
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      if (i < count) sums.add(ahead[i]);
    count = more;
  }
  sums.result().store(out);
#endif
}
