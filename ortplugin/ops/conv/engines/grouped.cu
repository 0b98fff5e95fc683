// y[n, p, q, m] = program(sum over r, s, c of w[m, r, s, c] x[n, p STRIDE_H + r DILATION_H - PAD_TOP, v, g + c]),
// v = q STRIDE_W + s DILATION_W - PAD_LEFT, g = m / GROUP_FILTERS * GROUP_CHANNELS
//
// Before this text comes what engine.h says.
//
// An implicit GEMM for each group, M = pixels, N = filters, K = taps and octets of channels: 16 bytes, OCTET elements,
// eight or in fp32, whose products are TF32's, four. MERGED narrow groups make
// a unit with block-diagonal weights; 8 COLUMNS of its filters are a sub. A block has a tile of pixels (FLAT: of all
// images in a row) and a slice of BLOCK_UNITS units or BLOCK_SUBS subs, its warps have items: PARTS times 16 pixels,
// ITEM_UNITS units of one sub.
//
// Shared memory holds what the tile meets of X, once for all taps, and the filters, CHUNK octets of each unit at a
// time. Octets begin with a unit; what fills up the last one is zero on both sides. Zeros beside the diagonal may meet
// an infinite x of another group, so in units of several, sums that are not finite are made anew without them.

#define THREADS (WARPS_M * WARPS_N * 32)
#define TAPS (KERNEL_H * KERNEL_W)
#define UNIT_CHANNELS (MERGED * GROUP_CHANNELS)
#define UNIT_FILTERS (MERGED * GROUP_FILTERS)
#define UNITS ((CHANNELS + UNIT_CHANNELS - 1) / UNIT_CHANNELS)
#define CHUNKS (((UNIT_CHANNELS + OCTET - 1) / OCTET + CHUNK - 1) / CHUNK)
#define SUB_FILTERS (COLUMNS * 8)
#define SUBS ((UNIT_FILTERS + SUB_FILTERS - 1) / SUB_FILTERS)
#define SLICES_N ((SUBS + BLOCK_SUBS - 1) / BLOCK_SUBS)
#define SLICES ((UNITS + BLOCK_UNITS - 1) / BLOCK_UNITS * SLICES_N)
#define ITEMS (BLOCK_UNITS / ITEM_UNITS * BLOCK_SUBS)
#define WARP_ITEMS ((ITEMS + WARPS_N - 1) / WARPS_N)
#define PIXELS (TILE_H * TILE_W)
// Of X each STEP-th row and column is met. Those that neighbouring pixels meet lie side by side: MOVE_W planes a row.
#define MOVE_H (STRIDE_H / STEP_H)
#define MOVE_W (STRIDE_W / STEP_W)
#define REACH_H (DILATION_H / STEP_H)
#define REACH_W (DILATION_W / STEP_W)
#define PART_H ((TILE_H - 1) * MOVE_H + (KERNEL_H - 1) * REACH_H + 1)
#define PLANE_W (TILE_W + (KERNEL_W - 1) * REACH_W / MOVE_W)
#define PART_W (PLANE_W * MOVE_W)
#define PITCH (BLOCK_UNITS * CHUNK | 1)  // octets, an odd number: no conflicts between neighbours
#define OCTETS (TAPS * CHUNK)
#define W_PITCH (OCTETS | 1)
#define W_ROWS (BLOCK_UNITS * BLOCK_SUBS * SUB_FILTERS)
#define ITEM_COLUMNS (ITEM_UNITS * COLUMNS)
#define SUM_PITCH ((ITEM_COLUMNS | 1) * 8)
// Vectors of results of a unit in an item.
#define UNIT_VECTORS ((UNIT_FILTERS < SUB_FILTERS ? UNIT_FILTERS : SUB_FILTERS) / VECTOR)
#define ITEM_VECTORS (ITEM_UNITS * UNIT_VECTORS)
#define X_BYTES (PART_H * PART_W * PITCH * 16)
#define W_BYTES (W_ROWS * W_PITCH * 16 + 16)  // half an octet's matrices end behind the last row, unused
#define STAGE_BYTES (X_BYTES + (CHUNKS > 1 ? W_BYTES : 0))
#define WARP_SUMS (16 * SUM_PITCH)

