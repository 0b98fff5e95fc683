// y[n, m] = program(sum over c of w[m, c] x[n, c])             or of w[m, c] norm(x[n])[c]
//
// Before this text comes what engine.h says.
//
// LANES threads side by side share a row of the weights and ROWS rows of x. Each sums its part; then those of a warp
// exchange sums until each of ROWS threads has a whole one, and the first of several warps adds up theirs.
//
// With a gate (GATED) a thread has the part of its row, too.
//
// A norm (HAS_NORM) is computed by all who read the row: that takes less than a kernel in front of this one, which each
// of a chain's kernels waits for.

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

#if HAS_NORM
// Each thread of a row gets the sum over all of them. `slots`: of this call.
DEVICE void sum_of_row(float (&x)[ROWS], float (&slots)[THREADS / 32][ROWS]) {
#pragma unroll
  for (int r = 0; r < ROWS; ++r)
#pragma unroll
    for (int bit = LANES / WARPS_OF_ROW / 2; bit > 0; bit /= 2) x[r] += __shfl_xor_sync(0xffffffffu, x[r], bit);
  if (WARPS_OF_ROW == 1) return;
  const int first = threadIdx.x / LANES * WARPS_OF_ROW;
#pragma unroll
  for (int r = 0; r < ROWS; ++r)
    if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32][r] = x[r];
  __syncthreads();
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    x[r] = 0;
#pragma unroll
    for (int warp = 0; warp < WARPS_OF_ROW; ++warp) x[r] += slots[first + warp][r];
  }
}

// The products of the thread's part of the rows, once they are normalised, with its weights.
DEVICE void add_products(const Arguments& a, int, int first, int lane,
  const Vector<storage_t, VECTOR> (&weights)[PRODUCTS][STEPS], float (&sums)[PRODUCTS][ROWS]) {
  const storage_t* const x = (const storage_t*)a.in[0];
  __shared__ float slots[2][THREADS / 32][ROWS];
  Vector<storage_t, VECTOR> rows[STEPS][ROWS];
  NormTileOperands<VECTOR> tile[STEPS];
  NormPixelOperands<VECTOR> pixel[STEPS][ROWS];  // of one row operands of its shape
  float s[STEPS][ROWS][VECTOR], mean[ROWS] = {}, squares[ROWS] = {};
#pragma unroll
  for (int i = 0; i < STEPS; ++i) {
    const int c = i * STEP + lane * VECTOR;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const bool exists = c < CHANNELS && first + r < (int)a.batch;
      const int offset = (first + r) * CHANNELS + c;
      load_if(exists, rows[i][r], x + offset);
      if (exists) pixel[i][r].load(a, first + r, 0, 0, c, offset);
    }
    if (c < CHANNELS) tile[i].load(a, 0, c);
  }
#define EACH_ELEMENT \
  _Pragma("unroll") for (int i = 0; i < STEPS; ++i) if (i * STEP + lane * VECTOR < CHANNELS) \
    _Pragma("unroll") for (int r = 0; r < ROWS; ++r) _Pragma("unroll") for (int j = 0; j < VECTOR; ++j)
  EACH_ELEMENT mean[r] += s[i][r][j] = prologue(to_compute(rows[i][r][j]));
  if (!IS_RMS) sum_of_row(mean, slots[0]);
#pragma unroll
  for (int r = 0; r < ROWS; ++r) mean[r] = IS_RMS ? 0 : mean[r] * (1.0f / CHANNELS);
  EACH_ELEMENT squares[r] = fma(s[i][r][j] - mean[r], s[i][r][j] - mean[r], squares[r]);
  sum_of_row(squares, slots[1]);
#pragma unroll
  for (int r = 0; r < ROWS; ++r) squares[r] = rsqrt(squares[r] * (1.0f / CHANNELS) + (float)EPSILON);
  EACH_ELEMENT {
    NormResults<VECTOR> normalized;
    apply(tile[i], pixel[i][r], j, s[i][r][j], (s[i][r][j] - mean[r]) * squares[r], normalized);
#pragma unroll
    for (int product = 0; product < PRODUCTS; ++product)
      sums[product][r] += to_compute(normalized.r0[j]) * to_compute(weights[product][i][j]);
  }
}
#else
// The products of the thread's part of the rows of x with its weights, of which the first steps are there.
DEVICE void add_products(const Arguments& a, int m, int first, int lane,
  Vector<storage_t, VECTOR> (&weights)[PRODUCTS][AHEAD], float (&sums)[PRODUCTS][ROWS]) {
  const storage_t* const x = (const storage_t*)a.in[0];
  const int batch = (int)a.batch;
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
          load_if(i + k < AHEAD && c < CHANNELS && first + r < batch, rows[k][r], x + (first + r) * CHANNELS + c);
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
#endif

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
