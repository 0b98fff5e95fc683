// z[n, m, p, q] = program(operands)                            the gradient of the convolution's value
// dw[m, c, r, s] = sum over n, p, q of z[n, m, p, q] x[n, c, p STRIDE_H + r - PAD_TOP, q STRIDE_W + s - PAD_LEFT]
// db[m] = sum over n, p, q of z[n, m, p, q]
//
// For convolutions of few channels, in float32 arithmetic. There are few sums, each of very many products: libraries
// make that a matrix product whose inner axis is the pixels, and read the image once for each tap. Here a tile of the
// image and of z stands in shared memory, and all taps of a row of pixels are multiplied out of registers.
//
// The text in front of this one is generated for the node at hand (weight_grad.cc): the sizes as macros, storage_t,
// weight_t, Arguments, Scalars, Operands (VECTOR elements of each) and `apply`, the program.
//
// A block takes BLOCK_MAPS channels of z and BLOCK_CHANNELS of x, and one tile of ROWS rows of IMAGES images after
// another. LANES threads have MAPS x DEPTH x TAP_ROWS x KERNEL_W sums each, which together are all of the block's; the
// block has PARTS such teams, which take turns with strips of STRIP neighbouring pixels, SEGMENT rows of them at a
// time: going down, a row of x that the next row of z meets too stays in registers. A thread's sums stay there until
// the last tile; then the teams' are added up, and `add_weights` adds those of all blocks. Who adds what to what, and
// in which order, depends on the shapes and the GPU's size alone.

#define STRIPS ((OUT_W + STRIP - 1) / STRIP)  // of a row; the last one has TAIL pixels
#define TAIL (OUT_W - (STRIPS - 1) * STRIP)
#define FULL (TAIL == STRIP ? STRIPS : STRIPS - 1)
#define Z_STRIP ((STRIP + 3) / 4 * 4)  // what one takes in shared memory
#define Z_ROW ((STRIPS - 1) * Z_STRIP + (TAIL + 3) / 4 * 4)
#define IN_ROWS ((ROWS - 1) * STRIDE_H + KERNEL_H)
#define IN_COLUMNS ((OUT_W - 1) * STRIDE_W + KERNEL_W)
#define SEGMENTS ((ROWS + SEGMENT - 1) / SEGMENT)
#define SLIDES (TAP_ROWS <= 3 && STRIDE_H < TAP_ROWS)  // more rows of taps make too long a text
#define ROW_TILES ((OUT_H + ROWS - 1) / ROWS)
#define MAP_LANES (BLOCK_MAPS / MAPS)
#define CHANNEL_LANES (BLOCK_CHANNELS / DEPTH)
#define ROW_LANES (KERNEL_H / TAP_ROWS)
#define COLUMN_LANES (CHANNEL_LANES * ROW_LANES)
#define LANES (MAP_LANES * COLUMN_LANES)
#define PARTS (THREADS / LANES)
#define BIASES (HAS_BIAS ? (MAPS + COLUMN_LANES - 1) / COLUMN_LANES : 0)
#define PRODUCTS (MAPS * DEPTH * TAP_ROWS * KERNEL_W)
#define ENTRIES (PRODUCTS + BIASES)  // sums of a thread
#define MAP_BLOCKS ((OUTPUTS + BLOCK_MAPS - 1) / BLOCK_MAPS)
#define CHANNEL_BLOCKS ((CHANNELS + BLOCK_CHANNELS - 1) / BLOCK_CHANNELS)
#define BLOCKS (MAP_BLOCKS * CHANNEL_BLOCKS)  // that take the same pixels
#define Z_PLANES (IMAGES * BLOCK_MAPS)
#define X_PLANES (IMAGES * BLOCK_CHANNELS)
#define TILE_SIZE (Z_PLANES * Z_PITCH + X_PLANES * X_PITCH)
#define SHARED_SIZE (TILE_SIZE > THREADS ? TILE_SIZE : THREADS)

DEVICE int z_place(int row, int column) { return row * Z_ROW + column / STRIP * Z_STRIP + column % STRIP; }

