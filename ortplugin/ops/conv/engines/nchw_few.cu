// y[n, m, p] = program(sum over c of w[m, c] x[n, c, p]): a pointwise (1x1) convolution with channels first, of few
// channels and filters, on pixels that lie side by side.
//
// Before this text comes what engine.h says. Its rows are this convolution's filters, its columns the pixels.
//
// Memory-bound: a thread reads VECTOR pixels of each channel once and makes all filters of them. The weights are
// broadcast from shared memory.

#define ROWS IMAGE_W  // the convolution's filters
#define PIXELS FILTERS
#define VECTORS (PIXELS / VECTOR)

extern "C" __global__ void __launch_bounds__(THREADS) nchw_few(const Arguments a) {
  __shared__ float weights[CHANNELS][ROWS];
  if (!CONSTANT_WEIGHTS) grid_dependency_wait();
  for (int i = threadIdx.x; i < ROWS * CHANNELS; i += THREADS) {
    Vector<storage_t, 1> w;
    load_if(true, w, (const storage_t*)a.in[1] + i);
    weights[i % CHANNELS][i / CHANNELS] = to_compute(w[0]);
  }
  if (CONSTANT_WEIGHTS) grid_dependency_wait();
  __syncthreads();
  const int count = (int)a.batch * VECTORS;
  for (int item = blockIdx.x * THREADS + threadIdx.x; item < count; item += gridDim.x * THREADS) {
    const int n = item / VECTORS, p = item % VECTORS * VECTOR;
    const storage_t* const x = (const storage_t*)a.in[0] + n * CHANNELS * PIXELS + p;
    Vector<storage_t, VECTOR> pixels[CHANNELS];
#pragma unroll
    for (int c = 0; c < CHANNELS; ++c) load_if(true, pixels[c], x + c * PIXELS);
    TileOperands<VECTOR> tile;
    tile.load(a, n, p);
#pragma unroll
    for (int m = 0; m < ROWS; ++m) {
      const int offset = (n * ROWS + m) * PIXELS + p;
      PixelOperands<VECTOR> pixel;
      pixel.load(a, n, 0, m, p, offset);
      float sums[VECTOR];
#pragma unroll
      for (int j = 0; j < VECTOR; ++j) sums[j] = 0.0f;
#pragma unroll
      for (int c = 0; c < CHANNELS; ++c) {
        const float w = weights[c][m];
#pragma unroll
        for (int j = 0; j < VECTOR; ++j) sums[j] += w * to_compute(pixels[c][j]);
      }
      Results<VECTOR> results;
#pragma unroll
      for (int j = 0; j < VECTOR; ++j) apply(tile, pixel, j, sums[j], results);
      results.store(a, offset);
    }
  }
}
