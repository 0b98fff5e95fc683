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

__device__ __forceinline__ count_t key_of(const Arguments& args, count_t n) {
  count_t slot;
  return slot_of(args, n, slot) ? slot : (count_t)args.slots;
}

// counts: [passes, DIGITS], zero before: how many keys have each digit.
extern "C" __global__ void __launch_bounds__(SORT_THREADS)
    sort_count(const Arguments args, unsigned* counts, int passes, int bits) {
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

// The sum of x over the threads before this one; DIGITS threads or more, of which the first DIGITS count.
__device__ __forceinline__ unsigned sum_before(unsigned x, unsigned* slots) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  unsigned sum = x;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const unsigned other = __shfl_up_sync(FULL_WARP, sum, distance);
    if (lane >= distance) sum += other;
  }
  __syncthreads();  // the slots may still be read from the last call
  if (lane == 31 && warp < DIGITS / 32) slots[warp] = sum;
  __syncthreads();
  for (int i = 0; i < DIGITS / 32; ++i)
    if (i < warp) sum += slots[i];
  return sum - x;
}

// What a tile has published of a digit: nothing yet, its own count, or the count of all tiles up to it.
#define OWN (1u << 30)
#define ALL (2u << 30)
#define COUNT_BITS ((1u << 30) - 1)

