// s[i, j] = scale sum over d of q[i, d] k[j, d], then softcap and what is seen        of one batch and head
// y[i, e] = sum over j of p[i, j] v[j, e],  p[i, j] = exp(s[i, j] - m[i]) / l[i],  m = max over j of s, l its sum of
// exp
//
// The text in front of this one is generated for the node at hand (table.cc, flash_wgmma.cc): head sizes and the tile
// configuration as macros, Arguments, and wgmma of TILE_N columns, multiply_keys, and of VALUE_SIZE columns,
// add_values.
//
// Softmax over tiles of keys as they come, on Hopper's tensor cores and copy engine (Shah et al., "FlashAttention-3",
// 2024). A persistent, warp-specialized kernel: of the first warpgroup one thread each copies tiles of Q, K and V, by
// TMA with the 128-byte swizzle; the CONSUMERS behind it have 64 queries each, scores and sums in registers. The scores
// of the next keys are issued before the softmax of these, and with TURNS the warpgroups issue their MMAs one after the
// other, so that the softmax of one runs under the MMAs of another. Up to a quarter slower on an H200: exponentials in
// part by polynomials, and sums that shrink only where a maximum has grown much.

#define ROWS (64 * CONSUMERS)
#define THREADS (128 * (CONSUMERS + 1))
#define QK_PADDED ((HEAD_SIZE + 15) / 16 * 16)  // with zeros behind the head
#define QK_BOXES ((HEAD_SIZE + 63) / 64)  // of 64 columns
#define V_BOXES ((VALUE_SIZE + 63) / 64)
#define Q_BYTES (64 * 128 * (QK_BOXES > V_BOXES ? QK_BOXES : V_BOXES))  // of a warpgroup: queries, then results
#define K_BYTES (TILE_N * 128 * QK_BOXES)
#define V_BYTES (TILE_N * 128 * V_BOXES)

// Registers of a thread: a launch divides the 64 Ki of a multiprocessor evenly, in eights; then the warpgroup that
// copies gives back what it does not need.
#define EVEN_REGISTERS (65536 / (THREADS * MIN_BLOCKS) / 8 * 8)
#define PRODUCER_REGISTERS (CONSUMERS < 3 ? 24 : 32)
#define LEFT_REGISTERS ((EVEN_REGISTERS * (CONSUMERS + 1) - PRODUCER_REGISTERS) / CONSUMERS / 8 * 8)
#define CONSUMER_REGISTERS (LEFT_REGISTERS < 240 ? LEFT_REGISTERS : 240)

struct FlashArguments {
  Arguments a;
  long long all_heads, section;  // heads of all batches; those whose tiles blocks take at a time
  TensorMap q, k, v, y;
};

