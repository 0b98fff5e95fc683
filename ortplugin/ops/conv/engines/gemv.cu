// y[n, m] = program(sum over c of w[m, c] x[n, c])             or of w[m, c] norm(x[n])[c]
//
// Before this text comes what engine.h says.
//
// LANES threads side by side share a row of the weights and ROWS rows of x. Each sums its part; then those of a warp
// exchange sums until each of ROWS threads has a whole one, and the first of several warps adds up theirs.
//
// With a gate (GATED) a thread has the part of its row, too. HAS_NORM: gemv_norm.cuh.

#define STEP (LANES * VECTOR)
#define STEPS ((CHANNELS + STEP - 1) / STEP)
#define AHEAD (STEPS < 8 ? STEPS : 8)  // steps whose weights are loaded at once
#define X_AHEAD (AHEAD < 16 / ROWS ? AHEAD : 16 / ROWS)  // steps whose rows of x are
#define WARPS_OF_ROW ((LANES + 31) / 32)
#define THREADS_OF_ROW (LANES / WARPS_OF_ROW / ROWS)  // of a warp
#define PRODUCTS (1 + GATED)

// AHEAD steps of the thread's part of row `m` of the weights.
DEVICE void load_weights(
  Vector<storage_t, VECTOR> (&weights)[PRODUCTS][AHEAD], const Arguments& a, int m, int step, int lane, bool exists) {
#pragma unroll
  for (int product = 0; product < PRODUCTS; ++product)
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      const int c = (step + i) * STEP + lane * VECTOR;
      load_if(c < CHANNELS && exists, weights[product][i], (const storage_t*)a.in[1 + product] + m * CHANNELS + c);
    }
}

// The products of the thread's part of the rows of x with its weights, of which the first steps are there.
DEVICE void add_products(const Arguments& a, int m, int first, int lane,
  Vector<storage_t, VECTOR> (&weights)[PRODUCTS][AHEAD], float (&sums)[PRODUCTS][ROWS]) {
  const int batch = (int)a.batch;
#if HAS_NORM
  __shared__ __align__(16) storage_t normal[ROWS][CHANNELS];
  // All warps of a block have the same rows.
  normalize(a, blockIdx.x * (THREADS / LANES) / FILTERS * ROWS, normal);
#else
  const storage_t* const x = (const storage_t*)a.in[0];
#endif
  for (int step = 0; step < STEPS; step += AHEAD) {
    if (step > 0) load_weights(weights, a, m, step, lane, first < batch);
#pragma unroll
    for (int i = 0; i < AHEAD; i += X_AHEAD) {
      Vector<storage_t, VECTOR> rows[X_AHEAD][ROWS];
#pragma unroll
      for (int k = 0; k < X_AHEAD; ++k)
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
          const int c = (step + i + k) * STEP + lane * VECTOR;
          const bool exists = i + k < AHEAD && c < CHANNELS && first + r < batch;
#if HAS_NORM
#pragma unroll
          for (int j = 0; j < (VECTOR * (int)sizeof(storage_t) + 3) / 4; ++j) rows[k][r].words[j] = 0;
          if (exists) load_shared(rows[k][r], &normal[r][c]);
#else
          load_if(exists, rows[k][r], x + (first + r) * CHANNELS + c);
#endif
        }
#pragma unroll
      for (int k = 0; k < X_AHEAD; ++k)
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
#pragma unroll
          for (int j = 0; j < VECTOR; ++j)
#pragma unroll
            for (int product = 0; product < PRODUCTS; ++product)
              if (i + k < AHEAD) sums[product][r] += to_compute(rows[k][r][j]) * to_compute(weights[product][i + k][j]);
    }
  }
}

// Exchanges a warp's sums: the first of THREADS_OF_ROW threads ends with the sum of its row in `sums[0]`, and where
// several warps have a part of it, the first warp with that of all. `slots`: of this call.
DEVICE void add_up(float (&sums)[ROWS], float (&slots)[THREADS / 32][ROWS], int lane) {
  // Half of the threads keep the lower half of the rows, the others the upper one.
#pragma unroll
  for (int half = ROWS / 2; half > 0; half /= 2) {
    const int bit = half * THREADS_OF_ROW;
    const bool upper = (lane & bit) != 0;
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const float given = upper ? sums[i] : sums[i + half], kept = upper ? sums[i + half] : sums[i];
      sums[i] = kept + __shfl_xor_sync(0xffffffffu, given, bit);
    }
  }
#pragma unroll
  for (int bit = THREADS_OF_ROW / 2; bit > 0; bit /= 2) sums[0] += __shfl_xor_sync(0xffffffffu, sums[0], bit);
  if (WARPS_OF_ROW == 1) return;
  const int warp = threadIdx.x / 32, row = threadIdx.x % 32 / THREADS_OF_ROW;
  if (lane >= 32 && lane % THREADS_OF_ROW == 0) slots[warp][row] = sums[0];
  __syncthreads();
  if (lane >= 32) return;
#pragma unroll
  for (int other = 1; other < WARPS_OF_ROW; ++other) sums[0] += slots[warp + other][row];
}

extern "C" __global__ void __launch_bounds__(THREADS) gemv(const Arguments a) {
  const int batch = (int)a.batch, lane = threadIdx.x % LANES;
  const int number = (blockIdx.x * THREADS + threadIdx.x) / LANES;
  const int m = number % FILTERS, first = number / FILTERS * ROWS;
  Vector<storage_t, VECTOR> weights[PRODUCTS][AHEAD];
  if (!CONSTANT_WEIGHTS) grid_dependency_wait();
  load_weights(weights, a, m, 0, lane, first < batch);
  if (CONSTANT_WEIGHTS) grid_dependency_wait();
  // The thread that ends with a sum reads what it meets now: behind the sums its latency would follow theirs.
  const int n = first + lane / THREADS_OF_ROW;
  const bool writes = lane < LANES / WARPS_OF_ROW && lane % THREADS_OF_ROW == 0 && n < batch;
  TileOperands<1> shared_operands;
  PixelOperands<1> operands;
  if (writes) {
    shared_operands.load(a, n, m);
    operands.load(a, n, 0, 0, m, n * FILTERS + m);
  }

  float sums[PRODUCTS][ROWS] = {};
  add_products(a, m, first, lane, weights, sums);
  __shared__ float slots[PRODUCTS][THREADS / 32][ROWS];
#pragma unroll
  for (int product = 0; product < PRODUCTS; ++product) add_up(sums[product], slots[product], lane);
  if (!writes) return;
  Results<1> results;
#if GATED
  apply(shared_operands, operands, 0, sums[0][0], sums[1][0], results);
#else
  apply(shared_operands, operands, 0, sums[0][0], results);
#endif
  results.store(a, n * FILTERS + m);
}
