// y[n, p, q, m] = program(sum over c, and over o, r, v, s with o STRIDE_H + r - PAD_TOP = p and v STRIDE_W + s -
//                         PAD_LEFT = q, of x[n, o, v, c] w[c, r, s, m])
//
// Before this text comes what engine.h says.
//
// The result is made in patches of STRIDE_H x STRIDE_W pixels. All elements of patch (i, j), the pixels p and q with
// (p + PAD_TOP) / STRIDE_H = i and (q + PAD_LEFT) / STRIDE_W = j, meet the same pixels of x: row i and the TAPS_H - 1
// above it, likewise the columns. That makes it one GEMM, M = patches, N = elements of a patch, K = taps and
// channels: on tensor cores with TENSOR_CORES, else one thread takes PARTS patches. A block works on tiles of patches.
// It holds its part of x in shared memory, CHUNK channels at a time, and all the weights, in the order in which threads
// take them. The sums go through shared memory too, so that the program runs along the result as it lies in memory,
// which with CHANNELS_FIRST is [N, FILTERS, OUT_H, OUT_W].
//
// Where the strides do not divide the filter, some weights of the GEMM are zeros that do not exist. An infinite x may
// meet one, so sums that are not finite are made anew without them.

#define TAPS_H ((KERNEL_H + STRIDE_H - 1) / STRIDE_H)
#define TAPS_W ((KERNEL_W + STRIDE_W - 1) / STRIDE_W)
#define COLUMNS (STRIDE_H * STRIDE_W * FILTERS)  // elements of a patch
#define HAS_GAPS (KERNEL_H % STRIDE_H != 0 || KERNEL_W % STRIDE_W != 0)
#define OCTET (TENSOR_CORES ? 8 : 4)  // elements of a vector of x
#define OCTETS (TAPS_H * TAPS_W * (CHUNK / OCTET))
#define CHUNKS (CHANNELS / CHUNK)
#define PITCH (CHUNK + (CHUNK / OCTET % 2 == 0 ? OCTET : 0))  // an odd number of vectors: no conflicts between pixels
#define PATCHES_Y ((OUT_H - 1 + PAD_TOP) / STRIDE_H - PAD_TOP / STRIDE_H + 1)
#define TILES_Y ((PATCHES_Y + TILE_H - 1) / TILE_H)
// Tiles are whole vectors of the result wide, so one column of patches more where pads cut a patch.
#define TILE_OUT_W ((TILE_W - (PAD_LEFT % STRIDE_W != 0)) * STRIDE_W)
#define TILES_X ((OUT_W + TILE_OUT_W - 1) / TILE_OUT_W)
#define PATCHES (TILE_H * TILE_W)
#define PART_H (TILE_H + TAPS_H - 1)
#define PART_W (TILE_W + TAPS_W - 1)
#define THREADS (WARPS * 32)
#if TENSOR_CORES
#define GROUPS ((COLUMNS + 7) / 8)  // of columns, in an MMA
#define K_STEPS ((OCTETS + 1) / 2)  // of a chunk, over two octets each
#define WEIGHT_VECTORS (CHUNKS * K_STEPS * GROUPS * 16)
#define SUM_PITCH (GROUPS * 8 + (GROUPS % 2 == 0 ? 8 : 0))
#define SUM_ROWS (WARPS * PARTS * 16)
#else
#define GROUPS ((COLUMNS + 3) / 4)
#define WEIGHT_VECTORS (CHUNKS * OCTETS * OCTET * GROUPS)
#define SUM_PITCH (GROUPS * 4 + (GROUPS % 2 == 0 ? 4 : 0))
#define SUM_ROWS (THREADS * PARTS)
#endif
#define PART_VECTORS (PART_H * PART_W * PITCH / OCTET)
#define SUM_VECTORS (SUM_ROWS * SUM_PITCH / 4)
#define LINE (CHANNELS_FIRST ? TILE_OUT_W : TILE_OUT_W * FILTERS)  // a row of the result's elements
#define LINES (TILE_H * STRIDE_H * (CHANNELS_FIRST ? FILTERS : 1))

struct Tile {
  int n, y, x;  // its first row of patches; its first column of pixels
  DEVICE Tile(const Arguments& a, int number)
    : n(number / (TILES_X * TILES_Y)),
      y(number / TILES_X % TILES_Y * TILE_H + PAD_TOP / STRIDE_H),
      x(number % TILES_X * TILE_OUT_W) {}
};

// Where an octet of a chunk stands for the first patch, in elements of the part.
DEVICE constexpr int place_of(int octet) {
  return (octet / (CHUNK / OCTET) / TAPS_W * PART_W + octet / (CHUNK / OCTET) % TAPS_W) * PITCH +
    octet % (CHUNK / OCTET) * OCTET;
}