// VECTOR elements of z, read, stored where that is asked for, and kept as floats at to[place(j)].
struct Item {
  Operands operands;
  unsigned element;
  int to;
  bool exists;
  template <typename Place>
  DEVICE void finish(const Arguments& a, const Scalars& scalars, bool stores, float* shared, const Place& place) const {
    if (!exists) return;
    Vector<storage_t, VECTOR> z;
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) {
      storage_t value;
      apply(operands, scalars, j, value);
      z.set(j, value);
      shared[to + place(j)] = to_compute(value);
    }
    if (STORES_Z && stores) z.store((storage_t*)a.z + element);
  }
};

// So many of `count` rounds are taken at once.
constexpr __device__ int batch_of(int count, int most) {
  const int rounds = (count + most - 1) / most;
  return count < 1 ? 1 : (count + rounds - 1) / rounds;
}

struct Tile {
  unsigned first_image;
  int images, first_row, rows;  // that exist
  int first_map, maps, first_channel, channels;
};

DEVICE void stage_z(const Arguments& a, const Scalars& scalars, const Tile& tile, float* shared) {
  const bool stores = tile.first_channel == 0;
#if CHANNELS_LAST
  constexpr int kOwners = BLOCK_MAPS / VECTOR, kLeads = THREADS / kOwners, kPixels = IMAGES * ROWS * OUT_W;
  constexpr int kBatch = batch_of((kPixels + kLeads - 1) / kLeads, BATCH);
  const int map = threadIdx.x % kOwners * VECTOR, lead = threadIdx.x / kOwners;
  if (lead >= kLeads || map >= tile.maps) return;
  const int pixels = tile.images * tile.rows * OUT_W;
#pragma unroll 1
  for (int first = lead; first < pixels; first += kLeads * kBatch) {
    Item items[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int pixel = first + b * kLeads, line = pixel / OUT_W, column = pixel % OUT_W;
      const int image = IMAGES > 1 ? line / OUT_H : 0, row = IMAGES > 1 ? line % OUT_H : line;
      items[b].exists = pixel < pixels;
      items[b].element =
        (((tile.first_image + image) * OUT_H + tile.first_row + row) * OUT_W + column) * OUTPUTS + tile.first_map + map;
      items[b].to = (image * BLOCK_MAPS + map) * Z_PITCH + z_place(row, column);
      if (items[b].exists) items[b].operands.load(a, items[b].element);
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) items[b].finish(a, scalars, stores, shared, [](int j) { return j * Z_PITCH; });
  }
#else
  constexpr int kVectors = ROWS * OUT_W / VECTOR, kOwners = kVectors < THREADS ? kVectors : THREADS;
  constexpr int kLeads = THREADS / kOwners, kBatch = batch_of((Z_PLANES + kLeads - 1) / kLeads, BATCH);
  const int lead = threadIdx.x / kOwners;
  if (lead >= kLeads) return;
#pragma unroll 1
  for (int own = threadIdx.x % kOwners; own < tile.rows * OUT_W / VECTOR; own += kOwners) {
    int places[VECTOR];
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) places[j] = z_place((own * VECTOR + j) / OUT_W, (own * VECTOR + j) % OUT_W);
#pragma unroll 1
    for (int first = lead; first < Z_PLANES; first += kLeads * kBatch) {
      Item items[kBatch];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const int plane = first + b * kLeads, image = plane / BLOCK_MAPS, map = plane % BLOCK_MAPS;
        items[b].exists = image < tile.images && map < tile.maps;
        items[b].element = ((tile.first_image + image) * OUTPUTS + tile.first_map + map) * (OUT_H * OUT_W) +
          tile.first_row * OUT_W + own * VECTOR;
        items[b].to = plane * Z_PITCH;
        if (items[b].exists) items[b].operands.load(a, items[b].element);
      }
#pragma unroll
      for (int b = 0; b < kBatch; ++b) items[b].finish(a, scalars, stores, shared, [&](int j) { return places[j]; });
    }
  }
#endif
}

// An element of x, 0 where it does not exist. Floats find their way by themselves: settle() waits for them.
DEVICE void place_x(float* to, const float* from, bool exists) {
#if __CUDA_ARCH__ >= 800
  const unsigned address = (unsigned)__cvta_generic_to_shared(to);
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address), "l"(from), "r"(exists ? 4 : 0)
    : "memory");
