// y[p, m] = program(sum over taps and c of x[p at tap, c] w[m, tap, c]) in float32, by FMAs
//
// Before this text comes what engine.h says, and cluster.cuh.
//
// An implicit GEMM. A K tile is TILE_K channels of a tap: TILE_M pixels and TILE_N filters, copied STAGES - 1 ahead.
// Both halves of a block's threads make the same tile, each of half of every K tile, and each thread QUADS_M times four
// pixels and QUADS_N times four filters. Where tiles are few, a cluster of SPLIT_K blocks shares one, too. Such parts
// of a sum are then exchanged through shared memory, and each part applies the program to a share of the tile.
//
// Rows of shared memory have eight quads of channels, quad q of row r in the place q ^ (r / 4 % 8): the threads of a
// warp read quads of rows four apart, and copy those of one row, from different banks.

#define TILE_M (64 * QUADS_M)
#define TILE_N (32 * QUADS_N)
#define TILE_K 32
#define THREADS 256
#define STAGE_FLOATS ((TILE_M + TILE_N) * TILE_K)
#define CHANNEL_TILES ((CHANNELS + TILE_K - 1) / TILE_K)
#define K_TILES (KERNEL_H * KERNEL_W * CHANNEL_TILES)
#define TILES_N ((FILTERS + TILE_N - 1) / TILE_N)
#define PARTS (2 * SPLIT_K)
#define ROWS (4 * QUADS_M)  // of a thread
#define QUADS (ROWS * QUADS_N)  // of a thread's sums: of quad u row u / QUADS_N, in part u % PARTS
#define OWN_QUADS ((QUADS + PARTS - 1) / PARTS)
#define VECTORS (4 / VECTOR)
#define BATCH (OWN_QUADS < VECTOR ? OWN_QUADS : VECTOR)  // quads whose operands are read at once

// What a thread copies of each K tile: a quad of channels of every COPY_ROWS-th row. Offsets are of elements.
#define COPY_ROWS (THREADS / 8)
struct Copies {
  const Arguments& a;
  int first, rows;  // filters and pixels of the result
  unsigned to;  // address in shared memory
  int quad, weight;
  int top[TILE_M / COPY_ROWS], left[TILE_M / COPY_ROWS];  // where a pixel's first tap is, and its offset
  unsigned pixel[TILE_M / COPY_ROWS];

  DEVICE Copies(const Arguments& a, unsigned stages, int first_row, int first_filter, int rows) : a(a), rows(rows) {
    const int row = threadIdx.x / 8;
    quad = threadIdx.x % 8 * 4;
    to = stages + (row * TILE_K + (quad ^ (row & 28))) * 4;
    first = first_filter + row;
    weight = first * (KERNEL_H * KERNEL_W * CHANNELS) + quad;
#pragma unroll
    for (int i = 0; i < TILE_M / COPY_ROWS; ++i) {
      const int p = first_row + i * COPY_ROWS + row;
      top[i] = p < rows ? p / OUT_W % OUT_H * STRIDE_H - PAD_TOP : -(1 << 30);
      left[i] = p % OUT_W * STRIDE_W - PAD_LEFT;
      pixel[i] = ((unsigned)(p / OUT_W / OUT_H * IMAGE_H + top[i]) * IMAGE_W + left[i]) * CHANNELS + quad;
    }
  }
  DEVICE void weights(int k_tile, int stage) const {
    const int tap = k_tile / CHANNEL_TILES, c = k_tile % CHANNEL_TILES * TILE_K;
    const float *const w = (const float*)a.in[1], *const from = w + weight + (tap * CHANNELS + c);
#pragma unroll
    for (int i = 0; i < TILE_N / COPY_ROWS; ++i) {
      const bool exists = first + i * COPY_ROWS < FILTERS && c + quad < CHANNELS;
      copy_async(to + (stage * STAGE_FLOATS + (TILE_M + i * COPY_ROWS) * TILE_K) * 4,
        exists ? from + i * (COPY_ROWS * KERNEL_H * KERNEL_W * CHANNELS) : w, exists);
    }
  }
  DEVICE void pixels(int k_tile, int stage) const {
    const int tap = k_tile / CHANNEL_TILES, c = k_tile % CHANNEL_TILES * TILE_K;
    const int down = tap / KERNEL_W * DILATION_H, right = tap % KERNEL_W * DILATION_W;
    const float* const x = (const float*)a.in[0];
    const unsigned further = (down * IMAGE_W + right) * CHANNELS + c;
#pragma unroll
    for (int i = 0; i < TILE_M / COPY_ROWS; ++i) {
      const int y = top[i] + down, at = left[i] + right;
      const bool exists = (unsigned)y < (unsigned)IMAGE_H && (unsigned)at < (unsigned)IMAGE_W && c + quad < CHANNELS;
      copy_async(
        to + (stage * STAGE_FLOATS + i * (COPY_ROWS * TILE_K)) * 4, exists ? x + (pixel[i] + further) : x, exists);
    }
  }
};