DEVICE void mma_half(float (&sums)[4], const unsigned (&a)[4], unsigned b) {
  asm("mma.sync.aligned.m16n8k" MMA_HALF_K ".row.col.f32." MMA_TYPE "." MMA_TYPE
      ".f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
    : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
    : "r"(a[0]), "r"(a[1]), "r"(b));
}
template <int N>
DEVICE void load_matrices(unsigned (&x)[4], unsigned from) {
  if constexpr (N == 4) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
      : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
      : "r"(from)
      : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
      : "=r"(x[0]), "=r"(x[1])
      : "r"(from)
      : "memory");
  }
#pragma unroll
  for (int i = 0; OCTET == 4 && i < N; ++i) x[i] = to_tf32(__uint_as_float(x[i]));
}

// Starts copying N elements to shared memory, or zeros where they do not exist.
template <int N>
DEVICE void copy_elements(unsigned to, const storage_t* from, bool exists) {
  constexpr int kBytes = N * sizeof(storage_t);
  if constexpr (kBytes == 16) {
    copy_async(to, from, exists);
  } else if constexpr (kBytes > 2) {
    asm volatile(
      "cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(kBytes), "r"(exists ? kBytes : 0)
      : "memory");
  } else {
    unsigned short x = 0;
    load_if(exists, x, from);
    asm volatile("st.shared.u16 [%0], %1;" ::"r"(to), "h"(x) : "memory");
  }
}

struct Tile {
  int n, y, x;
  DEVICE Tile(const Arguments& a, int number)
    : n(FLAT ? 0 : number / TILES_W / TILES_H),
      y(FLAT ? 0 : number / TILES_W % TILES_H * TILE_H),
      x((FLAT ? number : number % TILES_W) * TILE_W) {}
};

DEVICE void copy_part(unsigned to, const Arguments& a, const Tile& tile, int chunk, int first_unit) {
  constexpr int kOfUnit = CHUNK * OCTET / X_VECTOR, kOfPixel = BLOCK_UNITS * kOfUnit;
  const storage_t* const image = (const storage_t*)a.in[0];
  const int top = tile.y * STRIDE_H - PAD_TOP, left = tile.x * STRIDE_W - PAD_LEFT;
#pragma unroll 4
  for (int i = threadIdx.x; i < PART_H * PART_W * kOfPixel; i += THREADS) {
    const int pixel = i / kOfPixel, vector = i % kOfPixel, column = pixel % PART_W;
    const int y = top + pixel / PART_W * STEP_H;
    const int x = left + (column % PLANE_W * MOVE_W + column / PLANE_W) * STEP_W;
    const int in_unit = chunk * (CHUNK * OCTET) + vector % kOfUnit * X_VECTOR;
    const int c = (first_unit + vector / kOfUnit) * UNIT_CHANNELS + in_unit;
    const bool exists = in_unit < UNIT_CHANNELS && c < CHANNELS &&
      (FLAT ? x < (int)a.batch * (OUT_H * OUT_W) : (unsigned)y < IMAGE_H && (unsigned)x < IMAGE_W);
    const int at = FLAT ? x : (tile.n * IMAGE_H + y) * IMAGE_W + x;
    copy_elements<X_VECTOR>(to + (pixel * (PITCH * OCTET) + vector * X_VECTOR) * sizeof(storage_t),
      exists ? image + at * CHANNELS + c : image, exists);
  }
}

DEVICE void copy_weights(unsigned to, const Arguments& a, int chunk, int first_unit, int first_sub) {
  constexpr int kOfRow = OCTETS * OCTET / W_VECTOR, kRows = BLOCK_SUBS * SUB_FILTERS;
  const storage_t* const w = (const storage_t*)a.in[1];
#pragma unroll 4
  for (int i = threadIdx.x; i < W_ROWS * kOfRow; i += THREADS) {
    const int row = i / kOfRow, k = i % kOfRow * W_VECTOR;
    const int in_unit = first_sub * SUB_FILTERS + row % kRows;
    const int m = (first_unit + row / kRows) * UNIT_FILTERS + in_unit;
    const int c = chunk * (CHUNK * OCTET) + k % (CHUNK * OCTET) - in_unit / GROUP_FILTERS * GROUP_CHANNELS;
    const bool exists = in_unit < UNIT_FILTERS && m < FILTERS && (unsigned)c < GROUP_CHANNELS;
    copy_elements<W_VECTOR>(to + (row * (W_PITCH * OCTET) + k) * sizeof(storage_t),
      exists ? w + (m * TAPS + k / (CHUNK * OCTET)) * GROUP_CHANNELS + c : w, exists);
  }
}