#else
  *to = exists ? *from : 0.0f;
#endif
}
template <typename T>
DEVICE void place_x(float* to, const T* from, bool exists) {
  T value;
  value.bits = 0;
  if (exists) value = *from;
  *to = to_compute(value);
}
DEVICE void settle() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// Elements of x one by one.
DEVICE void stage_x(const Arguments& a, const Tile& tile, float* shared) {
  const storage_t* x = (const storage_t*)a.x;
  constexpr int kPlane = IN_ROWS * IN_COLUMNS;
#if CHANNELS_LAST
  constexpr int kOwners = BLOCK_CHANNELS, kLeads = THREADS / kOwners;
  const int rounds = tile.images * kPlane, owned = tile.channels;
#else
  constexpr int kOwners = kPlane < THREADS ? kPlane : THREADS, kLeads = THREADS / kOwners;
  const int rounds = tile.images * BLOCK_CHANNELS, owned = kPlane;
#endif
  const int lead = threadIdx.x / kOwners;
  if (lead >= kLeads) return;
#pragma unroll 1
  for (int own = threadIdx.x % kOwners; own < owned; own += kOwners) {
#pragma unroll 4
    for (int round = lead; round < rounds; round += kLeads) {
      const int image = round / (CHANNELS_LAST ? kPlane : BLOCK_CHANNELS);
      const int channel = CHANNELS_LAST ? own : round % BLOCK_CHANNELS, pixel = CHANNELS_LAST ? round % kPlane : own;
      const int line = pixel / IN_COLUMNS, column = pixel % IN_COLUMNS;
      const int h = tile.first_row * STRIDE_H + line - PAD_TOP, w = column - PAD_LEFT;
      const unsigned at = tile.first_image + image, from = tile.first_channel + channel;
      const bool exists = channel < tile.channels && h >= 0 && h < IMAGE_H && w >= 0 && w < IMAGE_W;
      const unsigned element = CHANNELS_LAST ? ((at * IMAGE_H + h) * IMAGE_W + w) * CHANNELS + from
                                             : ((at * CHANNELS + from) * IMAGE_H + h) * IMAGE_W + w;
      place_x(shared + (image * BLOCK_CHANNELS + channel) * X_PITCH + line * X_ROW + column, x + (exists ? element : 0),
        exists);
    }
  }
}

// N pixels of a strip of z. `z` is a multiple of 16 bytes.
template <int N>
struct Strip {
  Vector<float, (N + 3) / 4 * 4> pixels;
  DEVICE void load(const float* z) {
#pragma unroll
    for (int i = 0; i < (N + 3) / 4; ++i) pixels.chunks[i] = ((const uint4*)z)[i];
  }
};

