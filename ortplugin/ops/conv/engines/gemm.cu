// y[p, m] = program(sum over c of x[p, c] w[m, c]): a matrix product or a convolution; each group has tiles of its own
//
// Before this text comes what engine.h says, and wgmma.cuh, tma.cuh, cluster.cuh and gemm_epilogue.cuh; with a norm
// (IS_NORMALIZED) also gemm_norm.cuh: the blocks of a cluster have the tiles of the same rows then, one each. Where
// tiles are few, a cluster of SPLIT_K blocks shares one: each has a part of K, and adds the sums of a part of the
// columns.
//
// A persistent, warp-specialized GEMM. Two warps of a block are producers: they copy K tiles of x and w into a ring of
// STAGES, by TMA with the 128-byte swizzle, which rounds fp32 to TF32. The CONSUMERS warpgroups before them multiply,
// and apply the program while the producers are ahead with the next tile. Either they share a tile, of which each has
// 64 rows, or, with TAKE_TURNS, each has tiles of 128 rows of its own and runs the program while the tensor cores work
// for the other. Two blocks of a multiprocessor were no faster.
//
// With IS_PAIR two blocks of a cluster have tiles of the same columns, one below the other. Each copies half of w, or
// with a gate one of the two, to both of them: tiles of 128 x 160 take 58 bytes a clock of the L2 cache for each
// multiprocessor, more than it gives, so 42.
//
// IS_IMPLICIT, of a filter of several taps or with strides, a K tile is channels of one tap, and TMA finds the pixels
// that the tile's results see of it (im2col).
//
// IS_EXACT, of fp32 without TF32, a product is three of TF32 (3xTF32): TMA leaves fp32 as it is, of which the tensor
// cores cut off what TF32 hasn't, and a warpgroup more makes what is left of each element (rest_of) for the others. As
// tensor cores cut off sums, too, each K tile has sums of its own, which are added outside of them.

#define SHARERS (TAKE_TURNS ? 1 : CONSUMERS)  // warpgroups of a tile
#define TILE_M (64 * M_TILES * SHARERS)
#define ROW (128 / SIZE)  // channels of a swizzled row
#define CHANNEL_TILES ((GROUP_CHANNELS + TILE_K - 1) / TILE_K)
#define K_TILES (KERNEL_H * KERNEL_W * CHANNEL_TILES)
#define K_PART (SPLIT_K > 1 ? (int)blockIdx.x % SPLIT_K : 0)
#define FIRST_K (K_TILES * K_PART / SPLIT_K)
#define END_K (K_TILES * (K_PART + 1) / SPLIT_K)
#define GROUP_TILES ((GROUP_FILTERS + TILE_COLUMNS - 1) / TILE_COLUMNS)
#define TILES_N (FILTERS / GROUP_FILTERS * GROUP_TILES)
#define BLOCKS_M (1 + IS_PAIR)
#define GIVES_REGISTERS (TAKE_TURNS || IS_EXACT)
#define PRODUCER_WARPS (GIVES_REGISTERS ? 4 : 2)  // only whole warpgroups give some; two of the four do nothing
#define THREADS (CONSUMERS * 128 + PRODUCER_WARPS * 32 + IS_EXACT * 128)
#define X_BYTES (TILE_M * TILE_K * SIZE)
#define W_BYTES (TILE_N * TILE_K * SIZE)
#define COPY_BYTES (X_BYTES + W_BYTES)
#define STAGE_BYTES (COPY_BYTES * (1 + IS_EXACT))  // behind the copies their rests

struct GemmArguments {
  Arguments a;
  TensorMap x, w;
#if GATED
  TensorMap gate;
#endif
};