// Where an octet stands for the tile's first pixel and the first unit, in octets.
DEVICE constexpr int place_of(int octet) {
  const int r = octet / CHUNK / KERNEL_W, column = octet / CHUNK % KERNEL_W * REACH_W;
  return (r * REACH_H * PART_W + column % MOVE_W * PLANE_W + column / MOVE_W) * PITCH + octet % CHUNK;
}

// Adds the products of two octets, or with HALF of one. `at`: where the thread's pixels begin in shared memory, `right`
// where its filters do.
template <bool HALF>
DEVICE void multiply(
  float (&sums)[PARTS][ITEM_COLUMNS][4], const unsigned (&at)[PARTS], unsigned right, int i, bool is_high) {
  const int low = place_of(2 * i), high = HALF ? low : place_of(2 * i + 1);
  const int place = (is_high ? high : low) * 16;
#pragma unroll
  for (int u = 0; u < ITEM_UNITS; ++u) {
    unsigned x[PARTS][4];
#pragma unroll
    for (int p = 0; p < PARTS; ++p) load_matrices<4>(x[p], at[p] + place + u * (CHUNK * 16));
#pragma unroll
    for (int j = 0; j < COLUMNS; j += 2) {
      unsigned w[4];
      const unsigned from = right + ((u * (BLOCK_SUBS * SUB_FILTERS) + j * 8) * W_PITCH + 2 * i) * 16;
      if (j + 1 < COLUMNS) {
        load_matrices<4>(w, from);
      } else {
        load_matrices<2>(w, from);
      }
#pragma unroll
      for (int p = 0; p < PARTS; ++p)
#pragma unroll
        for (int k = 0; k < 2 && j + k < COLUMNS; ++k) {
          float (&to)[4] = sums[p][u * COLUMNS + j + k];
          if (HALF) {
            mma_half(to, x[p], w[2 * k]);
          } else {
            mma(to, x[p], w[2 * k], w[2 * k + 1]);
          }
        }
    }
  }
}

// Adds the products of an item with a chunk, the first to zeros. `units`: where its units begin, from `pixels`.
DEVICE void accumulate(float (&sums)[PARTS][ITEM_COLUMNS][4], const unsigned (&pixels)[PARTS], unsigned units,
  unsigned right, bool is_first, int lane) {
  unsigned at[PARTS];
#pragma unroll
  for (int p = 0; p < PARTS; ++p) {
    at[p] = pixels[p] + units;
#pragma unroll
    for (int j = 0; j < ITEM_COLUMNS * 4; ++j)
      if (is_first) sums[p][j / 4][j % 4] = 0.0f;
  }
  int half = lane / 16;
  asm volatile("" : "+r"(half));  // or all places would be kept in registers
#pragma unroll UNROLL
  for (int i = 0; i < OCTETS / 2; ++i) multiply<false>(sums, at, right, i, half != 0);
  if (OCTETS % 2 != 0) multiply<true>(sums, at, right, OCTETS / 2, half != 0);
}

#if MERGED > 1
// One value of the convolution, of its own group's channels alone.
DEVICE float sum_anew(const Arguments& a, int n, int y, int x, int m) {
  const storage_t *const image = (const storage_t*)a.in[0], *const weights = (const storage_t*)a.in[1];
  float sum = 0.0f;
#pragma unroll 1
  for (int tap = 0; tap < TAPS; ++tap) {
    const int o = y * STRIDE_H - PAD_TOP + tap / KERNEL_W * DILATION_H;
    const int v = x * STRIDE_W - PAD_LEFT + tap % KERNEL_W * DILATION_W;
    if ((unsigned)o >= IMAGE_H || (unsigned)v >= IMAGE_W) continue;
    const storage_t* const pixel =
      image + ((n * IMAGE_H + o) * IMAGE_W + v) * CHANNELS + m / GROUP_FILTERS * GROUP_CHANNELS;
#pragma unroll 1
    for (int c = 0; c < GROUP_CHANNELS; ++c)
      sum += to_compute(pixel[c]) * to_compute(weights[(m * TAPS + tap) * GROUP_CHANNELS + c]);
  }
  return sum;
}
#endif