// `rows` strips of N pixels, one below the other: z of the thread's first map, x of its first channel and row of taps.
template <int N>
DEVICE void accumulate(const float* z, const float* x, int rows, int column_lane, float (&sums)[ENTRIES]) {
  constexpr int kWindow = (N - 1) * STRIDE_W + KERNEL_W;
  constexpr int kSteps = SLIDES ? TAP_ROWS : 1, kKept = SLIDES ? TAP_ROWS - STRIDE_H : 0;  // rows of x
  float window[DEPTH][TAP_ROWS][kWindow];
  const auto load = [&](int line) {
#pragma unroll
    for (int d = 0; d < DEPTH; ++d)
#pragma unroll
      for (int j = 0; j < kWindow; ++j)
        window[d][line % TAP_ROWS][j] = x[d * CHANNEL_LANES * X_PITCH + line * X_ROW + j];
  };
#pragma unroll
  for (int line = 0; line < kKept; ++line) load(line);
#pragma unroll 1
  for (int first = 0; first < rows; first += kSteps) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (step > 0 && first + step >= rows) break;
#pragma unroll
      for (int r = kKept; r < TAP_ROWS; ++r) load(step * STRIDE_H + r);
#pragma unroll
      for (int k = 0; k < MAPS; ++k) {
        Strip<N> strip;
        strip.load(z + k * MAP_LANES * Z_PITCH + step * Z_ROW);
#pragma unroll
        for (int j = 0; j < N; ++j)
#pragma unroll
          for (int d = 0; d < DEPTH; ++d)
#pragma unroll
            for (int r = 0; r < TAP_ROWS; ++r)
#pragma unroll
              for (int s = 0; s < KERNEL_W; ++s)
                sums[((k * DEPTH + d) * TAP_ROWS + r) * KERNEL_W + s] +=
                  strip.pixels[j] * window[d][(step * STRIDE_H + r) % TAP_ROWS][j * STRIDE_W + s];
      }
      // The threads that share z share the sums of z.
#pragma unroll
      for (int i = 0; i < BIASES; ++i) {
        const int map = column_lane + i * COLUMN_LANES;
        if (MAPS % COLUMN_LANES == 0 || map < MAPS) {
          Strip<N> strip;
          strip.load(z + map * MAP_LANES * Z_PITCH + step * Z_ROW);
#pragma unroll
          for (int j = 0; j < N; ++j) sums[PRODUCTS + i] += strip.pixels[j];
        }
      }
    }
    z += kSteps * Z_ROW;
    x += kSteps * STRIDE_H * X_ROW;
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) weight_grad(const Arguments a) {
  grid_dependency_wait();
  __shared__ __align__(16) float shared[SHARED_SIZE];
  float* const shared_x = shared + Z_PLANES * Z_PITCH;
  const unsigned block = blockIdx.x % BLOCKS, chunk = blockIdx.x / BLOCKS, chunks = gridDim.x / BLOCKS;
  Tile tile;
  tile.first_map = block / CHANNEL_BLOCKS * BLOCK_MAPS;
  tile.first_channel = block % CHANNEL_BLOCKS * BLOCK_CHANNELS;
  tile.maps = min(BLOCK_MAPS, OUTPUTS - tile.first_map);
  tile.channels = min(BLOCK_CHANNELS, CHANNELS - tile.first_channel);
  const int lane = threadIdx.x % LANES, part = threadIdx.x / LANES;
  const int column_lane = lane % COLUMN_LANES, map_lane = lane / COLUMN_LANES;
  const float* const own_z = shared + map_lane * Z_PITCH;
  const float* const own_x =
    shared_x + column_lane % CHANNEL_LANES * X_PITCH + column_lane / CHANNEL_LANES * TAP_ROWS * X_ROW;

  const Scalars scalars(a);
  float sums[ENTRIES];
#pragma unroll
  for (int i = 0; i < ENTRIES; ++i) sums[i] = 0.0f;
  const unsigned images = (unsigned)a.images, tiles = (images + IMAGES - 1) / IMAGES * ROW_TILES;
#pragma unroll 1
  for (unsigned number = chunk; number < tiles; number += chunks) {
    tile.first_image = number / ROW_TILES * IMAGES;
    tile.images = (int)min((unsigned)IMAGES, images - tile.first_image);
    tile.first_row = number % ROW_TILES * ROWS;
    tile.rows = min(ROWS, OUT_H - tile.first_row);
    __syncthreads();  // what stands in shared memory has been read
    stage_x(a, tile, shared_x);
    stage_z(a, scalars, tile, shared);
    settle();
    __syncthreads();
    if (part >= PARTS) continue;
    // Strip `strip` of the segment that job `i` is, of `strips` in a row.
#define ADD(N, strips, strip) \
  { \
    const int image = i / ((strips) * SEGMENTS), row = i / (strips) % SEGMENTS * SEGMENT; \
    accumulate<N>(own_z + image * BLOCK_MAPS * Z_PITCH + row * Z_ROW + (strip) * Z_STRIP, \
      own_x + image * BLOCK_CHANNELS * X_PITCH + row * STRIDE_H * X_ROW + (strip) * STRIP * STRIDE_W, \
      min(SEGMENT, tile.rows - row), column_lane, sums); \
  }
#pragma unroll 1
    for (int i = part; i < tile.images * SEGMENTS * FULL; i += PARTS) ADD(STRIP, FULL, i % FULL)
    if (TAIL < STRIP) {
#pragma unroll 1
      for (int i = part; i < tile.images * SEGMENTS; i += PARTS) ADD(TAIL, 1, STRIPS - 1)
    }
#undef ADD
  }

  constexpr int kRoom = SHARED_SIZE / (PARTS * LANES), kRound = kRoom < ENTRIES ? kRoom : ENTRIES;
  float* const partial = (float*)a.partial + (unsigned long long)blockIdx.x * (ENTRIES * LANES);
#pragma unroll
  for (int first = 0; first < ENTRIES; first += kRound) {
    __syncthreads();
    if (part < PARTS) {
#pragma unroll
      for (int k = 0; k < kRound; ++k)
        if (first + k < ENTRIES) shared[(k * PARTS + part) * LANES + lane] = sums[first + k];
    }
    __syncthreads();
    constexpr int kAll = kRound * LANES;
    for (int i = threadIdx.x; i < kAll && i < (ENTRIES - first) * LANES; i += THREADS) {
      const float* from = shared + i / LANES * PARTS * LANES + i % LANES;
      float sum = 0.0f;
#pragma unroll 8
      for (int p = 0; p < PARTS; ++p) sum += from[p * LANES];
      partial[first * LANES + i] = sum;
    }
  }
}

