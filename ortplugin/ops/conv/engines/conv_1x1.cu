// y[p, m] = program(sum over c of x[p, c] w[m, c]): a pointwise (1x1) convolution
// y[q, m] = program(sum over c of x[p, c] w[c, m]) for the pixel q = p stride, program(0) for those between: transposed
//
// Before this text comes what engine.h says, and wgmma.cuh.
//
// A memory-bound GEMM as a persistent kernel. Each block keeps the weights of BLOCK_N filters in shared memory for as
// long as it lives. Each of its warpgroups works for itself: it takes tiles of TILE_M pixels, copies them TILE_K
// channels at a time, STAGES - 1 ahead, into its own shared memory, and accumulates TILE_N filters at once. Either a K
// tile is all channels or TILE_N is BLOCK_N, so that nothing is copied twice.
//
// With DYNAMIC_TILES there is a dynamic tile scheduler: after its first STAGES tiles a warpgroup takes the next one
// that nobody has, and all stay close to each other in memory. With a static schedule the faster ones run ahead, and
// memory takes up to 10% longer.
//
// The filters of TILE_N are permuted: a thread, which has two neighbouring columns of each eight, ends with eight
// neighbours of y.

#define TILE_M 64
#define PADDED_CHANNELS ((CHANNELS + 63) / 64 * 64)  // with zeros behind the channels
#define K_TILES (PADDED_CHANNELS / TILE_K)
#define N_TILES (BLOCK_N / TILE_N)
#define WARPGROUPS (WARPS / 4)
#define THREADS (WARPS * 32)

// The row of filter m of a block: thread t of four ends with the columns 2 t, 2 t + 1 of each eight.
DEVICE int row_of(int m) { return m / 32 * 32 + m % 8 / 2 * 8 + m % 32 / 8 * 2 + m % 2; }

// The weights of a block's filters, zeros where there are none.
DEVICE void copy_weights(storage_t* to, const storage_t* w, int first) {
#if TRANSPOSED
#pragma unroll 4
  for (int i = threadIdx.x; i < PADDED_CHANNELS * (BLOCK_N / 8); i += THREADS) {
    const int c = i / (BLOCK_N / 8), m = i % (BLOCK_N / 8) * 8;
    Vector<storage_t, 8> some;
    load_if(c < CHANNELS && first + m < FILTERS, some, w + c * FILTERS + first + m);
#pragma unroll
    for (int j = 0; j < 8; ++j) to[swizzled_offset(row_of(m + j), c / 8, BLOCK_N) + c % 8] = some[j];
  }
#else
#pragma unroll 4
  for (int i = threadIdx.x; i < BLOCK_N * (PADDED_CHANNELS / 8); i += THREADS) {
    const int m = i / (PADDED_CHANNELS / 8), c = i % (PADDED_CHANNELS / 8) * 8;
    const bool exists = c < CHANNELS && first + m < FILTERS;
    copy_async(to + swizzled_offset(row_of(m), c / 8, BLOCK_N), exists ? w + (first + m) * CHANNELS + c : w, exists);
  }
#endif
}

// A pixel of x, and the one of y that it becomes.
struct Pixel {
  int n, y, x, number;
  DEVICE Pixel(const Arguments& a, int row)
    : n(row / IMAGE_W / IMAGE_H),
      y(row / IMAGE_W % IMAGE_H * UP_H),
      x(row % IMAGE_W * UP_W),
      number(UP_H * UP_W == 1 ? row : (n * OUT_H + y) * OUT_W + x) {}
  DEVICE int offset() const { return number * FILTERS; }
};

#if DYNAMIC_TILES
// What warpgroups have in common, zeros before and after a launch. A launch is known by where its results go: whatever
// streams and graphs they are in, no two launches write there at the same time, or else both write the same and may
// share their tiles. No place is given back, so after some thousand addresses later ones find none, and divide their
// tiles in advance.
struct TileScheduler {
  unsigned long long results;  // their address, or 0
  unsigned finished, taken[BLOCKS_N];  // warpgroups that found no more tiles, and tiles that were taken of each slice
};
#define SCHEDULERS 1024  // of which the hash below has the bits
#define PROBES 4
__device__ TileScheduler schedulers[SCHEDULERS];

// This launch's place, or null where others have its places: every block finds the same.
DEVICE TileScheduler* find_scheduler(const void* results) {
  const unsigned long long address = (unsigned long long)results;
  const unsigned place = (unsigned)(address >> 8) * 2654435769u;  // the golden ratio's, spreads neighbours
  TileScheduler* found = nullptr;
#pragma unroll  // a loop would keep the compiler from uniform registers in all that follows
  for (unsigned i = 0; i < PROBES; ++i) {
    TileScheduler& one = schedulers[((place >> 22) + i) % SCHEDULERS];
    if (found == nullptr) {
      unsigned long long before = *(const volatile unsigned long long*)&one.results;
      if (before == 0) before = atomicCAS(&one.results, 0ull, address);
      if (before == 0 || before == address) found = &one;
    }
  }
  return found;
}

