// y[p, m] = program(sum over c of x[p, c] w[m, c]): a pointwise (1x1) convolution
// y[q, m] = program(sum over c of x[p, c] w[c, m]) for the pixel q = p stride, program(0) for those between: transposed
//
// The text in front of this one is generated for the node at hand (conv_1x1.cc, engine.cc): the sizes as macros, the
// operands and `apply`, which is the program; and what wgmma.cuh has for Hopper's tensor cores.
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
#define IMAGE (IMAGE_H * IMAGE_W)

// The row of filter m of a block: thread t of four ends with the columns 2 t, 2 t + 1 of each eight.
__device__ __forceinline__ int row_of(int m) { return m / 32 * 32 + m % 8 / 2 * 8 + m % 32 / 8 * 2 + m % 2; }

// The weights of a block's filters, zeros where there are none.
__device__ __forceinline__ void copy_weights(storage_t* to, const storage_t* w, int first) {
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
  int n, y, x;
  __device__ __forceinline__ Pixel(int row)
      : n(row / IMAGE), y(row % IMAGE / IMAGE_W * UP_H), x(row % IMAGE_W * UP_W) {}
  __device__ __forceinline__ int offset() const { return ((n * OUT_H + y) * OUT_W + x) * FILTERS; }
};

#if DYNAMIC_TILES
// What warpgroups have in common, zeros before and after a launch. A launch is known by where its results go: whatever
// streams and graphs they are in, no two launches write there at the same time, or else both write the same and may
// share their tiles. No place is given back, so after some thousand addresses later ones find none, and divide their
// tiles in advance.
struct TileScheduler {
  unsigned long long results;          // their address, or 0
  unsigned finished, taken[BLOCKS_N];  // warpgroups that found no more tiles, and tiles that were taken of each slice
};
#define SCHEDULERS 1024  // of which the hash below has the bits
#define PROBES 4
__device__ TileScheduler schedulers[SCHEDULERS];