// Adds the products of four quads of channels. `x`, `w`: the first of the thread's rows; `row`, `column`: of its quads
// of these, `first`: of the channels.
DEVICE void multiply(float (&sums)[ROWS][4 * QUADS_N], const float* x, const float* w, int row, int column, int first) {
#pragma unroll
  for (int quad = 0; quad < 4; ++quad) {
    const float* const left = x + ((first + quad) ^ row % 8) * 4;
    const float* const right = w + ((first + quad) ^ column) * 4;
    float4 rows[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; ++i) rows[i] = *(const float4*)(left + (i / 4 * 64 + i % 4) * TILE_K);
#pragma unroll
    for (int j = 0; j < 4 * QUADS_N; ++j) {
      const float4 by = *(const float4*)(right + (j / 4 * 32 + j % 4) * TILE_K);
#pragma unroll
      for (int i = 0; i < ROWS; ++i) sums[i][j] += rows[i].x * by.x;
#pragma unroll
      for (int i = 0; i < ROWS; ++i) sums[i][j] += rows[i].y * by.y;
#pragma unroll
      for (int i = 0; i < ROWS; ++i) sums[i][j] += rows[i].z * by.z;
#pragma unroll
      for (int i = 0; i < ROWS; ++i) sums[i][j] += rows[i].w * by.w;
    }
  }
}

DEVICE float4 quad_of(const float (&sums)[ROWS][4 * QUADS_N], int u) {
  const float* const from = sums[u / QUADS_N] + u % QUADS_N * 4;
  return make_float4(from[0], from[1], from[2], from[3]);
}

// Gives each part the quads that it adds. Behind each other in a part's room: of the part that gives, counted from the
// next one on, its quads, and of these each thread's.
DEVICE void give_parts(const float (&sums)[ROWS][4 * QUADS_N], float4* room, int part) {
#pragma unroll
  for (int u = 0; u < QUADS; ++u) {
    const int taker = u % PARTS, distance = part > taker ? part - taker : part + PARTS - taker;
    if (taker == part) continue;
    float4* const to = room + ((taker % 2 * (PARTS - 1) + distance - 1) * OWN_QUADS + u / PARTS) * 128;
#if SPLIT_K > 1
    store_to_block(to + threadIdx.x % 128, taker / 2, quad_of(sums, u));
#else
    to[threadIdx.x % 128] = quad_of(sums, u);
#endif
  }
}

// The whole sums of the part's quad number `i`: always in the same order.
DEVICE void add_parts(float (&values)[4], const float (&sums)[ROWS][4 * QUADS_N], const float4* room, int part, int i) {
  float4 all = make_float4(0, 0, 0, 0);
#pragma unroll
  for (int each = 0; each < PARTS; ++each)  // registers have no addresses
    if (i * PARTS + each < QUADS && each == part) all = quad_of(sums, i * PARTS + each);
#pragma unroll
  for (int distance = 1; distance < PARTS; ++distance) {
    const float4 some = room[((part % 2 * (PARTS - 1) + distance - 1) * OWN_QUADS + i) * 128 + threadIdx.x % 128];
    all = make_float4(all.x + some.x, all.y + some.y, all.z + some.z, all.w + some.w);
  }
  values[0] = all.x;
  values[1] = all.y;
  values[2] = all.z;
  values[3] = all.w;
}

// Where a thread's quads are in the result.
struct Quads {
  const Arguments& a;
  int rows, row, column, part;  // the rows of all, and the thread's first
  TileOperands<VECTOR> of_filters[BATCH][VECTORS];
  PixelOperands<VECTOR> of_pixels[BATCH][VECTORS];

