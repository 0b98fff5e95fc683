// y[n, m] = program(sum over c of w[m, c] x[n, c])                   of up to eight rows n of 16 bits, on tensor cores
//
// Before this text comes what engine.h says, and with HAS_NORM gemv_norm.cuh.
//
// In a chain of such products, as a step of a model is, each has to ask for its weights while those before it are at
// work: registers and instructions are what they share a multiprocessor by. So a block has 8 rows of the weights, of
// which its WARPS warps have 32 channels in turn, and an m16n8k16 MMA replaces 64 instructions: rows of x are its rows,
// those of the weights its columns. A thread loads eight neighbouring channels at once and gives them to two MMAs:
// which of them are called which does not matter, as it is the same of both factors.

#define COLUMNS 8
#define CHUNK 32  // channels of a warp's loads
#define STEPS ((CHANNELS + CHUNK * WARPS - 1) / (CHUNK * WARPS))
#define PRODUCTS (1 + GATED)
#define AHEAD (STEPS < 12 / PRODUCTS ? STEPS : 12 / PRODUCTS)  // steps whose weights are loaded at once

typedef Vector<storage_t, 8> Octet;

DEVICE int channel_of(int step) { return (step * WARPS + threadIdx.x / 32) * CHUNK + threadIdx.x % 4 * 8; }

DEVICE void load_weights(Octet (&weights)[PRODUCTS][AHEAD], const Arguments& a, int step) {
  const int m = blockIdx.x * COLUMNS + threadIdx.x % 32 / 4;
#pragma unroll
  for (int product = 0; product < PRODUCTS; ++product)
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      const int c = channel_of(step + i);
      load_if(c < CHANNELS && m < FILTERS, weights[product][i], (const storage_t*)a.in[1 + product] + m * CHANNELS + c);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) gemv(const Arguments a) {
  __shared__ __align__(16) storage_t rows[ROWS][CHANNELS];
  __shared__ float slots[PRODUCTS][WARPS][ROWS][COLUMNS];
  const int batch = (int)a.batch, row = threadIdx.x % 32 / 4;
  Octet weights[PRODUCTS][AHEAD];
  if (!CONSTANT_WEIGHTS) grid_dependency_wait();
  load_weights(weights, a, 0);
  if (CONSTANT_WEIGHTS) grid_dependency_wait();
  // The threads that end with a sum read what it meets now.
  const int m = blockIdx.x * COLUMNS + threadIdx.x % COLUMNS, n = threadIdx.x / COLUMNS;
  const bool writes = m < FILTERS && n < min(batch, ROWS);
  TileOperands<1> shared_operands;
  PixelOperands<1> operands;
  if (writes) {
    shared_operands.load(a, n, m);
    operands.load(a, n, 0, 0, m, n * FILTERS + m);
  }
#if HAS_NORM
  normalize(a, 0, rows);
#else
#pragma unroll
  for (int i = threadIdx.x * 8; i < ROWS * CHANNELS; i += THREADS * 8)
    copy_async(&rows[0][0] + i, (const storage_t*)a.in[0] + (i < batch * CHANNELS ? i : 0), i < batch * CHANNELS);
  commit_copies();
  wait_copies<0>();
  __syncthreads();
#endif

  constexpr int kChains = 4;  // of MMAs, each of which waits for the one before it
  float sums[PRODUCTS][kChains][4] = {};
  for (int step = 0; step < STEPS; step += AHEAD) {
    if (step > 0) load_weights(weights, a, step);
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      const int c = channel_of(step + i);
      uint4 x = make_uint4(0, 0, 0, 0);
      if (row < ROWS && c < CHANNELS) x = *(const uint4*)&rows[row][c];
      const unsigned first[4] = {x.x, 0, x.y, 0}, second[4] = {x.z, 0, x.w, 0};
#pragma unroll
      for (int product = 0; product < PRODUCTS; ++product) {
        const unsigned (&w)[4] = weights[product][i].words;
        mma(sums[product][2 * i % kChains], first, w[0], w[1]);
        mma(sums[product][(2 * i + 1) % kChains], second, w[2], w[3]);
      }
    }
  }
#pragma unroll
  for (int product = 0; product < PRODUCTS; ++product)
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      float sum = 0;
#pragma unroll
      for (int chain = 0; chain < kChains; ++chain) sum += sums[product][chain][j];
      if (row < ROWS) slots[product][threadIdx.x / 32][row][threadIdx.x % 4 * 2 + j] = sum;
    }
  __syncthreads();
  if (!writes) return;
  float total[PRODUCTS] = {};
#pragma unroll
  for (int product = 0; product < PRODUCTS; ++product)
#pragma unroll
    for (int warp = 0; warp < WARPS; ++warp) total[product] += slots[product][warp][n][threadIdx.x % COLUMNS];
  Results<1> results;
#if GATED
  apply(shared_operands, operands, 0, total[0], total[1], results);
#else
  apply(shared_operands, operands, 0, total[0], results);
#endif
  results.store(a, n * FILTERS + m);
}