// Tiles in the order in which blocks take them. Those at work at the same time read the same rows of the larger of x
// and w: ROWS_FIRST where that is w. Where w is wide they pass over all rows for a BAND of its columns, then for the
// next: the L2 cache gives both more often then.
struct Tiles {
  int rows, tiles_m, next;
  DEVICE explicit Tiles(const Arguments& a)
    : rows((int)a.batch * IMAGE),
      tiles_m((rows + TILE_M * BLOCKS_M - 1) / (TILE_M * BLOCKS_M)),
      next(blockIdx.x / (SPLIT_K * BLOCKS_M)) {}
  DEVICE bool exists() const { return next < tiles_m * TILES_N; }
  DEVICE void step(int count = 1) { next += gridDim.x / BLOCKS_M * count; }
  DEVICE int first_row(int number) const { return (number * BLOCKS_M + (int)blockIdx.x % BLOCKS_M) * TILE_M; }
#if !ROWS_FIRST && TILES_N >= 2 * BAND
  DEVICE int band() const { return next / (tiles_m * BAND) * BAND; }
  DEVICE int width() const { return min(BAND, TILES_N - band()); }
  DEVICE int row() const { return first_row((next - band() * tiles_m) / width()); }
  DEVICE int tile_n() const { return band() + (next - band() * tiles_m) % width(); }
#else
  DEVICE int row() const { return first_row(ROWS_FIRST ? next % tiles_m : next / TILES_N); }
  DEVICE int tile_n() const { return ROWS_FIRST ? next / tiles_m : next % TILES_N; }
#endif
  DEVICE int group() const { return tile_n() / GROUP_TILES; }
  DEVICE int column() const { return group() * GROUP_FILTERS + tile_n() % GROUP_TILES * TILE_COLUMNS; }
  DEVICE int end() const { return (group() + 1) * GROUP_FILTERS; }
};

// Where the first of a tile's pixels is.
struct Place {
  int n, y, x;
  DEVICE Place(const Arguments& a, int row) : n(row / OUT_W / OUT_H), y(row / OUT_W % OUT_H), x(row % OUT_W) {}
};

// One thread for x and one for w, since they keep the copy engine busy together only.
template <bool OF_X>
struct Producer {
  const GemmArguments& g;
  unsigned stages, full, empty;  // addresses of the stages and of the first of their barriers

  // Of a K tile of w, and its gate, at most 128 bytes of channels.
  DEVICE void copy_w(unsigned to, int column, int channel, int tap, unsigned barrier) const {
#if IS_PAIR
    const int half = (int)blockIdx.x % 2 * (TILE_N / 2);
#if GATED
    const TensorMap* const map = half > 0 ? &g.gate : &g.w;
#else
    const TensorMap* const map = &g.w;
    column += half;
#endif
    copy_box_to_blocks(3, to + half * 128, map, channel, column, tap, 0, barrier);
#else
    copy_box(to, &g.w, channel, column, tap, 0, barrier);
#if GATED
    copy_box(to + TILE_COLUMNS * 128, &g.gate, channel, column, tap, 0, barrier);
#endif
#endif
  }

  DEVICE void copy(const Ring<STAGES>& ring, int k_tile, const Tiles& tiles, const Place& place) const {
    const unsigned to = stages + ring.stage * STAGE_BYTES + (OF_X ? 0 : X_BYTES), barrier = full + ring.stage * 8;
    expect_bytes(barrier, OF_X ? X_BYTES : W_BYTES);
#pragma unroll
    for (int k = 0; k < TILE_K; k += ROW) {
#if IS_IMPLICIT
      const int tap = k_tile / CHANNEL_TILES, channel = k_tile % CHANNEL_TILES * TILE_K + k;
      if (OF_X)
        copy_pixels(to + k * (TILE_M * SIZE), &g.x, tiles.group() * GROUP_CHANNELS + channel,
          place.x * STRIDE_W - PAD_LEFT, place.y * STRIDE_H - PAD_TOP, place.n, tap % KERNEL_W * DILATION_W,
          tap / KERNEL_W * DILATION_H, barrier);
#else
      const int tap = 0, channel = k_tile * TILE_K + k;
      if (OF_X)
        copy_box(to + k * (TILE_M * SIZE), &g.x, tiles.group() * GROUP_CHANNELS + channel, tiles.row(), barrier);
#endif
      else
        copy_w(to + k * (TILE_N * SIZE), tiles.column(), channel, tap, barrier);
    }
  }