// This launch's place, or null where others have its places: every block finds the same.
__device__ __forceinline__ TileScheduler* find_scheduler(const void* results) {
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
__device__ __forceinline__ int take_tile(TileScheduler& scheduler) {
  return (int)atomicAdd(scheduler.taken + blockIdx.x % BLOCKS_N, 1u);
}

// Once for each warpgroup, when it takes no more; the last one leaves zeros.
__device__ __forceinline__ void finish(TileScheduler& scheduler) {
  const unsigned last = gridDim.x * WARPGROUPS - 1;
  if (atomicInc(&scheduler.finished, last) != last) return;
#pragma unroll 1
  for (int i = 0; i < BLOCKS_N; ++i) scheduler.taken[i] = 0;
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, 1) conv_1x1(const Arguments a) {
  extern __shared__ __align__(1024) uint4 shared[];
  const int warpgroup = threadIdx.x / 128, thread = threadIdx.x % 128, lane = threadIdx.x % 32;
  storage_t* const weights = (storage_t*)shared;
  storage_t* const stages = weights + BLOCK_N * PADDED_CHANNELS + warpgroup * (STAGES * TILE_M * TILE_K);
  const storage_t* const x = (const storage_t*)a.in[0];
  const int first = blockIdx.x % BLOCKS_N * BLOCK_N;
  const int rows = (int)a.batch * IMAGE, tiles = (rows + TILE_M - 1) / TILE_M;
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

  int next_tile = first_tile, next_slot = 0, next_k_tile = 0, next_stage = 0;
  const auto copy_next = [&] {
    if (next_k_tile == 0) next_tile = upcoming[next_slot];
    if (next_tile < tiles) {
      storage_t* const to = stages + next_stage * (TILE_M * TILE_K);
#pragma unroll
      for (int i = 0; i < TILE_M * TILE_K / 8; i += 128) {
        const int row = (i + thread) / 8 % TILE_M, octet = (i + thread) / (8 * TILE_M) * 8 + thread % 8;
        const int p = next_tile * TILE_M + row, c = next_k_tile * TILE_K + octet * 8;
        const bool exists = p < rows && c < CHANNELS;
        copy_async(to + swizzled_offset(row, octet, TILE_M), exists ? x + p * CHANNELS + c : x, exists);
      }
      if (++next_k_tile == K_TILES) {
        next_k_tile = 0;
        if (++next_slot == STAGES) next_slot = 0;
      }
      if (++next_stage == STAGES) next_stage = 0;
    }
    commit_copies();
  };
#pragma unroll
  for (int i = 0; i < STAGES - 1; ++i) copy_next();
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
      copy_next();
      const storage_t* const left = stages + stage * (TILE_M * TILE_K);
      if (++stage == STAGES) stage = 0;
#pragma unroll 1
      for (int n_tile = 0; n_tile < N_TILES; ++n_tile) {
        const storage_t* const right = weights + (k_tile * (TILE_K / 64) * BLOCK_N + n_tile * TILE_N) * 64;
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int c = 0; c < TILE_K; c += 16)
          wgmma(sums, descriptor(left + c / 64 * TILE_M * 64 + c % 64),
                descriptor(right + c / 64 * BLOCK_N * 64 + c % 64), c > 0 || (N_TILES == 1 && k_tile > 0));
        // Threads of two neighbouring rows end with a full_descriptor line of 64 filters of each: for one the first has
        // its first half, for the other the second has its second half.
        const bool last = N_TILES > 1 || k_tile == K_TILES - 1, odd = lane / 4 % 2;
        const int row = tile * TILE_M + thread / 32 * 16 + lane / 8 * 2;
        const int m = first + n_tile * TILE_N + lane % 8 * 8;
        PixelOperands<8> operands[PREFETCH_OPERANDS ? TILE_N / 64 : 1][2][2];
        const auto load = [&](int o, int half, int which) {
          const int p = row + half * 8 + which;
          const Pixel at(p);
          if (p < rows && m + o * 64 < FILTERS)
            operands[PREFETCH_OPERANDS ? o : 0][half][which].load(a, at.n, at.y, at.x, m + o * 64,
                                                                  at.offset() + m + o * 64);
        };
        // What the program reads of each pixel comes while the tensor cores work.
        if (PREFETCH_OPERANDS && last) {
#pragma unroll
          for (int o = 0; o < TILE_N / 64; ++o)
#pragma unroll
            for (int k = 0; k < 4; ++k) load(o, k / 2, k % 2);
        }
        wait_wgmma(sums);
        if (!last) continue;
#pragma unroll
        for (int o = 0; o < TILE_N / 64; ++o) {
          TileOperands<8> of_filters;
          if (!OF_IMAGE && m + o * 64 < FILTERS) of_filters.load(a, 0, m + o * 64);
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            float values[2][8];
#pragma unroll
            for (int j = 0; j < 8; ++j) {
              const float lower = sums[(o * 8 + j / 2) * 4 + half * 2 + j % 2];
              const float upper = sums[(o * 8 + 4 + j / 2) * 4 + half * 2 + j % 2];
              const float given = __shfl_xor_sync(0xffffffffu, odd ? lower : upper, 4);
              values[0][j] = odd ? given : lower;
              values[1][j] = odd ? upper : given;
            }
#pragma unroll
            for (int which = 0; which < 2; ++which) {
              const int p = row + half * 8 + which;
              if (p >= rows || m + o * 64 >= FILTERS) continue;
              const Pixel at(p);
              const int offset = at.offset() + m + o * 64;
              if (OF_IMAGE) of_filters.load(a, at.n, m + o * 64);
              if (!PREFETCH_OPERANDS) load(o, half, which);
              Results<8> results;
#pragma unroll
              for (int j = 0; j < 8; ++j)
                apply(of_filters, operands[PREFETCH_OPERANDS ? o : 0][half][which], j, values[which][j], results);
              results.store(a, offset);
              // The other pixels of the patch, which meet no pixel of x.
#pragma unroll
              for (int k = 1; k < UP_H * UP_W; ++k) {
                const int up_y = k / UP_W, up_x = k % UP_W, there = offset + (up_y * OUT_W + up_x) * FILTERS;
                if (at.y + up_y >= OUT_H || at.x + up_x >= OUT_W) continue;
                PixelOperands<8> of_other;
                of_other.load(a, at.n, at.y + up_y, at.x + up_x, m + o * 64, there);
                Results<8> others;
#pragma unroll
                for (int j = 0; j < 8; ++j) apply(of_filters, of_other, j, 0.0f, others);
                others.store(a, there);
              }
            }
          }
        }
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
