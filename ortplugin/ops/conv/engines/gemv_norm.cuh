// A norm of rows of X, in each block that multiplies them (gemv.cu, gemv_mma.cu): that takes less than a kernel in
// front of this one, which each of a chain's kernels waits for.

// Elements side by side that a thread normalises: no more than leave work for all.
#define NORM_STEP(vector) (THREADS * (vector))
#define NORM_VECTOR \
  (CHANNELS <= NORM_STEP(1)                     ? 1 \
      : CHANNELS <= NORM_STEP(2) && VECTOR >= 2 ? 2 \
      : CHANNELS <= NORM_STEP(4) && VECTOR >= 4 ? 4 \
                                                : VECTOR)
#define NORM_STEPS ((CHANNELS + NORM_STEP(NORM_VECTOR) - 1) / NORM_STEP(NORM_VECTOR))

// The elements of a row that a warp normalises.
DEVICE int elements_of(int warp) {
  int count = 0;
  for (int i = 0; i < NORM_STEPS; ++i)
    count += max(0, min(32 * NORM_VECTOR, CHANNELS - i * NORM_STEP(NORM_VECTOR) - warp * 32 * NORM_VECTOR));
  return count;
}

DEVICE float sum_of_warp(float x) {
#pragma unroll
  for (int bit = 16; bit > 0; bit /= 2) x += __shfl_xor_sync(0xffffffffu, x, bit);
  return x;
}

// Normalises rows of x, as all of the block do together. Deviations are from the mean of each warp's elements first, so
// that one exchange is enough, and nothing cancels where the mean is large.
DEVICE void normalize(const Arguments& a, int first, storage_t (&normal)[ROWS][CHANNELS]) {
  constexpr int kWarps = THREADS / 32;
  __shared__ float sums[ROWS][kWarps], squares[ROWS][kWarps];
  const int warp = threadIdx.x / 32;
  Vector<storage_t, NORM_VECTOR> rows[NORM_STEPS][ROWS];
  NormTileOperands<NORM_VECTOR> tile[NORM_STEPS];
  NormPixelOperands<NORM_VECTOR> pixel[NORM_STEPS][ROWS];  // of one row operands of its shape
#define EACH_STEP \
  _Pragma("unroll") for (int i = 0, c = threadIdx.x * NORM_VECTOR; i < NORM_STEPS; \
    ++i, c += NORM_STEP(NORM_VECTOR)) if (c < CHANNELS)
  EACH_STEP {
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const int offset = (first + r) * CHANNELS + c;
      load_if(first + r < (int)a.batch, rows[i][r], (const storage_t*)a.in[0] + offset);
      if (first + r < (int)a.batch) pixel[i][r].load(a, first + r, 0, 0, c, offset);
    }
    tile[i].load(a, 0, c);
  }
  float s[ROWS][NORM_STEPS][NORM_VECTOR];
#define EACH_ELEMENT EACH_STEP _Pragma("unroll") for (int j = 0; j < NORM_VECTOR; ++j)
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    float sum = 0, square = 0;
    EACH_ELEMENT sum += s[r][i][j] = prologue(to_compute(rows[i][r][j]));
    sum = IS_RMS ? 0 : sum_of_warp(sum);
    const float mean = sum / max(1, elements_of(warp));
    EACH_ELEMENT square = fma(s[r][i][j] - mean, s[r][i][j] - mean, square);
    square = sum_of_warp(square);
    if (threadIdx.x % 32 == 0) {
      sums[r][warp] = sum;
      squares[r][warp] = square;
    }
  }
  __syncthreads();
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    float mean = 0, square = 0;
    if (!IS_RMS)
#pragma unroll
      for (int w = 0; w < kWarps; ++w) mean += sums[r][w];
    mean *= 1.0f / CHANNELS;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float off = IS_RMS || elements_of(w) == 0 ? 0 : sums[r][w] * (1.0f / max(1, elements_of(w))) - mean;
      square += fma(off * elements_of(w), off, squares[r][w]);
    }
    const float scale = rsqrt(square * (1.0f / CHANNELS) + (float)EPSILON);
    NormResults<NORM_VECTOR> normalized[NORM_STEPS];
    EACH_ELEMENT apply(tile[i], pixel[i][r], j, s[r][i][j], (s[r][i][j] - mean) * scale, normalized[i]);
    EACH_STEP normalized[i].r0.store(&normal[r][c]);
  }
  __syncthreads();
}
