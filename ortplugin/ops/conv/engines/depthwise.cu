// y[n, p, q, m] = program(sum over r, s of w[m, r, s] x[n, p STRIDE_H + r DILATION_H - PAD_TOP,
//                                                       q STRIDE_W + s DILATION_W - PAD_LEFT, m / MULTIPLIER])
//
// Before this text comes what engine.h says.
//
// A thread makes VECTOR channels of TILE_H x TILE_W pixels and reads its part of the image straight from memory: what
// neighbouring tiles share comes from the L1 cache. A block has LANES such threads along the channels, whose weights
// stand in shared memory, and TILES along the image.

#define TAPS (KERNEL_H * KERNEL_W)
#define MULTIPLIER (FILTERS / CHANNELS)
#define IN_VECTOR (VECTOR > MULTIPLIER ? VECTOR / MULTIPLIER : 1)  // channels that a thread reads
// Of the image, for a tile; with a dilation, where a tile is one row or column, only those that meet a tap.
#define ROWS ((TILE_H - 1) * STRIDE_H + KERNEL_H)
#define COLUMNS ((TILE_W - 1) * STRIDE_W + KERNEL_W)
#define SLICE (LANES * VECTOR)  // channels of a block
#define SLICES ((FILTERS + SLICE - 1) / SLICE)
#define THREADS (LANES * TILES)
// A row of weights ends in idle ones that spread the rows over the banks, yet keep vectors where they may be read.
#define PITCH (SLICE + 16 / (int)sizeof(weight_t))

#if FLOAT_WEIGHTS
typedef float weight_t;
DEVICE weight_t to_weight(storage_t w) { return to_compute(w); }
#else
typedef storage_t weight_t;
DEVICE weight_t to_weight(storage_t w) { return w; }
#endif

struct Row {
  Vector<storage_t, IN_VECTOR> at[COLUMNS];
  // Row number `row` of the tile's part of the image, which begins at `corner`; zeros where that ends. All distances
  // from `corner` are constants, so that they cost no arithmetic, unless sizes are open.
  DEVICE void load(const Arguments& a, const storage_t* corner, int top, int left, int row) {
    const bool exists = (unsigned)(top + row * DILATION_H) < IMAGE_H;
    const storage_t* const first = corner + row * DILATION_H * IMAGE_W * CHANNELS;
#pragma unroll
    for (int i = 0; i < COLUMNS; ++i)
      load_if(exists && (unsigned)(left + i * DILATION_W) < IMAGE_W, at[i], first + i * DILATION_W * CHANNELS);
  }
};

