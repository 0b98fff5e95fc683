// y[p, m] = program(sum over c of x[p, c] w[m, c]): a matrix product, or a pointwise (1x1) convolution of stride 1
//
// The text in front of this one is generated for the node at hand (gemm.cc, engine.cc): the sizes as macros, the
// operands and `apply`, which is the program; what wgmma.cuh has for Hopper's tensor cores and tma.cuh for its copies.
//
// A persistent, warp-specialized GEMM. The last two warps of a block are producers: they copy K tiles of x and w into a
// ring of STAGES, by TMA with the 128-byte swizzle. The CONSUMERS warpgroups before them have 64 rows each and TILE_N
// columns of accumulators, and apply the program while the producers are ahead with the next tile. Clusters whose
// blocks share w by multicast were no faster at any size.

#define TILE_M (64 * CONSUMERS)
#define K_TILES ((CHANNELS + TILE_K - 1) / TILE_K)
#define TILES_N ((FILTERS + TILE_N - 1) / TILE_N)
#define THREADS (CONSUMERS * 128 + 64)
#define X_BYTES (TILE_M * TILE_K * 2)
#define W_BYTES (TILE_N * TILE_K * 2)
#define STAGE_BYTES (X_BYTES + W_BYTES)
#define PITCH (COLUMNS + 8)          // floats: rows that are stored at the same time lie in different banks
#define AHEAD (VECTOR >= 4 ? 2 : 1)  // chunks of operands; more take too many registers
#define VECTORS (COLUMNS / VECTOR)   // of a row
#define ITEMS (16 * VECTORS / 32)    // of VECTOR columns, of a thread
#define IMAGE (IMAGE_H * IMAGE_W)

struct GemmArguments {
  Arguments a;
  TensorMap x, w;
};

// Tiles in the order in which blocks take them. Those at work at the same time read the same rows of the larger of x
// and w: ROWS_FIRST where that is w.
struct Tiles {
  int rows, groups, next;  // groups of TILE_M rows
  __device__ __forceinline__ explicit Tiles(const Arguments& a)
      : rows((int)a.batch * IMAGE), groups((rows + TILE_M - 1) / TILE_M), next(blockIdx.x) {}
  __device__ __forceinline__ bool exists() const { return next < groups * TILES_N; }
  __device__ __forceinline__ void step() { next += gridDim.x; }
  __device__ __forceinline__ int row() const { return (ROWS_FIRST ? next % groups : next / TILES_N) * TILE_M; }
  __device__ __forceinline__ int column() const { return (ROWS_FIRST ? next / groups : next % TILES_N) * TILE_N; }
};

// A place in the ring, and how often it has been gone round.
struct Ring {
  int stage = 0;
  unsigned phase = 0;
  __device__ __forceinline__ void step() {
    if (++stage < STAGES) return;
    stage = 0;
    phase ^= 1;
  }
};

// One thread for x and one for w, since they keep the copy engine busy together only.
template <bool OF_X>
struct Producer {
  const GemmArguments& g;
  unsigned stages, full, empty;  // addresses of the stages and of the first of their barriers

  __device__ __forceinline__ void copy(const Ring& ring, int k_tile, const Tiles& tiles) const {
    const unsigned to = stages + ring.stage * STAGE_BYTES + (OF_X ? 0 : X_BYTES), barrier = full + ring.stage * 8;
    expect_bytes(barrier, OF_X ? X_BYTES : W_BYTES);
#pragma unroll
    for (int k = 0; k < TILE_K; k += 64) {
      const int channel = k_tile * TILE_K + k;
      if (OF_X)
        copy_box(to + k * (TILE_M * 2), &g.x, channel, tiles.row(), barrier);
      else
        copy_box(to + k * (TILE_N * 2), &g.w, channel, tiles.column(), barrier);
    }
  }

  __device__ __forceinline__ void run(Tiles tiles) const {
    prefetch_map(OF_X ? &g.x : &g.w);
    // Weights that no kernel writes are on their way before the kernel in front has completed.
    if (OF_X || !CONSTANT_WEIGHTS) grid_dependency_wait();
    Ring ring;
    for (int round = 0; tiles.exists(); tiles.step())
#pragma unroll 1
      for (int k_tile = 0; k_tile < K_TILES; ++k_tile, ring.step(), ++round) {
        if (round >= STAGES) wait_barrier(empty + ring.stage * 8, ring.phase ^ 1);
        copy(ring, k_tile, tiles);
      }
    if (!OF_X && CONSTANT_WEIGHTS) grid_dependency_wait();
  }
};

// What a consumer's thread makes of accumulators: COLUMNS of the 16 rows of its warp pass through shared memory, after
// which it has ITEMS of VECTOR neighbouring columns. What the program reads of them is loaded ahead.
struct Epilogue {
  const Arguments& a;
  float* staging;  // the warp's
  int rows, row, first;
  PixelOperands<VECTOR> operands[AHEAD][ITEMS];