  DEVICE void run(Tiles tiles) const {
    prefetch_map(OF_X ? &g.x : &g.w);
    // Weights that no kernel writes are on their way before the kernel in front has completed.
    if (OF_X || !CONSTANT_WEIGHTS) grid_dependency_wait();
    Ring<STAGES> ring;
    for (int round = 0; tiles.exists(); tiles.step()) {
      const Place place(g.a, tiles.row());
#pragma unroll 1
      for (int k_tile = FIRST_K; k_tile < END_K; ++k_tile, ring.step(), ++round) {
        if (round >= STAGES) wait_barrier(empty + ring.stage * 8, ring.phase ^ 1);
        copy(ring, k_tile, tiles, place);
      }
    }
    if (!OF_X && CONSTANT_WEIGHTS) grid_dependency_wait();
#if IS_PAIR
    // The other block arrives at barriers of this one, which does not end before.
    for (int i = 0; OF_X && i < STAGES; ++i, ring.step()) wait_barrier(empty + ring.stage * 8, ring.phase ^ 1);
#endif
  }
};

#if SPLIT_K > 1
// Four sums of a chunk, of those that a block has: by values, since registers have no addresses.
DEVICE float4 sums_of(const float (&sums)[TILE_N / 2], int number, int block, int product, int i) {
  float four[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    float x = 0;
#pragma unroll
    for (int each = 0; each < SPLIT_K; ++each) {
      const int from = (number * SPLIT_K + each) * (COLUMNS / 2) + i + j;
      const float other = from < TILE_COLUMNS / 2 ? sums[product * (TILE_COLUMNS / 2) + from] : 0;
      x = block == each ? other : x;
    }
    four[j] = x;
  }
  return {four[0], four[1], four[2], four[3]};
}

// The whole sums of the block's chunks, which the blocks of a tile add in the same order each time. `parts`: room for
// what the others send, of a thread beside that of its neighbours.
DEVICE void add_parts(const float (&sums)[TILE_N / 2], float4* parts, float (&whole)[(1 + GATED) * SUMS]) {
  constexpr int kThreads = CONSUMERS * 128, kFours = (1 + GATED) * SUMS / 4;
  const auto part_of = [&](int index, int block) {
    const int product = index / (SUMS / 4), i = index % (SUMS / 4) * 4;
    return sums_of(sums, i / (COLUMNS / 2), block, product, i % (COLUMNS / 2));
  };
  wait_cluster();  // all blocks have begun
#pragma unroll
  for (int other = 1; other < SPLIT_K; ++other) {
    const int block = K_PART + other < SPLIT_K ? K_PART + other : K_PART + other - SPLIT_K;
    if (block >= CHUNKS) continue;  // it has none
#pragma unroll
    for (int index = 0; index < kFours; ++index)
      store_to_block(parts + (K_PART * kFours + index) * kThreads + threadIdx.x, block, part_of(index, block));
  }
  arrive_cluster();
  wait_cluster();
#pragma unroll
  for (int index = 0; index < kFours; ++index) {
    const float4 own = part_of(index, K_PART);
    float4 all = {0, 0, 0, 0};
#pragma unroll
    for (int part = 0; part < SPLIT_K; ++part) {
      float4 some = own;
      if (part != K_PART) some = parts[(part * kFours + index) * kThreads + threadIdx.x];
      all = {all.x + some.x, all.y + some.y, all.z + some.z, all.w + some.w};
    }
    whole[index * 4] = all.x;
    whole[index * 4 + 1] = all.y;
    whole[index * 4 + 2] = all.z;
    whole[index * 4 + 3] = all.w;
  }
}
#endif