// Runs the program on the sums of a tile.
DEVICE void epilogue(const Arguments& a, const TileOperands<VECTOR>& shared_operands,
  const float (&sums)[TILE_H][TILE_W][VECTOR], int n, int first_y, int first_x, int m) {
  const int first_offset = ((n * OUT_H + first_y) * OUT_W + first_x) * FILTERS + m;
#pragma unroll
  for (int i = 0; i < TILE_H; ++i) {
    const int y = first_y + i;
    if (!WHOLE_TILES_H && y >= OUT_H) break;
    const int row_offset = first_offset + i * OUT_W * FILTERS;
    PixelOperands<VECTOR> operands[TILE_W];
#pragma unroll
    for (int k = 0; k < TILE_W; ++k) {
      // Past the edge the last pixel is read again and nothing is written.
      const int x = WHOLE_TILES_W ? first_x + k : min(first_x + k, OUT_W - 1);
      operands[k].load(a, n, y, x, m, row_offset + (x - first_x) * FILTERS);
    }
    Results<VECTOR> results[TILE_W];
#pragma unroll
    for (int k = 0; k < TILE_W; ++k)
#pragma unroll
      for (int j = 0; j < VECTOR; ++j) apply(shared_operands, operands[k], j, sums[i][k][j], results[k]);
#pragma unroll
    for (int k = 0; k < TILE_W; ++k)
      if (WHOLE_TILES_W || first_x + k < OUT_W) results[k].store(a, row_offset + k * FILTERS);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) depthwise(const Arguments a, const unsigned next_waits) {
  __shared__ __align__(16) weight_t weights[TAPS * PITCH];
  const int slice = blockIdx.x % SLICES, lane = threadIdx.x % LANES;
  int tile = blockIdx.x / SLICES * TILES + threadIdx.x / LANES;
  const int m = slice * SLICE + lane * VECTOR;
  const int left_tile = tile % TILES_W;
  tile /= TILES_W;
  const int first_y = tile % TILES_H * TILE_H, first_x = left_tile * TILE_W, n = tile / TILES_H;
  const bool works = (FILTERS % SLICE == 0 || m < FILTERS) && n < (int)a.batch;
  const int top = works ? first_y * STRIDE_H - PAD_TOP : IMAGE_H, left = first_x * STRIDE_W - PAD_LEFT;
  const storage_t* const corner =
    (const storage_t*)a.in[0] + n * (IMAGE_H * IMAGE_W * CHANNELS) + (top * IMAGE_W + left) * CHANNELS + m / MULTIPLIER;

  if (!CONSTANT_WEIGHTS) grid_dependency_wait();
  // Weights lie channel by channel in memory, tap by tap in shared memory. Past the last one it is read again.
  constexpr int kSteps = (TAPS * SLICE + THREADS - 1) / THREADS;
  storage_t staged[kSteps];
  const storage_t* const w = (const storage_t*)a.in[1] + slice * (SLICE * TAPS);
  const int count = FILTERS % SLICE == 0 ? TAPS * SLICE : min(TAPS * SLICE, (FILTERS - slice * SLICE) * TAPS);
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    const int at = i * THREADS + threadIdx.x;
    staged[i] = w[FILTERS % SLICE == 0 && i < kSteps - 1 ? at : min(at, count - 1)];
  }
  if (CONSTANT_WEIGHTS) grid_dependency_wait();
  Row ahead[AHEAD];
#pragma unroll
  for (int r = 0; r < AHEAD; ++r) ahead[r].load(a, corner, top, left, r);
  TileOperands<VECTOR> shared_operands;
  if (works) shared_operands.load(a, n, m);
  int tap = threadIdx.x % TAPS, at = threadIdx.x / TAPS;  // THREADS further on with each step
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    if (i < kSteps - 1 || at < SLICE) weights[tap * PITCH + at] = to_weight(staged[i]);
    tap += THREADS % TAPS;
    at += THREADS / TAPS + (tap >= TAPS);
    tap -= tap >= TAPS ? TAPS : 0;
  }
  __syncthreads();
  if (!works) return;  // which lets the next kernel start, too

  float sums[TILE_H][TILE_W][VECTOR] = {};

  const weight_t* const by = weights + lane * VECTOR;
#pragma unroll
  for (int row = 0; row < ROWS; ++row) {
    const Row now = ahead[row % AHEAD];
    if (row + AHEAD < ROWS) ahead[row % AHEAD].load(a, corner, top, left, row + AHEAD);
#pragma unroll
    for (int i = 0; i < TILE_H; ++i) {
      const int r = row - i * STRIDE_H;  // of the kernel, for row i of the tile
      if (r < 0 || r >= KERNEL_H) continue;
#pragma unroll
      for (int s = 0; s < KERNEL_W; ++s) {
        Vector<weight_t, VECTOR> tap;
        load_shared(tap, by + (r * KERNEL_W + s) * PITCH);
#pragma unroll
        for (int k = 0; k < TILE_W; ++k)
#pragma unroll
          for (int j = 0; j < VECTOR; ++j)
            sums[i][k][j] += to_compute(now.at[k * STRIDE_W + s][j * IN_VECTOR / VECTOR]) * to_compute(tap[j]);
      }
    }
  }

  // Not earlier: blocks of the next kernel would crowd on the multiprocessors that have room while this one computes.
  let_next_start(next_waits);
  epilogue(a, shared_operands, sums, n, first_y, first_x, m);
}