// The next tile of this block's filters that nobody took.
DEVICE int take_tile(TileScheduler& scheduler) { return (int)atomicAdd(scheduler.taken + blockIdx.x % BLOCKS_N, 1u); }

// Once for each warpgroup, when it takes no more; the last one leaves zeros.
DEVICE void finish(TileScheduler& scheduler) {
  const unsigned last = gridDim.x * WARPGROUPS - 1;
  if (atomicInc(&scheduler.finished, last) != last) return;
#pragma unroll 1
  for (int i = 0; i < BLOCKS_N; ++i) scheduler.taken[i] = 0;
}
#endif

// Copies the pixels of x that a warpgroup takes into its stages, one K tile of a tile after another.
struct Copies {
  const storage_t* x;
  storage_t* stages;
  const int* upcoming;
  int rows, tiles, thread, tile, slot, k_tile, stage;

  DEVICE Copies(const storage_t* x, storage_t* stages, const int* upcoming, int rows, int tiles, int thread)
    : x(x),
      stages(stages),
      upcoming(upcoming),
      rows(rows),
      tiles(tiles),
      thread(thread),
      slot(0),
      k_tile(0),
      stage(0) {}

  DEVICE void next() {
    if (k_tile == 0) tile = upcoming[slot];
    if (tile < tiles) {
      storage_t* const to = stages + stage * (TILE_M * TILE_K);
#pragma unroll
      for (int i = 0; i < TILE_M * TILE_K / 8; i += 128) {
        const int row = (i + thread) / 8 % TILE_M, octet = (i + thread) / (8 * TILE_M) * 8 + thread % 8;
        const int p = tile * TILE_M + row, c = k_tile * TILE_K + octet * 8;
        const bool exists = p < rows && c < CHANNELS;
        copy_async(to + swizzled_offset(row, octet, TILE_M), exists ? x + p * CHANNELS + c : x, exists);
      }
      if (++k_tile == K_TILES) {
        k_tile = 0;
        if (++slot == STAGES) slot = 0;
      }
      if (++stage == STAGES) stage = 0;
    }
    commit_copies();
  }
};

// Adds the products of a K tile with TILE_N filters; `adds`: to what is there, else to 0. Does not wait for them.
DEVICE void multiply(float (&sums)[TILE_N / 2], const storage_t* left, const storage_t* right, bool adds) {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
  for (int c = 0; c < TILE_K; c += 16)
    wgmma(sums, descriptor(left + c / 64 * TILE_M * 64 + c % 64), descriptor(right + c / 64 * BLOCK_N * 64 + c % 64),
      c > 0 || adds);
}

DEVICE void load_operands(PixelOperands<8>& to, const Arguments& a, int rows, int p, int m) {
  const Pixel at(a, p);
  if (p < rows && m < FILTERS) to.load(a, at.n, at.y, at.x, m, at.offset() + m);
}

// Eight filters of each of two neighbouring rows, from two threads that had four of each: for one row the first thread
// has the first half of 64 filters' full line, for the other the second has the second half.
DEVICE void exchange(float (&values)[2][8], const float* sums, bool odd) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float lower = sums[j / 2 * 4 + j % 2], upper = sums[(4 + j / 2) * 4 + j % 2];
    const float given = __shfl_xor_sync(0xffffffffu, odd ? lower : upper, 4);
    values[0][j] = odd ? given : lower;
    values[1][j] = odd ? upper : given;
  }
}

// The program's results of eight filters from `m` on: of a pixel, and of the others of its patch, which meet no pixel
// of x.
DEVICE void store_results(const Arguments& a, const TileOperands<8>& of_filters, const PixelOperands<8>& operands,
  const float (&values)[8], const Pixel& at, int m) {
  const int offset = at.offset() + m;
  Results<8> results;
#pragma unroll
  for (int j = 0; j < 8; ++j) apply(of_filters, operands, j, values[j], results);
  results.store(a, offset);
#pragma unroll
  for (int k = 1; k < UP_H * UP_W; ++k) {
    const int up_y = k / UP_W, up_x = k % UP_W, there = offset + (up_y * OUT_W + up_x) * FILTERS;
    if (at.y + up_y >= OUT_H || at.x + up_x >= OUT_W) continue;
    PixelOperands<8> of_other;
    of_other.load(a, at.n, at.y + up_y, at.x + up_x, m, there);
    Results<8> others;
#pragma unroll
    for (int j = 0; j < 8; ++j) apply(of_filters, of_other, j, 0.0f, others);
    others.store(a, there);
  }
}

// What a thread makes of a tile and TILE_N filters: of the rows `row`, the next, and those 8 behind them, of each 64
// filters the eight from `m` on.
struct Epilogue {
  int rows, row, m;
  bool odd;
  PixelOperands<8> operands[PREFETCH_OPERANDS ? TILE_N / 64 : 1][2][2];

  DEVICE Epilogue(int rows, int tile, int first_filter, int thread)
    : rows(rows),
      row(tile * TILE_M + thread / 32 * 16 + thread % 32 / 8 * 2),
      m(first_filter + thread % 8 * 8),
      odd(thread % 32 / 4 % 2) {}