  DEVICE int pixel(int i) const {
    const int of_thread = (i * PARTS + part) / QUADS_N;
    return row + of_thread / 4 * 64 + of_thread % 4;
  }
  DEVICE int filter(int i, int v) const { return column + (i * PARTS + part) % QUADS_N * 32 + v * VECTOR; }
  DEVICE bool exists(int i, int v) const {
    return i * PARTS + part < QUADS && pixel(i) < rows && filter(i, v) < FILTERS;
  }
  DEVICE void load(int first) {
#pragma unroll
    for (int k = 0; k < BATCH; ++k)
#pragma unroll
      for (int v = 0; v < VECTORS; ++v) {
        const int i = first + k, p = pixel(i), m = filter(i, v);
        if (i >= OWN_QUADS || !exists(i, v)) continue;
        of_filters[k][v].load(a, p / OUT_W / OUT_H, m);
        of_pixels[k][v].load(a, p / OUT_W / OUT_H, p / OUT_W % OUT_H, p % OUT_W, m, p * FILTERS + m);
      }
  }
  DEVICE void store(const float (&values)[4], int i, int k) const {
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
      if (!exists(i, v)) continue;
      Results<VECTOR> results;
#pragma unroll
      for (int j = 0; j < VECTOR; ++j) apply(of_filters[k][v], of_pixels[k][v], j, values[v * VECTOR + j], results);
      results.store(a, pixel(i) * FILTERS + filter(i, v));
    }
  }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
#if SPLIT_K > 1
  __cluster_dims__(SPLIT_K, 1, 1)
#endif
    simt(const Arguments a) {
  extern __shared__ __align__(1024) uint4 shared[];
  float* const stages = (float*)shared;
  const int tile = blockIdx.x / SPLIT_K, block = blockIdx.x % SPLIT_K;
  const int first_row = tile / TILES_N * TILE_M, first = tile % TILES_N * TILE_N;
  const int half = threadIdx.x / 128, row = threadIdx.x % 128 / 8, column = threadIdx.x % 8;  // of quads
  const int rows = (int)a.batch * (OUT_H * OUT_W), part = block * 2 + half;
  const int end = K_TILES * (block + 1) / SPLIT_K;
  int k_tile = K_TILES * block / SPLIT_K, stage = 0;

  const Copies copies(a, (unsigned)__cvta_generic_to_shared(shared), first_row, first, rows);
  if (!CONSTANT_WEIGHTS) grid_dependency_wait();
#pragma unroll
  for (int i = 0; i < STAGES - 1; ++i)
    if (k_tile + i < end) copies.weights(k_tile + i, i);
  commit_copies();
  if (CONSTANT_WEIGHTS) grid_dependency_wait();
#pragma unroll
  for (int i = 0; i < STAGES - 1; ++i) {
    if (k_tile + i < end) copies.pixels(k_tile + i, i);
    commit_copies();
  }

  float sums[ROWS][4 * QUADS_N];
#pragma unroll
  for (int i = 0; i < ROWS; ++i)
#pragma unroll
    for (int j = 0; j < 4 * QUADS_N; ++j) sums[i][j] = 0;
#pragma unroll 1
  for (; k_tile < end; ++k_tile) {
    wait_copies<STAGES - 2>();
    __syncthreads();
    if (k_tile + STAGES - 1 < end) {
      const int next = stage == 0 ? STAGES - 1 : stage - 1;
      copies.weights(k_tile + STAGES - 1, next);
      copies.pixels(k_tile + STAGES - 1, next);
    }
    commit_copies();
    const float* const from = stages + stage * STAGE_FLOATS;
    multiply(sums, from + row * (4 * TILE_K), from + (TILE_M + column * 4) * TILE_K, row, column, half * 4);
    if (++stage == STAGES) stage = 0;
  }

  float4* const room = (float4*)shared;  // no copy is under way any more
  arrive_cluster();
  wait_cluster();
  give_parts(sums, room, part);
  arrive_cluster();
  Quads quads{a, rows, first_row + row * 4, first + column * 4, part};
  quads.load(0);
  wait_cluster();
#pragma unroll
  for (int i = 0; i < OWN_QUADS; ++i) {
    if (i > 0 && i % BATCH == 0) quads.load(i);
    float values[4];
    add_parts(values, sums, room, part, i);
    quads.store(values, i, i % BATCH);
  }
}
