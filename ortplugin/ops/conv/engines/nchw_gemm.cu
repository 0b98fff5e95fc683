// y[n, m, p] = program(sum over c of w[m, c] x[n, c, p]): a pointwise (1x1) convolution with channels first, as one
// product of an image: the weights [m, c] by the image [c, p], in place of an image that is transposed.
//
// Before this text comes what engine.h says, and wgmma.cuh, tma.cuh and gemm_epilogue.cuh. Its rows are this
// convolution's filters, its columns the pixels.
//
// A block has a tile of TILE_M filters and TILE_N pixels of an image, whose channels TMA copies all at once, with zeros
// behind the last: B is MN-major. Its warpgroups hold their rows of the weights, A, in registers, since rows of any
// even length may be read so; they are on their way before the kernel in front has completed.

#define TILE_K 64  // channels of a barrier
#define K_TILES ((CHANNELS + TILE_K - 1) / TILE_K)
#define K_STEPS ((CHANNELS + 15) / 16)
#define TILE_M (64 * CONSUMERS)
#define ROWS IMAGE_W  // the convolution's filters
#define ROW_TILES ((ROWS + TILE_M - 1) / TILE_M)
#define PIXELS FILTERS
#define PIXEL_TILES ((PIXELS + TILE_N - 1) / TILE_N)
#define MATRIX_BYTES (TILE_K * 128)  // of 64 pixels
#define TILE_BYTES (TILE_N / 64 * MATRIX_BYTES)
#define THREADS (CONSUMERS * 128)

struct NchwArguments {
  Arguments a;
  TensorMap x;
};

// The weights of rows `row` and `row + 8` that this thread's part of A is, by K steps of 16 channels.
DEVICE void load_weights(const Arguments& a, int row, unsigned (&w)[K_STEPS][4]) {
  const storage_t* const from = (const storage_t*)a.in[1] + row * CHANNELS;
#pragma unroll
  for (int step = 0; step < K_STEPS; ++step)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int c = step * 16 + i / 2 * 8 + threadIdx.x % 4 * 2, below = i % 2 * 8;
      w[step][i] = 0;
      load_if(c < CHANNELS && row + below < ROWS, w[step][i], from + below * CHANNELS + c);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) nchw_gemm(const __grid_constant__ NchwArguments g) {
  extern __shared__ __align__(1024) uint4 shared[];
  __shared__ __align__(8) unsigned long long barriers[K_TILES];
  const unsigned full = shared_address(barriers), tiles = shared_address(shared);
  const int row = blockIdx.x % ROW_TILES * TILE_M, pixel = blockIdx.x / ROW_TILES % PIXEL_TILES * TILE_N;
  const int n = blockIdx.x / (ROW_TILES * PIXEL_TILES);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int i = 0; i < K_TILES; ++i) init_barrier(full + i * 8, 1);
    fence_barriers();
    prefetch_map(&g.x);
  }
  unsigned w[K_STEPS][4];
  if (CONSTANT_WEIGHTS) load_weights(g.a, row + warp * 16 + lane / 4, w);
  __syncthreads();
  grid_dependency_wait();
  if (threadIdx.x == 0) {
    for (int k_tile = 0; k_tile < K_TILES; ++k_tile) {
      expect_bytes(full + k_tile * 8, TILE_BYTES);
      for (int part = 0; part < TILE_N / 64; ++part)
        copy_box(tiles + k_tile * TILE_BYTES + part * MATRIX_BYTES, &g.x, pixel + part * 64, k_tile * TILE_K, n, 0,
          full + k_tile * 8);
    }
  }
  if (!CONSTANT_WEIGHTS) load_weights(g.a, row + warp * 16 + lane / 4, w);
  float* const staging = (float*)((char*)shared + K_TILES * TILE_BYTES) + warp * (16 * PITCH);
  Epilogue epilogue{g.a, staging, (n + 1) * ROWS, n * ROWS + row + warp * 16, pixel, FILTERS};
  float sums[M_TILES][TILE_N / 2];
#pragma unroll
  for (int i = 0; i < TILE_N / 2; ++i) sums[0][i] = 0.0f;
  fence_wgmma();
#pragma unroll
  for (int k_tile = 0; k_tile < K_TILES; ++k_tile) {
    wait_barrier(full + k_tile * 8, 0);
#pragma unroll
    for (int step = k_tile * 4; step < K_STEPS && step < k_tile * 4 + 4; ++step)
      wgmma(sums[0], w[step][0], w[step][1], w[step][2], w[step][3],
        descriptor_mn_major_at(tiles + k_tile * TILE_BYTES + step % 4 * (16 * 128), MATRIX_BYTES));
  }
  commit_wgmma();
  epilogue.load(0);
  if (CHUNKS > 1) epilogue.load(1);
  wait_wgmma<0>(sums[0]);
  epilogue.run(sums);
}
