// y[n, m, p, q] = program(sum over c, r, s of w[m, c, r, s] x[n, c, p STRIDE_H + r DILATION_H - PAD_TOP,
//                                                              q STRIDE_W + s DILATION_W - PAD_LEFT])
//
// A direct convolution of few channels: two-dimensional, NCHW, fp32. Libraries make such a convolution a GEMM that is
// too narrow for them; here the image stands in shared memory as it is.
//
// The text in front of this one is generated for the node at hand (direct.cc): the sizes as macros, storage_t, index_t,
// Arguments, Scalars, SharedOperands, ChannelOperands, Operands<N>, Results<N>, and `finish` and `apply`,
// the program.
//
// A block makes BLOCK_MAPS channels of ROWS rows of IMAGES images, and takes one such tile after another. A thread
// makes STRIP neighbouring pixels of a row in MAPS channels: it reads each row of the image once for all KERNEL_W taps,
// and all threads of a warp read the same weights. The sums then change places through shared memory, so that operands
// and results are read and written in whole vectors of neighbouring elements.

#define TAPS (KERNEL_H * KERNEL_W)
#define STRIPS ((OUT_W + STRIP - 1) / STRIP)  // of a row
#define TILE_STRIPS (IMAGES * ROWS * STRIPS)  // of a channel
#define WORKERS (TILE_STRIPS * (BLOCK_MAPS / MAPS))  // threads that have pixels
#define IN_ROWS ((ROWS - 1) * STRIDE_H + (KERNEL_H - 1) * DILATION_H + 1)
#define IN_WIDTH ((STRIPS * STRIP - 1) * STRIDE_W + (KERNEL_W - 1) * DILATION_W + 1)
#define WINDOW ((STRIP - 1) * STRIDE_W + (KERNEL_W - 1) * DILATION_W + 1)
#define CHUNKS ((CHANNELS + CHUNK - 1) / CHUNK)
#define ROW_TILES ((OUT_H + ROWS - 1) / ROWS)
#define MAP_BLOCKS ((OUTPUTS + BLOCK_MAPS - 1) / BLOCK_MAPS)  // of a group
#define WEIGHT_PITCH (BLOCK_MAPS + (BLOCK_MAPS > 4 ? 4 : 0))  // spreads what is written over the banks
#define INPUT_SIZE (CHUNK * IMAGES * IMAGE_PITCH)
#define TILE_PIXELS (ROWS * OUT_W)
#define STAGED_SIZE (IMAGES * BLOCK_MAPS * TILE_PIXELS)
// Where a block makes whole images its channels of an image lie side by side.
#define IS_WHOLE (ROWS >= OUT_H)

template <int N>
struct Floats {  // in shared memory
  Vector<float, N> w;
  DEVICE void load(const float* p) {
#pragma unroll
    for (int i = 0; i < w.kBytes / w.kStep; ++i) w.chunks[i] = ((const typename Vector<float, N>::chunk_t*)p)[i];
  }
};

// store(i, load(i)) for i below COUNT, shared among the block's threads. Up to MOST loads are under way at once.
template <int COUNT, int MOST, typename Load, typename Store>
DEVICE void transfer(const Load& load, const Store& store) {
  constexpr int kEach = (COUNT + THREADS - 1) / THREADS, kRounds = (kEach + MOST - 1) / MOST;
  constexpr int kBatch = (kEach + kRounds - 1) / kRounds;
#pragma unroll 1
  for (int round = 0; round < kRounds; ++round) {
    const int first = threadIdx.x + round * (kBatch * THREADS);
    float x[kBatch];
#pragma unroll
    for (int j = 0; j < kBatch; ++j)
      if (first + j * THREADS < COUNT) x[j] = load(first + j * THREADS);
#pragma unroll
    for (int j = 0; j < kBatch; ++j)
      if (first + j * THREADS < COUNT) store(first + j * THREADS, x[j]);
  }
}

// What a block makes in each of its tiles: `count` channels of a group, the first of them `first`.
struct Maps {
  int group, first, count;
  DEVICE Maps(int block)
    : group(block / MAP_BLOCKS), first(block % MAP_BLOCKS * BLOCK_MAPS), count(min(BLOCK_MAPS, OUTPUTS - first)) {}
};

// A chunk of the weights of a block's channels, zeros where there are none. Rotated filters are those of the
// convolution that this one is the gradient of: [CHANNELS, OUTPUTS, taps backwards].
DEVICE void load_weights(float* weights, const Arguments& a, const Maps& maps, int chunk) {
  const storage_t* w = (const storage_t*)a.in[1] + (unsigned long long)maps.group * OUTPUTS * CHANNELS * TAPS +
    maps.first * (ROTATED_FILTERS ? TAPS : CHANNELS * TAPS);
  transfer<BLOCK_MAPS * CHUNK * TAPS, CHUNKS == 1 ? 14 : 6>(
    [&](int i) {
      const int map = i / (CHUNK * TAPS), at = chunk * (CHUNK * TAPS) + i % (CHUNK * TAPS);
      const int from =
        ROTATED_FILTERS ? (at / TAPS * OUTPUTS + map) * TAPS + TAPS - 1 - at % TAPS : map * (CHANNELS * TAPS) + at;
      return map < maps.count && at < CHANNELS * TAPS ? to_compute(w[from]) : 0.0f;
    },
    [&](int i, float x) { weights[i % (CHUNK * TAPS) * WEIGHT_PITCH + i / (CHUNK * TAPS)] = x; });
}