// One pass by the digit from bit `shift` on. published: [tiles, DIGITS] and ticket: zero before. The first pass takes
// keys and units from args.
extern "C" __global__ void __launch_bounds__(SORT_THREADS)
    sort_pass(const Arguments args, const count_t* keys, const unsigned* units, count_t* sorted_keys,
              unsigned* sorted_units, const unsigned* counts, unsigned* published, unsigned* ticket, int shift,
              int bits) {
  __shared__ unsigned short warp_counts[SORT_WARPS][DIGITS];
  __shared__ count_t exchange[SORT_TILE];
  __shared__ unsigned target[DIGITS], slots[32], ticket_drawn;
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

  // Place of each key among its warp's of the same digit.
  unsigned short rank[SORT_ITEMS];
  const unsigned digit_mask = (1u << bits) - 1;
#pragma unroll
  for (int i = 0; i < SORT_ITEMS; ++i) {
    const unsigned digit = (unsigned)(key[i] >> shift) & digit_mask;
    unsigned peers = FULL_WARP;
    for (int bit = 0; bit < bits; ++bit) {
      const bool is_set = digit >> bit & 1;
      const unsigned with = __ballot_sync(FULL_WARP, is_set);
      peers &= is_set ? with : ~with;
    }
    const unsigned before = warp_counts[warp][digit];
    __syncwarp();
    const unsigned ahead = __popc(peers & ((1u << lane) - 1));
    if (ahead == 0) warp_counts[warp][digit] = (unsigned short)(before + __popc(peers));
    __syncwarp();
    rank[i] = (unsigned short)(before + ahead);
  }
  __syncthreads();

  // A thread for each digit: the warps' shares, the tiles before, and where the digit's keys go.
  unsigned count = 0;
  const unsigned digit = threadIdx.x;
  if (digit < DIGITS) {
#pragma unroll
    for (int w = 0; w < SORT_WARPS; ++w) {
      const unsigned share = warp_counts[w][digit];
      warp_counts[w][digit] = (unsigned short)count;
      count += share;
    }
    ((volatile unsigned*)published)[tile * DIGITS + digit] = (tile == 0 ? ALL : OWN) | count;
  }
  const unsigned in_tile = sum_before(count, slots);
  const unsigned smaller = sum_before(digit < DIGITS ? counts[digit] : 0, slots);
  if (digit < DIGITS) {
    unsigned before = 0;
    constexpr int kWindow = 16;
    for (int last = (int)tile - 1; last >= 0;) {
      unsigned seen[kWindow];
#pragma unroll
      for (int i = 0; i < kWindow; ++i)
        seen[i] = last - i >= 0 ? ((volatile unsigned*)published)[(last - i) * DIGITS + digit] : (unsigned)ALL;
      bool is_open = true;
#pragma unroll
      for (int i = 0; i < kWindow; ++i) {
        if (!is_open || seen[i] == 0) {
          is_open = false;
        } else {
          before += seen[i] & COUNT_BITS;
          if ((seen[i] & ALL) != 0) {
            last = -1;
            is_open = false;
          } else {
            --last;
          }
        }
      }
    }
    if (tile > 0) ((volatile unsigned*)published)[tile * DIGITS + digit] = ALL | (before + count);
    target[digit] = smaller + before - in_tile;
    // Each warp's keys of the digit go on from there in the tile.
#pragma unroll
    for (int w = 0; w < SORT_WARPS; ++w) warp_counts[w][digit] += (unsigned short)in_tile;
  }
  __syncthreads();

  // Through shared memory, so that what goes side by side is written side by side.
#pragma unroll
  for (int i = 0; i < SORT_ITEMS; ++i) {
    rank[i] += warp_counts[warp][(unsigned)(key[i] >> shift) & digit_mask];
    exchange[rank[i]] = key[i];
  }
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

// A thread for each access of each sorted unit; those of a slot's first unit (without a reduction its last) do the
// work.
extern "C" __global__ void __launch_bounds__(THREADS)
    scatter_fold(const Arguments args, const count_t* keys, const unsigned* units) {
  const count_t accesses = (count_t)args.width / VECTOR;
  const count_t t = (count_t)blockIdx.x * THREADS + threadIdx.x;
  const count_t place = IS_NARROW ? t : t / accesses, total = (count_t)args.units;
  const count_t column = IS_NARROW ? 0 : (t - place * accesses) * VECTOR;
  const count_t slot = place < total ? keys[place] : (count_t)args.slots;
  element_t* out = args.out + slot * (count_t)args.width + column;
#if REDUCTION == NONE
  if (slot >= (count_t)args.slots || (place + 1 < total && keys[place + 1] == slot)) return;
  Pack update;
  update.load(unit_of(args, units[place]) + column);
  update.store(out);
#else
  const bool is_first = slot < (count_t)args.slots && (place == 0 || keys[place - 1] != slot);
  if (!IS_NARROW && !is_first) return;
  Sums sums;
  if (is_first) {
    Pack update;
    sums.start(load_shared(out));
    update.load(unit_of(args, units[place]) + column);
    sums.add(update);
  }
  // Many loads are on their way while their predecessors are added one by one.
  const bool is_long = IS_NARROW && is_first && place + 32 < total && keys[place + 32] == slot;
  if (is_first && !is_long) {
    constexpr int kAhead = sizeof(Pack) > 8 ? 4 : 8;
    unsigned number[kAhead];
    count_t next = place + 1;
    const auto fetch = [&] {
      int count = 0;
#pragma unroll
      for (int i = 0; i < kAhead; ++i)
        if (count == i && next + i < total && keys[next + i] == slot) {
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
      const int later = count == kAhead ? fetch() : 0;
#pragma unroll
      for (int i = 0; i < kAhead; ++i)
        if (i < count) sums.add(ahead[i]);
      count = later;
    }
  }
#if IS_NARROW
  // The warp as one loads the units of a slot that has many; every lane adds them all.
  const int lane = threadIdx.x % 32;
  for (unsigned left = __ballot_sync(FULL_WARP, is_long); left != 0; left &= left - 1) {
    const int source = __ffs(left) - 1;
    const count_t shared_slot = __shfl_sync(FULL_WARP, slot, source);
    count_t next = __shfl_sync(FULL_WARP, place, source) + 1;
    Sums all;
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) all.x[j] = __shfl_sync(FULL_WARP, sums.x[j], source);
    constexpr int kAhead = 32 / sizeof(Pack) > 8 ? 8 : 32 / sizeof(Pack);
    int count;
    do {
      Pack ahead[kAhead];
      count = 0;
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const count_t mine = next + i * 32 + lane;
        const bool is_same = mine < total && keys[mine] == shared_slot;
        if (is_same) ahead[i].load(unit_of(args, units[mine]));
        count += __popc(__ballot_sync(FULL_WARP, is_same));
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int here = count - i * 32 < 32 ? count - i * 32 : 32;
        Sums one;
        one.start(ahead[i]);
        if (here == 32) {
#pragma unroll 8
          for (int source_lane = 0; source_lane < 32; ++source_lane)
#pragma unroll
            for (int j = 0; j < VECTOR; ++j)
              all.x[j] = combine(all.x[j], __shfl_sync(FULL_WARP, one.x[j], source_lane));
        } else {
          for (int source_lane = 0; source_lane < here; ++source_lane)
#pragma unroll
            for (int j = 0; j < VECTOR; ++j)
              all.x[j] = combine(all.x[j], __shfl_sync(FULL_WARP, one.x[j], source_lane));
        }
      }
      next += count;
    } while (count == kAhead * 32);
    if (lane == source) sums = all;
  }
#endif
  if (is_first) sums.result().store(out);
#endif
}