// Named barriers: 0 is __syncthreads'.
DEVICE void sync_named(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
DEVICE void arrive_named(int id, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

// Queries of one head, and the tiles of keys that they see.
struct Tile {
  int row, head, batch, begin, end;
};

// Where things are in shared memory.
struct Shared {
  unsigned q, k, v, barriers;
  Tile* tiles;  // whose the queries of each warpgroup are
  // Barriers of a warpgroup's queries, of a stage of K and of one of V; where these are read, and may be written again.
  DEVICE unsigned q_full(int i) const { return barriers + i * 8; }
  DEVICE unsigned q_empty(int i) const { return q_full(Q_STAGES * CONSUMERS + i); }
  DEVICE unsigned k_full(int i) const { return q_full(2 * Q_STAGES * CONSUMERS + i); }
  DEVICE unsigned k_empty(int i) const { return k_full(STAGES + i); }
  DEVICE unsigned v_full(int i) const { return k_full(2 * STAGES + i); }
  DEVICE unsigned v_empty(int i) const { return k_full(3 * STAGES + i); }
};
#define BARRIERS (2 * Q_STAGES * CONSUMERS + 4 * STAGES)

// The tiles of a block. Those of `section` heads at a time are taken, whose keys the L2 cache keeps, the ones with most
// keys first, and every other round goes backwards, so that all blocks get as many keys.
struct Schedule {
  const FlashArguments& g;
  const Keys seen;
  const int of_head, all;  // tiles
  int round = 0;
  DEVICE explicit Schedule(const FlashArguments& g)
    : g(g), seen(g.a), of_head(((int)g.a.queries + ROWS - 1) / ROWS), all(of_head * (int)g.all_heads) {}
  DEVICE int index() const { return round * gridDim.x + (round % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x); }
  DEVICE bool exists() const { return round * gridDim.x < all; }
  DEVICE void step() { ++round; }
  DEVICE bool has_tile() const { return index() < all; }
  DEVICE Tile tile() const {
    Tile tile;
    const int at = index(), section = (int)g.section, first = at / (section * of_head) * section;
    const int heads = min(section, (int)g.all_heads - first), rest = at - first * of_head;
    const int number = of_head - 1 - rest / heads, both = first + rest % heads;
    tile.row = number * ROWS;
    tile.batch = both / (int)g.a.heads;
    tile.head = both % (int)g.a.heads;
    tile.begin = seen.first(tile.row) / TILE_N;
    tile.end = tiles_seen(tile.row + ROWS - 64);
    return tile;
  }
  // Tiles of keys, from the first on, that 64 queries see.
  DEVICE int tiles_seen(int row) const {
    return (seen.last(min(row + 64, (int)g.a.queries) - 1) + TILE_N - 1) / TILE_N;
  }
};

DEVICE void copy_queries(const FlashArguments& g, const Shared& shared) {
  prefetch_map(&g.q);
  grid_dependency_wait();
  Ring<Q_STAGES> ring;
  for (Schedule schedule(g); schedule.exists(); schedule.step()) {
    if (!schedule.has_tile()) continue;
    const Tile tile = schedule.tile();
#pragma unroll 1
    for (int i = 0; i < CONSUMERS; ++i) {
      const int at = ring.stage * CONSUMERS + i;
      wait_barrier(shared.q_empty(at), ring.phase ^ 1);
      shared.tiles[at] = tile;  // its divisions would be what the first MMA waits for
      expect_bytes(shared.q_full(at), 64 * 128 * QK_BOXES);
#pragma unroll
      for (int box = 0; box < QK_BOXES; ++box)
        copy_box(shared.q + at * Q_BYTES + box * (64 * 128), &g.q, box * 64, tile.row + i * 64, tile.head, tile.batch,
          shared.q_full(at));
    }
    ring.step();
  }
}

template <bool OF_V>
DEVICE void copy_keys(const FlashArguments& g, const Shared& shared) {
  const TensorMap* const map = OF_V ? &g.v : &g.k;
  prefetch_map(map);
  grid_dependency_wait();
  Ring<STAGES> ring;
  for (Schedule schedule(g); schedule.exists(); schedule.step()) {
    if (!schedule.has_tile()) continue;
    const Tile tile = schedule.tile();
    const int head = tile.head / (int)g.a.group;
#pragma unroll 1
    for (int n = tile.end - 1; n >= tile.begin; --n, ring.step()) {
      const unsigned full = OF_V ? shared.v_full(ring.stage) : shared.k_full(ring.stage);
      const unsigned to = OF_V ? shared.v + ring.stage * V_BYTES : shared.k + ring.stage * K_BYTES;
      wait_barrier(OF_V ? shared.v_empty(ring.stage) : shared.k_empty(ring.stage), ring.phase ^ 1);
      expect_bytes(full, OF_V ? V_BYTES : K_BYTES);
#pragma unroll
      for (int box = 0; box < (OF_V ? V_BOXES : QK_BOXES); ++box)
        copy_box(to + box * (TILE_N * 128), map, box * 64, n * TILE_N, head, tile.batch, full);
    }
  }
}

// The queries of a warpgroup. A thread has of its warp's 16 rows the rows lane / 4 and 8 more, and of each eight
// columns two.
struct Rows {
  float sums[VALUE_SIZE / 2], row_max[2], row_sum[2];
  const float scale, exponent_scale, softcap;

  DEVICE explicit Rows(const Arguments& a)
    : scale((float)a.scale),
      exponent_scale(SCALE_IS_LATE ? (float)a.scale * LOG2_E : 1.0f),
      softcap((float)a.softcap) {}

  DEVICE void clear() {
#pragma unroll
    for (int i = 0; i < VALUE_SIZE / 2; ++i) sums[i] = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      row_max[half] = -INFINITE;
      row_sum[half] = 0;
    }
  }

  // Scores of products with the keys from `first` on; those that the rows from `row` on do not see become -inf.
  DEVICE void score(float (&s)[TILE_N / 2], const Keys& seen, int row, int first) const {
    if (!SCALE_IS_LATE) {
#pragma unroll
      for (int i = 0; i < TILE_N / 2; ++i) {
        s[i] *= scale;
#if HAS_SOFTCAP
        s[i] = softcap - 2 * softcap / (exp2_of(s[i] * (2 * LOG2_E / softcap)) + 1);
#endif
        s[i] *= LOG2_E;
      }
    }
    if (first + TILE_N <= seen.last(row) && first >= seen.first(row + 63)) return;
    const int lane = threadIdx.x % 32, own = row + threadIdx.x % 128 / 32 * 16 + lane / 4,
              column = first + lane % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int from = seen.first(own + half * 8) - column, to = seen.last(own + half * 8) - column;
#pragma unroll
      for (int j = 0; j < TILE_N / 8; ++j)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          if ((HAS_WINDOW && j * 8 + i < from) || j * 8 + i >= to) s[j * 4 + half * 2 + i] = -INFINITE;
    }
  }

  // Scores become exponentials, whose maxima and sums are kept; `factor` is by what earlier sums shrink.
  DEVICE void soften(float (&s)[TILE_N / 2], float (&factor)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float most[2] = {row_max[half], -INFINITE};  // two chains, since each is as slow as its latency
#pragma unroll
      for (int j = 0; j < TILE_N / 8; ++j)
#pragma unroll
        for (int i = 0; i < 2; ++i) most[i] = fmaxf(most[i], s[j * 4 + half * 2 + i]);
      most[0] = max_of_row(fmaxf(most[0], most[1]));
      // A row in which nothing is seen yet has exponentials of 0.
      const float base = most[0] == -INFINITE ? 0.0f : most[0] * exponent_scale;
      factor[half] = exp2_of(fmaf(row_max[half], exponent_scale, -base));
      row_max[half] = most[0];
      float sum[2] = {row_sum[half] * factor[half], 0};
#pragma unroll
      for (int j = 0; j < TILE_N / 8; ++j)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float& x = s[j * 4 + half * 2 + i];
          x = exp2_of(fmaf(x, exponent_scale, -base));
          sum[i] += x;
        }
      row_sum[half] = sum[0] + sum[1];
    }
  }

  DEVICE void shrink(const float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < VALUE_SIZE / 2; ++i) sums[i] *= factor[i / 2 % 2];
  }

  // To the copy engine through the queries' place in shared memory.
  DEVICE void store(unsigned to, const TensorMap* map, int row, int head, int batch, bool zero) {
    const int lane = threadIdx.x % 32, own = threadIdx.x % 128 / 32 * 16 + lane / 4;
    float scale[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = sum_of_row(row_sum[half]);
      scale[half] = sum == 0 && zero ? 0.0f : 1.0f / sum;
    }
    sync_named(CONSUMERS + threadIdx.x / 128, 128);  // no warp multiplies by queries any more
#pragma unroll
    for (int j = 0; j < VALUE_SIZE / 8; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const unsigned at = to + j / 8 * (64 * 128) + (own + half * 8) * 128 + (j % 8 ^ lane / 4) * 16 + lane % 4 * 4;
        const int i = j * 4 + half * 2;
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(pack(sums[i] * scale[half], sums[i + 1] * scale[half]))
          : "memory");
      }
    fence_async_proxy();
    sync_named(CONSUMERS + threadIdx.x / 128, 128);
    if (threadIdx.x % 128 == 0) {
#pragma unroll
      for (int box = 0; box < V_BOXES; ++box) store_box(map, box * 64, row, head, batch, to + box * (64 * 128));
      commit_stores();
    }
  }
};