// What the program reads of each of a block's channels, on its way to shared memory. It is read early: behind the sums
// its latency would follow theirs.
struct OfChannels {
  static constexpr int kSteps = (BLOCK_MAPS + THREADS - 1) / THREADS;
  ChannelOperands operands[kSteps];

  DEVICE void load(const Arguments& a, const Maps& maps) {
#pragma unroll
    for (int k = 0; k < kSteps; ++k)
      if (threadIdx.x + k * THREADS < maps.count)
        operands[k].load(a, maps.group * OUTPUTS + maps.first + threadIdx.x + k * THREADS);
  }
  DEVICE void store(SharedOperands& shared, const Maps& maps) const {
#pragma unroll
    for (int k = 0; k < kSteps; ++k)
      if (threadIdx.x + k * THREADS < maps.count) operands[k].store(shared, threadIdx.x + k * THREADS);
  }
};

// Of ROWS rows of IMAGES images.
struct Tile {
  index_t first_image;
  int first_row;
  DEVICE Tile(index_t number) : first_image(number / ROW_TILES * IMAGES), first_row(number % ROW_TILES * ROWS) {}
};

// A chunk of the pixels that a tile meets, zeros where there are none.
DEVICE void load_pixels(float* to, const Arguments& a, const Tile& tile, int group, int chunk) {
  const storage_t* x = (const storage_t*)a.in[0] +
    ((unsigned long long)tile.first_image * GROUPS + group) * CHANNELS * (IMAGE_H * IMAGE_W) +
    chunk * CHUNK * (IMAGE_H * IMAGE_W);
  transfer<CHUNK * IMAGES * IN_ROWS * IN_WIDTH, CHUNKS == 1 ? 10 : 6>(
    [&](int i) {
      const int column = i % IN_WIDTH, line = i / IN_WIDTH % IN_ROWS;
      const int which = i / (IN_WIDTH * IN_ROWS) % IMAGES, channel = i / (IN_WIDTH * IN_ROWS * IMAGES);
      const int h = tile.first_row * STRIDE_H + line - PAD_TOP, v = column - PAD_LEFT;
      const bool exists = h >= 0 && h < IMAGE_H && v >= 0 && v < IMAGE_W &&
        tile.first_image + which < (index_t)a.images && chunk * CHUNK + channel < CHANNELS;
      const unsigned long long offset =
        (unsigned long long)(which * GROUPS * CHANNELS + channel) * (IMAGE_H * IMAGE_W) + h * IMAGE_W + v;
      return exists ? to_compute(x[offset]) : 0.0f;
    },
    [&](int i, float value) {
      const int column = i % IN_WIDTH, line = i / IN_WIDTH % IN_ROWS, image = i / (IN_WIDTH * IN_ROWS);
      to[image * IMAGE_PITCH + line * ROW_PITCH + column] = value;
    });
}

// Adds a chunk's products to a strip's sums. `from`: the first pixel that the strip meets; `by`: its first channel's
// weight of the first tap.
DEVICE void accumulate(float (&sums)[MAPS][STRIP], const float* from, const float* by) {
#pragma unroll 1
  for (int channel = 0; channel < CHUNK; ++channel) {
#pragma unroll
    for (int r = 0; r < KERNEL_H; ++r) {
      float window[WINDOW];
#pragma unroll
      for (int j = 0; j < WINDOW; ++j) window[j] = from[r * DILATION_H * ROW_PITCH + j];
#pragma unroll
      for (int s = 0; s < KERNEL_W; ++s) {
        Floats<MAPS> tap;
        tap.load(by + (r * KERNEL_W + s) * WEIGHT_PITCH);
#pragma unroll
        for (int k = 0; k < MAPS; ++k)
#pragma unroll
          for (int j = 0; j < STRIP; ++j) sums[k][j] += tap.w[k] * window[j * STRIDE_W + s * DILATION_W];
      }
    }
    from += IMAGES * IMAGE_PITCH;
    by += TAPS * WEIGHT_PITCH;
  }
}