// Applies the program to the sums of 16 pixels of an item, which go through the warp's shared memory so that it reads
// and writes along the filters.
DEVICE void store_results(const Arguments& a, float* shared_sums, const float (&sums)[ITEM_COLUMNS][4],
  const Tile& tile, int first_pixel, int first_unit, int sub, int lane) {
  constexpr int kOfLane = (16 * ITEM_VECTORS + 31) / 32;
  constexpr int kAhead = VECTOR > 2 ? 8 / VECTOR : MERGED > 1 ? 2 : 4;  // vectors whose operands are read at once
  __syncwarp();
#pragma unroll
  for (int j = 0; j < ITEM_COLUMNS; ++j) {
    float* const to = shared_sums + lane / 4 * SUM_PITCH + j * 8 + lane % 4 * 2;
    *(float2*)to = make_float2(sums[j][0], sums[j][1]);
    *(float2*)(to + 8 * SUM_PITCH) = make_float2(sums[j][2], sums[j][3]);
  }
  __syncwarp();
  struct {
    TileOperands<VECTOR> of_tile;
    PixelOperands<VECTOR> of_pixel;
    float* from;
    int n, y, x, m, offset;
  } ahead[kAhead];
#pragma unroll 1
  for (int round = 0; round < kOfLane; round += kAhead) {
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      auto& v = ahead[k];
      const int i = (round + k) * 32 + lane, unit = i % ITEM_VECTORS / UNIT_VECTORS;
      const int in_sub = i % ITEM_VECTORS % UNIT_VECTORS * VECTOR, in_unit = sub * SUB_FILTERS + in_sub;
      const int pixel = first_pixel + i / ITEM_VECTORS, at = FLAT ? tile.x + pixel : 0;
      v.from = shared_sums + i / ITEM_VECTORS * SUM_PITCH + unit * SUB_FILTERS + in_sub;
      v.m = (first_unit + unit) * UNIT_FILTERS + in_unit;
      v.n = FLAT ? at / OUT_W / OUT_H : tile.n;
      v.y = FLAT ? at / OUT_W % OUT_H : tile.y + pixel / TILE_W;
      v.x = FLAT ? at % OUT_W : tile.x + pixel % TILE_W;
      const bool exists = i < 16 * ITEM_VECTORS && pixel < PIXELS && in_unit < UNIT_FILTERS && v.m < FILTERS &&
        (FLAT ? at < (int)a.batch * (OUT_H * OUT_W) : v.y < OUT_H && v.x < OUT_W);
      v.offset = exists ? (FLAT ? at : (v.n * OUT_H + v.y) * OUT_W + v.x) * FILTERS + v.m : -1;
      if (exists) {
        v.of_tile.load(a, v.n, v.m);
        v.of_pixel.load(a, v.n, v.y, v.x, v.m, v.offset);
      }
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      auto& v = ahead[k];
      if (v.offset < 0) continue;
      Vector<float, VECTOR> values;
      load_shared(values, v.from);
#if MERGED > 1
      bool is_finite = true;
#pragma unroll
      for (int j = 0; j < VECTOR; ++j) is_finite = is_finite && fabsf(values[j]) <= 3.402823466e38f;
      if (!is_finite) {
#pragma unroll 1
        for (int j = 0; j < VECTOR; ++j) v.from[j] = sum_anew(a, v.n, v.y, v.x, v.m + j);
        load_shared(values, v.from);
      }
#endif
      Results<VECTOR> results;
#pragma unroll
      for (int j = 0; j < VECTOR; ++j) apply(v.of_tile, v.of_pixel, j, values[j], results);
      results.store(a, v.offset);
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
  grouped(const Arguments a, const unsigned next_waits) {
  extern __shared__ __align__(16) uint4 shared[];
  const unsigned stages = (unsigned)__cvta_generic_to_shared(shared) + (CHUNKS > 1 ? 0 : W_BYTES);
  const int lane = threadIdx.x % 32, warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);  // known to be one
  const int warp_m = warp % WARPS_M, warp_n = warp / WARPS_M;
  float* const shared_sums =
    (float*)((char*)shared + (CHUNKS > 1 ? 0 : W_BYTES) + STAGES * STAGE_BYTES) + warp * WARP_SUMS;
  const int slice = blockIdx.x % SLICES,
            tiles = FLAT ? ((int)a.batch * (OUT_H * OUT_W) + TILE_W - 1) / TILE_W : (int)a.batch * (TILES_W * TILES_H),
            step = gridDim.x / SLICES;
  const int first_unit = slice / SLICES_N * BLOCK_UNITS, first_sub = slice % SLICES_N * BLOCK_SUBS;

  if (!CONSTANT_WEIGHTS || CHUNKS > 1) grid_dependency_wait();
  if (CHUNKS == 1) copy_weights(stages - W_BYTES, a, 0, first_unit, first_sub);
  if (CONSTANT_WEIGHTS && CHUNKS == 1) grid_dependency_wait();

  // Threads 0 to 15 of a warp take an octet of 16 pixels, 16 to 31 the next; of filters likewise by eight.
  unsigned pixels[PARTS];
#pragma unroll
  for (int p = 0; p < PARTS; ++p) {
    const int pixel = min((warp_m * PARTS + p) * 16 + lane % 16, PIXELS - 1);
    pixels[p] = stages + (pixel / TILE_W * (MOVE_H * PART_W) + pixel % TILE_W) * (PITCH * 16);
  }
  const unsigned filters =
    stages + (CHUNKS > 1 ? X_BYTES : -W_BYTES) + ((lane / 16 * 8 + lane % 8) * W_PITCH + lane / 8 % 2) * 16;

  const auto copy = [&](int stage, int number, int chunk) {
    const unsigned to = stages + stage * STAGE_BYTES;
    if (number < tiles) {
      copy_part(to, a, Tile(a, number), chunk, first_unit);
      if (CHUNKS > 1) copy_weights(to + X_BYTES, a, chunk, first_unit, first_sub);
    }
    commit_copies();
  };
  const auto store = [&](const float (&sums)[PARTS][ITEM_COLUMNS][4], const Tile& tile, int item) {
#pragma unroll
    for (int p = 0; p < PARTS; ++p)
      store_results(a, shared_sums, sums[p], tile, (warp_m * PARTS + p) * 16,
        first_unit + item / BLOCK_SUBS * ITEM_UNITS, first_sub + item % BLOCK_SUBS, lane);
  };

  int number = blockIdx.x / SLICES, stage = 0;
  copy(0, number, 0);
#pragma unroll 1
  for (; number < tiles; number += step) {
    const Tile tile(a, number);
    if (number + step >= tiles) let_next_start(next_waits);
    float sums[PARTS][ITEM_COLUMNS][4];
#pragma unroll 1
    for (int chunk = 0; chunk < CHUNKS; ++chunk) {
      const bool is_last = chunk + 1 == CHUNKS;
      const int next = is_last ? number + step : number, next_chunk = is_last ? 0 : chunk + 1;
      if (STAGES == 2) {
        copy(1 - stage, next, next_chunk);
        wait_copies<1>();
      } else {
        wait_copies<0>();
      }
      __syncthreads();
#pragma unroll 1
      for (int item = warp_n; item < ITEMS; item += WARPS_N) {
        const int unit = item / BLOCK_SUBS * ITEM_UNITS, rows = (unit * BLOCK_SUBS + item % BLOCK_SUBS) * SUB_FILTERS;
        const unsigned used = stage * STAGE_BYTES;
        accumulate(sums, pixels, used + unit * (CHUNK * 16), filters + (CHUNKS > 1 ? used : 0) + rows * (W_PITCH * 16),
          chunk == 0, lane);
        if (WARP_ITEMS > 1) store(sums, tile, item);
      }
      __syncthreads();  // the stage has been used
      if (STAGES == 1) copy(0, next, next_chunk);
      if (STAGES == 2) stage = 1 - stage;
    }
    if (WARP_ITEMS == 1 && warp_n < ITEMS) store(sums, tile, warp_n);
  }
}