// The weight that channel `at` of an octet has in a column, in elements of w; -1 where there is none.
DEVICE int weight_of(int chunk, int octet, int at, int column) {
  const int tap = octet / (CHUNK / OCTET), c = chunk * CHUNK + octet % (CHUNK / OCTET) * OCTET + at;
  const int m = column % FILTERS, phase = column / FILTERS;
  const int r = phase / STRIDE_W + (TAPS_H - 1 - tap / TAPS_W) * STRIDE_H;
  const int s = phase % STRIDE_W + (TAPS_W - 1 - tap % TAPS_W) * STRIDE_W;
  if (octet >= OCTETS || column >= COLUMNS || r >= KERNEL_H || s >= KERNEL_W) return -1;
  return ((c * KERNEL_H + r) * KERNEL_W + s) * FILTERS + m;
}

// Copies a chunk of the pixels of x that a tile meets, zeros where there are none.
DEVICE void copy_part(storage_t* part, const Arguments& a, const Tile& tile, int chunk) {
  constexpr int kOfPixel = CHUNK / OCTET;
  const storage_t* const image = (const storage_t*)a.in[0];
  const int left = (tile.x + PAD_LEFT) / STRIDE_W - (TAPS_W - 1), top = tile.y - (TAPS_H - 1);
#pragma unroll 4
  for (int i = threadIdx.x; i < PART_H * PART_W * kOfPixel; i += THREADS) {
    const int pixel = i / kOfPixel, at = i % kOfPixel * OCTET;
    const int y = top + pixel / PART_W, x = left + pixel % PART_W;
    const bool exists = (unsigned)y < IMAGE_H && (unsigned)x < IMAGE_W;
    const storage_t* const from =
      exists ? image + ((tile.n * IMAGE_H + y) * IMAGE_W + x) * CHANNELS + chunk * CHUNK + at : image;
#if __CUDA_ARCH__ >= 800
    copy_async(part + pixel * PITCH + at, from, exists);
#else
    uint4 vector = make_uint4(0, 0, 0, 0);
    load_if(exists, vector, from);
    *(uint4*)(part + pixel * PITCH + at) = vector;
#endif
  }
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;\n\tcp.async.wait_group 0;" ::: "memory");
#endif
}

#if HAS_GAPS && TENSOR_CORES
// One value of the convolution, of the weights that exist alone.
DEVICE float sum_anew(const Arguments& a, int n, int y, int x, int m) {
  float sum = 0.0f;
#pragma unroll 1
  for (int r = (y + PAD_TOP) % STRIDE_H; r < KERNEL_H; r += STRIDE_H)
#pragma unroll 1
    for (int s = (x + PAD_LEFT) % STRIDE_W; s < KERNEL_W; s += STRIDE_W) {
      // Whole quotients, also of what is negative.
      const int o = (y + PAD_TOP - r) / STRIDE_H, v = (x + PAD_LEFT - s) / STRIDE_W;
      if ((unsigned)o >= IMAGE_H || (unsigned)v >= IMAGE_W) continue;
      const storage_t* const pixel = (const storage_t*)a.in[0] + ((n * IMAGE_H + o) * IMAGE_W + v) * CHANNELS;
      const storage_t* const w = (const storage_t*)a.in[1] + (r * KERNEL_W + s) * FILTERS + m;
#pragma unroll 1
      for (int c = 0; c < CHANNELS; ++c)
        sum += to_compute(pixel[c]) * to_compute(w[c * (KERNEL_H * KERNEL_W * FILTERS)]);
    }
  return sum;
}
#endif

// All the weights, in the order in which threads take them, zeros where there are none.
DEVICE void copy_weights(uint4* to, const storage_t* w, int warp, int lane) {
#if TENSOR_CORES
  // Two pairs of weights for each thread of a warp are the B fragment of an MMA with a group of columns.
#pragma unroll
  for (int g = 0; g < GROUPS; ++g)
#pragma unroll 4
    for (int step = 0; step < (CHUNKS * K_STEPS + WARPS - 1) / WARPS; ++step) {
      const int i = step * WARPS + warp;
      unsigned short x[4] = {};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int at = weight_of(i / K_STEPS, i % K_STEPS * 2 + half, lane % 4 * 2, g * 8 + lane / 4);
        const bool exists = i < CHUNKS * K_STEPS && at >= 0;
        load_if(exists, x[half * 2], w + at);
        load_if(exists, x[half * 2 + 1], w + at + KERNEL_H * KERNEL_W * FILTERS);
      }
      if (i < CHUNKS * K_STEPS)
        ((uint2*)to)[(i * GROUPS + g) * 32 + lane] =
          make_uint2((unsigned)x[0] | (unsigned)x[1] << 16, (unsigned)x[2] | (unsigned)x[3] << 16);
    }