// Applies the program to a tile's values in shared memory, in runs of neighbouring elements of y: an image's channels,
// or a channel's rows.
DEVICE void store_results(const Arguments& a, const float* values, const Tile& tile, const Maps& maps,
  const SharedOperands& shared_operands, const Scalars& scalars) {
  constexpr int kRun = IS_WHOLE ? BLOCK_MAPS * TILE_PIXELS : TILE_PIXELS;
  const int run = IS_WHOLE ? maps.count * TILE_PIXELS : min(ROWS, OUT_H - tile.first_row) * OUT_W;
  constexpr int kSteps = (kRun + VECTOR - 1) / VECTOR, kAll = STAGED_SIZE / kRun * kSteps;
  constexpr int kEach = (kAll + THREADS - 1) / THREADS, kBatch = kEach < AHEAD ? kEach : AHEAD;
  int thread = threadIdx.x;
  asm volatile("" : "+r"(thread));  // or all that follows from it would be worked out in front of the first load
#pragma unroll 1
  for (int round = 0; round < (kEach + kBatch - 1) / kBatch; ++round) {
    const int first = thread + round * (kBatch * THREADS);
    Operands<VECTOR> operands[kBatch];
    index_t elements[kBatch];
    bool exists[kBatch];
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      const int i = first + k * THREADS, number = i / kSteps, at = i % kSteps * VECTOR;
      const int which = IS_WHOLE ? number : number / BLOCK_MAPS;
      const int in_block = IS_WHOLE ? 0 : number % BLOCK_MAPS, channel = maps.first + in_block;
      const index_t image = tile.first_image + which;
      exists[k] = i < kAll && at < run && channel < OUTPUTS && image < (index_t)a.images;
      elements[k] = (image * (index_t)(GROUPS * OUTPUTS) + maps.group * OUTPUTS + channel) * (index_t)(OUT_H * OUT_W) +
        tile.first_row * OUT_W + at;
      if (exists[k])
        operands[k].load(a, shared_operands, elements[k] / VECTOR, maps.group * OUTPUTS + maps.first,
          [&](int j) { return in_block + (IS_WHOLE ? (at + j) / TILE_PIXELS : 0); });
    }
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      if (!exists[k]) continue;
      const int i = first + k * THREADS;
      Floats<VECTOR> sum;
      sum.load(values + i / kSteps * kRun + i % kSteps * VECTOR);
      Results<VECTOR> results;
#pragma unroll
      for (int j = 0; j < VECTOR; ++j) apply(sum.w[j], operands[k], scalars, j, results);
      results.store(a, elements[k] / VECTOR);
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) conv_direct(const Arguments a) {
  __shared__ __align__(16) float weights[CHUNK * TAPS * WEIGHT_PITCH];
  __shared__ __align__(16) float shared[INPUT_SIZE > STAGED_SIZE ? INPUT_SIZE : STAGED_SIZE];
  __shared__ SharedOperands shared_operands;

  const Maps maps(blockIdx.x % (GROUPS * MAP_BLOCKS));
  OfChannels of_channels;
  if (CONSTANT_OPERANDS) of_channels.load(a, maps);
  if (CONSTANT_WEIGHTS && CHUNKS == 1) load_weights(weights, a, maps, 0);
  if (CONSTANT_OPERANDS) of_channels.store(shared_operands, maps);
  grid_dependency_wait();
  if (!CONSTANT_OPERANDS) of_channels.load(a, maps);
  if (!CONSTANT_WEIGHTS && CHUNKS == 1) load_weights(weights, a, maps, 0);

  const int strip = threadIdx.x % TILE_STRIPS, map = threadIdx.x / TILE_STRIPS * MAPS;
  const int row = strip / STRIPS % ROWS, image = strip / (STRIPS * ROWS), pixel = strip % STRIPS * STRIP;
  const bool works = threadIdx.x < WORKERS;

  const Scalars scalars(a);
  const index_t tiles = ((index_t)a.images + IMAGES - 1) / IMAGES * ROW_TILES;
  for (index_t number = blockIdx.x / (GROUPS * MAP_BLOCKS); number < tiles;
    number += gridDim.x / (GROUPS * MAP_BLOCKS)) {
    const Tile tile(number);
    float sums[MAPS][STRIP];
#pragma unroll
    for (int k = 0; k < MAPS; ++k)
#pragma unroll
      for (int j = 0; j < STRIP; ++j) sums[k][j] = 0.0f;

#pragma unroll 1
    for (int chunk = 0; chunk < CHUNKS; ++chunk) {
      __syncthreads();  // what stands in shared memory has been read
      if (CHUNKS > 1) load_weights(weights, a, maps, chunk);
      load_pixels(shared, a, tile, maps.group, chunk);
      if (!CONSTANT_OPERANDS && chunk == 0) of_channels.store(shared_operands, maps);
      __syncthreads();
      if (works)
        accumulate(sums, shared + image * IMAGE_PITCH + row * STRIDE_H * ROW_PITCH + pixel * STRIDE_W, weights + map);
    }

    if (works) {
#pragma unroll
      for (int k = 0; k < MAPS; ++k)
#pragma unroll
        for (int j = 0; j < STRIP; ++j) sums[k][j] = finish(sums[k][j], shared_operands, map + k, scalars);
    }
    __syncthreads();
    if (works) {
      float* to = shared + (image * BLOCK_MAPS + map) * TILE_PIXELS + row * OUT_W + pixel;
#pragma unroll
      for (int k = 0; k < MAPS; ++k)
#pragma unroll
        for (int j = 0; j < STRIP; ++j)
          if (OUT_W % STRIP == 0 || pixel + j < OUT_W) to[k * TILE_PIXELS + j] = sums[k][j];
    }
    __syncthreads();
    store_results(a, shared, tile, maps, shared_operands, scalars);
  }
}