  // What the program reads of each pixel, for PREFETCH_OPERANDS.
  DEVICE void prefetch(const Arguments& a) {
#pragma unroll
    for (int o = 0; o < TILE_N / 64; ++o)
#pragma unroll
      for (int k = 0; k < 4; ++k)
        load_operands(operands[PREFETCH_OPERANDS ? o : 0][k / 2][k % 2], a, rows, row + k / 2 * 8 + k % 2, m + o * 64);
  }

  DEVICE void run(const Arguments& a, const float (&sums)[TILE_N / 2]) {
#pragma unroll
    for (int o = 0; o < TILE_N / 64; ++o) {
      TileOperands<8> of_filters;
      if (!OF_IMAGE && m + o * 64 < FILTERS) of_filters.load(a, 0, m + o * 64);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float values[2][8];
        exchange(values, sums + o * 32 + half * 2, odd);
#pragma unroll
        for (int which = 0; which < 2; ++which) {
          const int p = row + half * 8 + which;
          if (p >= rows || m + o * 64 >= FILTERS) continue;
          const Pixel at(a, p);
          PixelOperands<8>& own = operands[PREFETCH_OPERANDS ? o : 0][half][which];
          if (OF_IMAGE) of_filters.load(a, at.n, m + o * 64);
          if (!PREFETCH_OPERANDS) load_operands(own, a, rows, p, m + o * 64);
          store_results(a, of_filters, own, values[which], at, m + o * 64);
        }
      }
    }
  }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1) conv_1x1(const Arguments a) {
  extern __shared__ __align__(1024) uint4 shared[];
  const int warpgroup = threadIdx.x / 128, thread = threadIdx.x % 128;
  storage_t* const weights = (storage_t*)shared;
  storage_t* const stages = weights + BLOCK_N * PADDED_CHANNELS + warpgroup * (STAGES * TILE_M * TILE_K);
  const int first = blockIdx.x % BLOCKS_N * BLOCK_N;
  const int rows = (int)a.batch * (IMAGE_H * IMAGE_W), tiles = (rows + TILE_M - 1) / TILE_M;
  const int blocks = gridDim.x / BLOCKS_N, step = WARPGROUPS * blocks;
  // Neighbouring tiles are at work at the same time; where their results interleave, in the same block.
  const int first_tile =
    UP_H > 1 ? blockIdx.x / BLOCKS_N * WARPGROUPS + warpgroup : warpgroup * blocks + blockIdx.x / BLOCKS_N;
  // This warpgroup's next tiles, in a ring.
  int* const upcoming =
    (int*)(weights + BLOCK_N * PADDED_CHANNELS + WARPGROUPS * (STAGES * TILE_M * TILE_K)) + warpgroup * STAGES;
  if (thread < STAGES) upcoming[thread] = first_tile + thread * step;
  sync_warpgroup(warpgroup);
#if DYNAMIC_TILES
  TileScheduler* const scheduler = thread == 0 ? find_scheduler(a.out[0]) : nullptr;
#endif

  if (!CONSTANT_WEIGHTS) grid_dependency_wait();
  copy_weights(weights, (const storage_t*)a.in[1], first);
  commit_copies();
  if (CONSTANT_WEIGHTS) grid_dependency_wait();

  Copies copies((const storage_t*)a.in[0], stages, upcoming, rows, tiles, thread);
#pragma unroll
  for (int i = 0; i < STAGES - 1; ++i) copies.next();
  wait_copies<STAGES - 1>();
  fence_async_proxy();
  __syncthreads();

  int stage = 0, slot = 0;
#pragma unroll 1
  for (int tile = first_tile; tile < tiles; tile = upcoming[slot]) {
    float sums[TILE_N / 2];
#pragma unroll 1
    for (int k_tile = 0; k_tile < K_TILES; ++k_tile) {
      wait_copies<STAGES - 2>();
      fence_async_proxy();
      sync_warpgroup(warpgroup);
      copies.next();
      const storage_t* const left = stages + stage * (TILE_M * TILE_K);
      if (++stage == STAGES) stage = 0;
#pragma unroll 1
      for (int n_tile = 0; n_tile < N_TILES; ++n_tile) {
        multiply(
          sums, left, weights + (k_tile * (TILE_K / 64) * BLOCK_N + n_tile * TILE_N) * 64, N_TILES == 1 && k_tile > 0);
        commit_wgmma();
        const bool last = N_TILES > 1 || k_tile == K_TILES - 1;
        Epilogue epilogue(rows, tile, first + n_tile * TILE_N, thread);
        if (PREFETCH_OPERANDS && last) epilogue.prefetch(a);  // while the tensor cores work
        wait_wgmma<0>(sums);
        if (last) epilogue.run(a, sums);
      }
    }
    if (thread == 0) {
      int then = tile;
#if DYNAMIC_TILES
      // As late as can be: 2% faster than at the tile's beginning, though it waits for the answer.
      if (scheduler != nullptr) then = take_tile(*scheduler);
#endif
      upcoming[slot] = STAGES * step + then;
    }
    if (++slot == STAGES) slot = 0;
  }
#if DYNAMIC_TILES
  if (scheduler != nullptr) finish(*scheduler);
#endif
}