#else
#pragma unroll 4
  for (int i = threadIdx.x; i < WEIGHT_VECTORS * 4; i += THREADS) {
    const int channel = i / (GROUPS * 4), octet = channel / OCTET;
    const int at = weight_of(octet / OCTETS, octet % OCTETS, channel % OCTET, i % (GROUPS * 4));
    unsigned x = 0;
    load_if(at >= 0, x, w + at);
    ((unsigned*)to)[i] = x;
  }
#endif
}

#if TENSOR_CORES
// Adds the products of a chunk with all its weights. `at`: where each patch of the thread begins; `zeros`: what an
// octet that does not exist meets.
DEVICE void accumulate(float (&sums)[PARTS][GROUPS][4], const storage_t* part, const int (&at)[PARTS],
  const uint2* right, const uint4* zeros, int lane) {
#pragma unroll UNROLL
  for (int i = 0; i < K_STEPS; ++i) {
    const int place = place_of(2 * i), step = place_of(2 * i + 1) - place - 8;  // mostly 0: side by side
    uint2 weights[GROUPS];
#pragma unroll
    for (int g = 0; g < GROUPS; ++g) weights[g] = right[(i * GROUPS + g) * 32 + lane];
#pragma unroll
    for (int p = 0; p < PARTS; ++p) {
      const storage_t* from = part + at[p] + place + (lane >= 16 ? step : 0);
      if (2 * i + 1 >= OCTETS && lane >= 16) from = (const storage_t*)zeros;
      unsigned left[4];
      load_matrices(left, from);
#pragma unroll
      for (int g = 0; g < GROUPS; ++g) mma(sums[p][g], left, weights[g].x, weights[g].y);
    }
  }
}
#else
// Adds the products of a chunk with all its weights that exist. `at`: where each patch of the thread begins.
DEVICE void accumulate(
  float (&sums)[PARTS][GROUPS][4], const storage_t* part, const int (&at)[PARTS], const float4* right) {
#pragma unroll
  for (int tap = 0; tap < TAPS_H * TAPS_W; ++tap)
#pragma unroll 1
    for (int c = 0; c < CHUNK / OCTET; ++c) {
      const int octet = tap * (CHUNK / OCTET) + c;
      float4 left[PARTS];
#pragma unroll
      for (int p = 0; p < PARTS; ++p) left[p] = *(const float4*)(part + at[p] + place_of(octet));
#pragma unroll
      for (int k = 0; k < OCTET; ++k)
#pragma unroll
        for (int g = 0; g < GROUPS; ++g) {
          const float4 weights = right[(octet * OCTET + k) * GROUPS + g];
          const float four[] = {weights.x, weights.y, weights.z, weights.w};
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int phase = (g * 4 + i) / FILTERS;
            const bool exists = g * 4 + i < COLUMNS &&
              phase / STRIDE_W + (TAPS_H - 1 - tap / TAPS_W) * STRIDE_H < KERNEL_H &&
              phase % STRIDE_W + (TAPS_W - 1 - tap % TAPS_W) * STRIDE_W < KERNEL_W;
#pragma unroll
            for (int p = 0; p < PARTS; ++p) {
              const float x = k == 0 ? left[p].x : k == 1 ? left[p].y : k == 2 ? left[p].z : left[p].w;
              if (exists) sums[p][g][i] += x * four[i];
            }
          }
        }
    }
}
#endif

// A row for each patch.
DEVICE void share_sums(float* shared_sums, const float (&sums)[PARTS][GROUPS][4], int warp, int lane) {
#pragma unroll
  for (int p = 0; p < PARTS; ++p)
#pragma unroll
    for (int g = 0; g < GROUPS; ++g) {
#if TENSOR_CORES
      float* const to = shared_sums + ((warp * PARTS + p) * 16 + lane / 4) * SUM_PITCH + g * 8 + lane % 4 * 2;
      *(float2*)to = make_float2(sums[p][g][0], sums[p][g][1]);
      *(float2*)(to + 8 * SUM_PITCH) = make_float2(sums[p][g][2], sums[p][g][3]);
#else
      *(float4*)(shared_sums + (p * THREADS + threadIdx.x) * SUM_PITCH + g * 4) =
        make_float4(sums[p][g][0], sums[p][g][1], sums[p][g][2], sums[p][g][3]);
#endif
    }
}