// partial: [chunks, BLOCKS, ENTRIES, LANES]. ADDERS threads take the chunks of one sum.
extern "C" __global__ void __launch_bounds__(256) add_weights(const Arguments a) {
  grid_dependency_wait();
  __shared__ float slots[256];
  constexpr unsigned kColumns = 256 / ADDERS, kSums = BLOCKS * ENTRIES * LANES, kBatch = 8;
  const unsigned number = blockIdx.x * kColumns + threadIdx.x % kColumns, chunks = (unsigned)a.chunks;
  float sum = 0.0f;
  if (number < kSums) {
    const float* const partial = (const float*)a.partial + number;
    for (unsigned chunk = threadIdx.x / kColumns; chunk < chunks; chunk += kBatch * ADDERS) {
      float x[kBatch];
#pragma unroll
      for (unsigned n = 0; n < kBatch; ++n) {
        const unsigned at = chunk + n * ADDERS;
        x[n] = at < chunks ? partial[(unsigned long long)at * kSums] : 0.0f;
      }
#pragma unroll
      for (unsigned half = kBatch / 2; half > 0; half /= 2)
#pragma unroll
        for (unsigned n = 0; n < half; ++n) x[n] += x[n + half];
      sum += x[0];
    }
  }
  slots[threadIdx.x] = sum;
  __syncthreads();
#pragma unroll
  for (unsigned half = ADDERS / 2; half > 0; half /= 2) {
    if (threadIdx.x < half * kColumns) slots[threadIdx.x] += slots[threadIdx.x + half * kColumns];
    __syncthreads();
  }
  if (threadIdx.x >= kColumns || number >= kSums) return;
  weight_t result;
  from_compute((weight_compute_t)slots[threadIdx.x], result);
  const int lane = number % LANES, entry = number / LANES % ENTRIES, block = number / (LANES * ENTRIES);
  const int column_lane = lane % COLUMN_LANES, first_map = block / CHANNEL_BLOCKS * BLOCK_MAPS + lane / COLUMN_LANES;
  if (entry >= PRODUCTS) {
    const int own = column_lane + (entry - PRODUCTS) * COLUMN_LANES, map = first_map + own * MAP_LANES;
    if (block % CHANNEL_BLOCKS == 0 && own < MAPS && map < OUTPUTS) ((weight_t*)a.db)[map] = result;
    return;
  }
  const int s = entry % KERNEL_W, r = entry / KERNEL_W % TAP_ROWS + column_lane / CHANNEL_LANES * TAP_ROWS;
  const int channel = block % CHANNEL_BLOCKS * BLOCK_CHANNELS + column_lane % CHANNEL_LANES +
    entry / (KERNEL_W * TAP_ROWS) % DEPTH * CHANNEL_LANES;
  const int map = first_map + entry / (KERNEL_W * TAP_ROWS * DEPTH) * MAP_LANES;
  if (map >= OUTPUTS || channel >= CHANNELS) return;
  ((weight_t*)a.dw)[CHANNELS_LAST ? ((map * KERNEL_H + r) * KERNEL_W + s) * CHANNELS + channel
                                  : ((map * CHANNELS + channel) * KERNEL_H + r) * KERNEL_W + s] = result;
}