#if IS_EXACT
// What TF32 hasn't of x. All products have one sum, so no rest may be 0 beside another factor's infinity, as 0 times
// that is NaN: it has a share of x, too small to count. What is not finite is its own rest.
DEVICE float rest_of(float x) {
  const float high = __uint_as_float(__float_as_uint(x) & 0xffffe000u), rest = fmaf(high, 0x1p-60f, x - high);
  return fabsf(x) < __int_as_float(0x7f800000) ? rest : x;
}

// The rests of each stage. `split`: the barriers at which consumers wait for them.
DEVICE void split_copies(Tiles tiles, float4* shared, unsigned full, unsigned split) {
  Ring<STAGES> ring;
  for (; tiles.exists(); tiles.step())
#pragma unroll 1
    for (int k_tile = FIRST_K; k_tile < END_K; ++k_tile, ring.step()) {
      wait_barrier(full + ring.stage * 8, ring.phase);
      float4* const from = shared + ring.stage * (STAGE_BYTES / 16) + threadIdx.x % 128;
#pragma unroll 4
      for (int i = 0; i < COPY_BYTES / 16; i += 128) {
        const float4 x = from[i];
        from[COPY_BYTES / 16 + i] = {rest_of(x.x), rest_of(x.y), rest_of(x.z), rest_of(x.w)};
      }
      fence_async_proxy();
      arrive(split + ring.stage * 8);
    }
}

// The products of a stage: those with rests first, which are small.
DEVICE void multiply_exact(float (&sums)[TILE_N / 2], const storage_t* left, const storage_t* right) {
  constexpr int kRests = COPY_BYTES / SIZE;
  float products[TILE_N / 2];
  fence_wgmma();
#pragma unroll
  for (int term = 0; term < 3; ++term)
#pragma unroll
    for (int k = 0; k < TILE_K; k += 8)
      wgmma(products, descriptor(left + (term == 0) * kRests + k), descriptor(right + (term == 1) * kRests + k),
        term > 0 || k > 0);
  commit_wgmma();
  wait_wgmma<0>(products);
#pragma unroll
  for (int i = 0; i < TILE_N / 2; ++i) sums[i] += products[i];
}
#endif

// A warpgroup's rows of the tiles. `shared`: the stages, then each warp's staging. `turns`: the barriers at which
// warpgroups that take turns wait for each other.
DEVICE void consume(const Arguments& a, Tiles tiles, storage_t* shared, unsigned full, unsigned empty, unsigned turns) {
  const int warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0), warp = threadIdx.x / 32;
  float* const staging = (float*)((char*)shared + STAGES * STAGE_BYTES) + warp * (16 * PITCH);
  const int own_rows = TAKE_TURNS ? 0 : warpgroup * (64 * M_TILES);  // of the tile, from there on
  const auto release = [&](int stage) {
    if (threadIdx.x % 128 != 0) return;
    arrive(empty + stage * 8);
#if IS_PAIR
    arrive_in_block(empty + stage * 8, blockIdx.x % 2 ^ 1);
#endif
  };
  grid_dependency_wait();  // before operands are read, and results written
  Ring<STAGES> ring;
  if (TAKE_TURNS) {
    tiles.step(warpgroup);
    ring.skip(warpgroup * K_TILES);
  }