// Applies the program along a tile's lines.
DEVICE void store_results(const Arguments& a, const float* shared_sums, const Tile& tile) {
#pragma unroll 1
  for (int i = threadIdx.x; i < LINES * (LINE / VECTOR); i += THREADS) {
    const int line = i / (LINE / VECTOR), first = i % (LINE / VECTOR) * VECTOR;
    const int in_y = CHANNELS_FIRST ? line % (TILE_H * STRIDE_H) : line, y = tile.y * STRIDE_H + in_y - PAD_TOP;
    if ((unsigned)y >= OUT_H || tile.x + (CHANNELS_FIRST ? first : first / FILTERS) >= OUT_W) continue;
    const float* const row =
      shared_sums + in_y / STRIDE_H * (TILE_W * SUM_PITCH) + in_y % STRIDE_H * (STRIDE_W * FILTERS);
    Results<VECTOR> results;
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) {
      const int m = CHANNELS_FIRST ? line / (TILE_H * STRIDE_H) : (first + j) % FILTERS;
      const int in_x = CHANNELS_FIRST ? first + j : (first + j) / FILTERS, x = tile.x + in_x;
      // Where vectors begin with a patch, or as far behind its first column as pads cut it, distances are constants.
      const int shift = PAD_LEFT % STRIDE_W, from = CHANNELS_FIRST && VECTOR % STRIDE_W == 0 ? first : 0;
      const int column = in_x - from + shift;
      float value = row[(from / STRIDE_W + column / STRIDE_W) * SUM_PITCH + column % STRIDE_W * FILTERS + m];
#if HAS_GAPS && TENSOR_CORES
      if (!(fabsf(value) <= 3.402823466e38f)) value = sum_anew(a, tile.n, y, x, m);
#endif
      TileOperands<1> shared_operands;
      shared_operands.load(a, tile.n, m);
      PixelOperands<1> operands;
      operands.load(a, tile.n, y, x, m, ((tile.n * OUT_H + y) * OUT_W + x) * FILTERS + m);
      apply(shared_operands, operands, 0, value, results, j);
    }
    const int m = CHANNELS_FIRST ? line / (TILE_H * STRIDE_H) : 0;
    results.store(a,
      CHANNELS_FIRST ? ((tile.n * FILTERS + m) * OUT_H + y) * OUT_W + tile.x + first
                     : ((tile.n * OUT_H + y) * OUT_W + tile.x) * FILTERS + first);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
  few_output_channels(const Arguments a, const unsigned next_waits) {
  __shared__ uint4 shared[WEIGHT_VECTORS + 1 + (PART_VECTORS > SUM_VECTORS ? PART_VECTORS : SUM_VECTORS)];
  uint4* const zeros = shared + WEIGHT_VECTORS;
  storage_t* const part = (storage_t*)(zeros + 1);
  float* const shared_sums = (float*)(zeros + 1);
  const int lane = threadIdx.x % 32, warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);  // known to be one
  const int tiles = (int)a.batch * (TILES_X * TILES_Y);

  if (!CONSTANT_WEIGHTS) grid_dependency_wait();
  copy_weights(shared, (const storage_t*)a.in[1], warp, lane);
  if (TENSOR_CORES && threadIdx.x == 0) *zeros = make_uint4(0, 0, 0, 0);
  if (CONSTANT_WEIGHTS) grid_dependency_wait();

  // Where each patch of the thread begins: threads 0 to 15 of a warp take an octet of 16 patches, 16 to 31 the next.
  int at[PARTS];
#pragma unroll
  for (int p = 0; p < PARTS; ++p) {
    const int patch = TENSOR_CORES ? (warp * PARTS + p) * 16 + lane % 16 : p * THREADS + threadIdx.x;
    const int known = patch < PATCHES ? patch : PATCHES - 1;
    at[p] = (known / TILE_W * PART_W + known % TILE_W) * PITCH + (TENSOR_CORES ? lane / 16 * 8 : 0);
  }

  for (int number = blockIdx.x; number < tiles; number += gridDim.x) {
    const Tile tile(a, number);
    if (number + gridDim.x >= tiles) let_next_start(next_waits);
    float sums[PARTS][GROUPS][4];
#pragma unroll
    for (int p = 0; p < PARTS; ++p)
#pragma unroll
      for (int g = 0; g < GROUPS; ++g)
#pragma unroll
        for (int k = 0; k < 4; ++k) sums[p][g][k] = 0.0f;
#pragma unroll 1
    for (int chunk = 0; chunk < CHUNKS; ++chunk) {
      __syncthreads();  // what stood there has been used
      copy_part(part, a, tile, chunk);
      __syncthreads();
#if TENSOR_CORES
      accumulate(sums, part, at, (const uint2*)shared + chunk * (K_STEPS * GROUPS * 32), zeros, lane);
#else
      accumulate(sums, part, at, (const float4*)shared + chunk * (OCTETS * OCTET * GROUPS));
#endif
    }
    __syncthreads();
    share_sums(shared_sums, sums, warp, lane);
    __syncthreads();
    store_results(a, shared_sums, tile);
  }
}