// P as the A operand of wgmma: the exponentials, rounded.
DEVICE void round_all(unsigned (&p)[TILE_N / 4], const float (&s)[TILE_N / 2]) {
#pragma unroll
  for (int i = 0; i < TILE_N / 4; ++i) p[i] = pack(s[2 * i], s[2 * i + 1]);
}

DEVICE void issue_scores(float (&s)[TILE_N / 2], unsigned q, unsigned k) {
#pragma unroll
  for (int d = 0; d < QK_PADDED; d += 16)
    multiply_keys(s, descriptor_at(q + d / 64 * (64 * 128) + d % 64 * 2),
      descriptor_at(k + d / 64 * (TILE_N * 128) + d % 64 * 2), d > 0);
  commit_wgmma();
}

DEVICE void issue_values(float (&sums)[VALUE_SIZE / 2], const unsigned (&p)[TILE_N / 4], unsigned v) {
#pragma unroll
  for (int n = 0; n < TILE_N; n += 16)
    add_values(
      sums, p[n / 4], p[n / 4 + 1], p[n / 4 + 2], p[n / 4 + 3], descriptor_mn_major_at(v + n * 128, TILE_N * 128));
  commit_wgmma();
}

#if SKIPS
// The last of the block's tiles of keys that none of a warpgroup's queries, from `row` on, see: they are waited for and
// released as if they had been read. `turn()` takes and passes on a turn.
template <typename Release, typename Turn>
DEVICE void leave_out(Tile& tile, int row, const Schedule& schedule, const Shared& shared, Ring<STAGES>& of_k,
  Ring<STAGES>& of_v, Release release, Turn turn) {
  const int end = row < (int)schedule.g.a.queries ? schedule.tiles_seen(row) : tile.begin;
#pragma unroll 1
  for (; tile.end > max(end, tile.begin); --tile.end) {
    wait_barrier(shared.k_full(of_k.stage), of_k.phase);
    release(shared.k_empty(of_k.stage));
    of_k.step();
    if (tile.end > tile.begin + 1) turn();
    wait_barrier(shared.v_full(of_v.stage), of_v.phase);
    release(shared.v_empty(of_v.stage));
    of_v.step();
  }
}
#endif