#pragma unroll 1
  for (int turn = 0; tiles.exists(); tiles.step(TAKE_TURNS ? CONSUMERS : 1), ++turn) {
    const int warp_row = own_rows + warp % 4 * 16;
    Epilogue epilogue{a, staging, tiles.rows, tiles.row() + warp_row, tiles.column(), tiles.end(), K_PART};
#pragma unroll
    for (int chunk = 0; chunk < AHEAD; ++chunk) epilogue.load(chunk);  // beside all that the tensor cores do
    float sums[M_TILES][TILE_N / 2];
    int before = 0;
    if (TAKE_TURNS && (turn > 0 || warpgroup > 0)) wait_barrier(turns + warpgroup * 8, (turn - (warpgroup == 0)) & 1);
#if IS_EXACT
#pragma unroll
    for (int i = 0; i < TILE_N / 2; ++i) sums[0][i] = 0;
#endif
#pragma unroll 1
    for (int k_tile = FIRST_K; k_tile < END_K; ++k_tile) {
      wait_barrier(full + ring.stage * 8, ring.phase);
      const storage_t* const left = shared + ring.stage * (STAGE_BYTES / SIZE) + own_rows * ROW;
      const storage_t* const right = shared + ring.stage * (STAGE_BYTES / SIZE) + X_BYTES / SIZE;
#if IS_EXACT
      multiply_exact(sums[0], left, right);
      release(ring.stage);
      ring.step();
#else
      fence_wgmma();
#pragma unroll
      for (int k = 0; k < TILE_K; k += 32 / SIZE)
#pragma unroll
        for (int m = 0; m < M_TILES; ++m)
          wgmma(sums[m], descriptor(left + (k / ROW * TILE_M + m * 64) * ROW + k % ROW),
            descriptor(right + k / ROW * (TILE_N * ROW) + k % ROW), k > 0 || k_tile > FIRST_K);
      commit_wgmma();
      if (k_tile > FIRST_K) {
        wait_wgmma_but_last();
        release(before);
      }
      before = ring.stage;
      ring.step();
#endif
    }
    if (TAKE_TURNS) {
      if (threadIdx.x % 128 == 0) arrive(turns + (warpgroup + 1) % CONSUMERS * 8);
      ring.skip((CONSUMERS - 1) * K_TILES);
    }
#if !IS_EXACT
#pragma unroll
    for (int m = 0; m < M_TILES; ++m) wait_wgmma<0>(sums[m]);
    release(before);
#endif
#if IS_NORMALIZED
    normalize(epilogue, sums, warp_row);
#elif SPLIT_K > 1
    float whole[1][(1 + GATED) * SUMS];
    float4* const parts = (float4*)((char*)shared + STAGES * STAGE_BYTES + CONSUMERS * 4 * 16 * PITCH * 4);
    add_parts(sums[0], parts, whole[0]);
    epilogue.run(whole);
#else
    epilogue.run(sums);
#endif
  }
}

extern "C" __global__ void
#if CLUSTER > 1
__cluster_dims__(CLUSTER, 1, 1)
#endif
  __launch_bounds__(THREADS, 1) ENTRY(const __grid_constant__ GemmArguments g) {
  extern __shared__ __align__(1024) uint4 shared[];
  __shared__ __align__(8) unsigned long long barriers[(2 + IS_EXACT) * STAGES + CONSUMERS];
  const unsigned full = shared_address(barriers), empty = full + STAGES * 8, turns = empty + STAGES * 8;
  const unsigned split = turns + CONSUMERS * 8;
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; ++i) {
      init_barrier(full + i * 8, 2);
      init_barrier(empty + i * 8, SHARERS * BLOCKS_M);
      if (IS_EXACT) init_barrier(split + i * 8, 128);
    }
    for (int i = 0; i < CONSUMERS; ++i) init_barrier(turns + i * 8, 1);
    fence_barriers();
  }
  __syncwarp();
  begin_cluster();
  if (IS_PAIR)
    wait_cluster();  // both blocks have barriers
  else
    __syncthreads();
  const Tiles tiles(g.a);
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);  // known to be the same for a warp
  if (warp < CONSUMERS * 4) {
    if (GIVES_REGISTERS) take_registers<IS_EXACT ? 208 : 232>();
    consume(g.a, tiles, (storage_t*)shared, IS_EXACT ? split : full, empty, turns);
  } else {
    if (GIVES_REGISTERS) give_registers<40>();
#if IS_EXACT
    if (warp >= CONSUMERS * 4 + PRODUCER_WARPS) return split_copies(tiles, (float4*)shared, full, split);
#endif
    if (threadIdx.x % 32 != 0) return;
    if (warp == CONSUMERS * 4)
      Producer<true>{g, shared_address(shared), full, empty}.run(tiles);
    else if (warp == CONSUMERS * 4 + 1)
      Producer<false>{g, shared_address(shared), full, empty}.run(tiles);
  }
}