  __device__ __forceinline__ int row_of(int item) const { return row + (item * 32 + threadIdx.x % 32) / VECTORS; }
  __device__ __forceinline__ int column_of(int chunk) const {
    return first + chunk * COLUMNS + threadIdx.x % VECTORS * VECTOR;
  }
  __device__ __forceinline__ void load(int chunk) {
    const int m = column_of(chunk);
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
      const int p = row_of(item);
      if (p < rows && m < FILTERS)
        operands[chunk % AHEAD][item].load(a, p / IMAGE, p % IMAGE / IMAGE_W, p % IMAGE_W, m, p * FILTERS + m);
    }
  }
  __device__ __forceinline__ void run(const float (&sums)[TILE_N / 2]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int chunk = 0; chunk < TILE_N / COLUMNS; ++chunk) {
      if (first + chunk * COLUMNS >= FILTERS) break;
      __syncwarp();
#pragma unroll
      for (int j = 0; j < COLUMNS / 8; ++j)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int from = chunk * (COLUMNS / 2) + j * 4 + half * 2;
          *(float2*)(staging + (lane / 4 + half * 8) * PITCH + j * 8 + lane % 4 * 2) = {sums[from], sums[from + 1]};
        }
      __syncwarp();
      const int m = column_of(chunk);
      TileOperands<VECTOR> of_filters;
      if (!OF_IMAGE && m < FILTERS) of_filters.load(a, 0, m);
#pragma unroll
      for (int item = 0; item < ITEMS; ++item) {
        const int p = row_of(item);
        if (p >= rows || m >= FILTERS) continue;
        if (OF_IMAGE) of_filters.load(a, p / IMAGE, m);
        const float* const from = staging + (item * 32 + lane) / VECTORS * PITCH + lane % VECTORS * VECTOR;
        float values[VECTOR];
#pragma unroll
        for (int j = 0; j < VECTOR; ++j) values[j] = from[j];
        Results<VECTOR> results;
#pragma unroll
        for (int j = 0; j < VECTOR; ++j) apply(of_filters, operands[chunk % AHEAD][item], j, values[j], results);
        results.store(a, p * FILTERS + m);
      }
      if (chunk + AHEAD < TILE_N / COLUMNS) load(chunk + AHEAD);
    }
  }
};

// A warpgroup's rows of the tiles. `shared`: the stages, then each warp's staging.
__device__ __forceinline__ void consume(const Arguments& a, Tiles tiles, storage_t* shared, unsigned full,
                                        unsigned empty) {
  const int warpgroup = threadIdx.x / 128, warp = threadIdx.x / 32;
  float* const staging = (float*)((char*)shared + STAGES * STAGE_BYTES) + warp * (16 * PITCH);
  const auto release = [&](int stage) {
    if (threadIdx.x % 128 == 0) arrive(empty + stage * 8);
  };
  grid_dependency_wait();  // before operands are read, and results written
  Ring ring;
#pragma unroll 1
  for (; tiles.exists(); tiles.step()) {
    Epilogue epilogue{a, staging, tiles.rows, tiles.row() + warp * 16, tiles.column()};
    float sums[TILE_N / 2];
    int before = 0;
#pragma unroll 1
    for (int k_tile = 0; k_tile < K_TILES; ++k_tile) {
      wait_barrier(full + ring.stage * 8, ring.phase);
      const storage_t* const left = shared + ring.stage * (STAGE_BYTES / 2) + warpgroup * (64 * 64);
      const storage_t* const right = shared + ring.stage * (STAGE_BYTES / 2) + X_BYTES / 2;
      asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
      for (int k = 0; k < TILE_K; k += 16)
        wgmma(sums, descriptor(left + k / 64 * (TILE_M * 64) + k % 64),
              descriptor(right + k / 64 * (TILE_N * 64) + k % 64), k > 0 || k_tile > 0);
      commit_wgmma();
      if (k_tile > 0) {
        wait_wgmma_but_last();
        release(before);
      }
      before = ring.stage;
      ring.step();
    }
    epilogue.load(0);  // while the last MMAs run
    if (AHEAD > 1 && TILE_N > COLUMNS) epilogue.load(1);
    wait_wgmma(sums);
    release(before);
    epilogue.run(sums);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) gemm(const __grid_constant__ GemmArguments g) {
  extern __shared__ __align__(1024) uint4 shared[];
  __shared__ __align__(8) unsigned long long barriers[2 * STAGES];
  const unsigned full = shared_address(barriers), empty = full + STAGES * 8;
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; ++i) {
      init_barrier(full + i * 8, 2);
      init_barrier(empty + i * 8, CONSUMERS);
    }
    fence_barriers();
  }
  __syncthreads();
  const Tiles tiles(g.a);
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);  // known to be the same for a warp
  if (warp < CONSUMERS * 4) {
    consume(g.a, tiles, (storage_t*)shared, full, empty);
  } else if (threadIdx.x % 32 == 0) {
    if (warp == CONSUMERS * 4)
      Producer<true>{g, shared_address(shared), full, empty}.run(tiles);
    else
      Producer<false>{g, shared_address(shared), full, empty}.run(tiles);
  }
}