DEVICE void consume(const FlashArguments& g, const Shared& shared) {
  const int own = __shfl_sync(0xffffffffu, threadIdx.x / 128 - 1, 0);  // known to be the same for a warp
  const bool is_first = threadIdx.x % 128 == 0;
  grid_dependency_wait();  // before results are written
  if (TURNS && own == 0) arrive_named(1, 256);
  const auto turn = [&] {
    if (TURNS) sync_named(1 + own, 256);
  };
  const auto pass = [&] {
    if (TURNS) arrive_named(1 + (own + 1) % CONSUMERS, 256);
  };
  const auto release = [&](unsigned barrier) {
    if (is_first) arrive(barrier);
  };
  Rows rows(g.a);
  Ring<Q_STAGES> of_q;
  Ring<STAGES> of_k, of_v;
#pragma unroll 1
  for (Schedule schedule(g); schedule.exists(); schedule.step()) {
    if (!schedule.has_tile()) continue;
    const unsigned at = of_q.stage * CONSUMERS + own, q = shared.q + at * Q_BYTES;
    rows.clear();
    wait_barrier(shared.q_full(at), of_q.phase);
    Tile tile = shared.tiles[at];
    const int row = tile.row + own * 64;
#if SKIPS
    leave_out(tile, row, schedule, shared, of_k, of_v, release, [&] { turn(), pass(); });
#endif
    if (tile.begin < tile.end) {
      float s[TILE_N / 2], factor[2];
      unsigned p[TILE_N / 4];
      wait_barrier(shared.k_full(of_k.stage), of_k.phase);
      fence_wgmma();
      issue_scores(s, q, shared.k + of_k.stage * K_BYTES);
      wait_multiply_keys<0>(s);
      release(shared.k_empty(of_k.stage));
      of_k.step();
      int n = tile.end - 1;
      rows.score(s, schedule.seen, row, n * TILE_N);
      rows.soften(s, factor);
      round_all(p, s);
      const auto wait_keys = [&](int n) {
        if (n >= tile.begin) wait_barrier(shared.k_full(of_k.stage), of_k.phase);
      };
      wait_keys(--n);
#pragma unroll 1
      while (n >= tile.begin) {
        turn();
        fence_wgmma();
        issue_scores(s, q, shared.k + of_k.stage * K_BYTES);
        wait_barrier(shared.v_full(of_v.stage), of_v.phase);
        issue_values(rows.sums, p, shared.v + of_v.stage * V_BYTES);
        pass();
        wait_multiply_keys<1>(s);
        release(shared.k_empty(of_k.stage));
        of_k.step();
        rows.score(s, schedule.seen, row, n * TILE_N);
        rows.soften(s, factor);
        wait_keys(--n);  // a branch, over which the compiler does not move the wait for values to before the softmax
        wait_add_values<0>(rows.sums);
        release(shared.v_empty(of_v.stage));
        of_v.step();
        rows.shrink(factor);
        round_all(p, s);
      }
      wait_barrier(shared.v_full(of_v.stage), of_v.phase);
      fence_wgmma();
      issue_values(rows.sums, p, shared.v + of_v.stage * V_BYTES);
      wait_add_values<0>(rows.sums);
      release(shared.v_empty(of_v.stage));
      of_v.step();
    }
    rows.store(q, &g.y, row, tile.head, tile.batch, g.a.zero_where_nothing_is_seen);
    if (is_first) {
      wait_stores();
      arrive(shared.q_empty(at));
    }
    of_q.step();
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
  flash_wgmma(const __grid_constant__ FlashArguments g) {
  extern __shared__ __align__(1024) uint4 dynamic[];
  __shared__ __align__(8) unsigned long long barriers[BARRIERS];
  __shared__ Tile tiles[Q_STAGES * CONSUMERS];
  Shared shared;
  shared.tiles = tiles;
  shared.q = shared_address(dynamic);
  shared.k = shared.q + Q_STAGES * CONSUMERS * Q_BYTES;
  shared.v = shared.k + STAGES * K_BYTES;
  shared.barriers = shared_address(barriers);
  if (threadIdx.x == 0) {
#pragma unroll 1
    for (int i = 0; i < BARRIERS; ++i) {
      const int ring = i - 2 * Q_STAGES * CONSUMERS;
      init_barrier(shared.q_full(i), ring >= 0 && ring / STAGES % 2 ? CONSUMERS : 1);
    }
    fence_barriers();
  }
  __syncthreads();
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);  // known to be the same for a warp
  if (warp < 4) {
    set_registers<PRODUCER_REGISTERS, false>();
    if (threadIdx.x % 32 == 0) {
      if (warp == 0) copy_queries(g, shared);
      if (warp == 1) copy_keys<false>(g, shared);
      if (warp == 2) copy_keys<true>(g, shared);
    }
  } else {
    set_registers<CONSUMER_REGISTERS, true>();
    consume(g, shared);
  }
}
