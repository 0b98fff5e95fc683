// y[n, p, q, m] = program(sum over r, s, c of w[m, r, s, c] x[n, p STRIDE_H + r - PAD_TOP, v, c]),
// v = q STRIDE_W + s - PAD_LEFT
//
// Before this text comes what engine.h says.
//
// An implicit GEMM on tensor cores, M = pixels, N = filters. The image stands in shared memory as it lies in memory, in
// lines: a row of pixels, or with CHANNELS_FIRST a row of one channel. In each line a pixel of the result meets RUN
// neighbouring elements, which is what K runs over, line after line. RUN is even and begins at an even
// element, so that two at a time come from shared memory as the tensor cores want them; what it has too much at its
// ends is masked, as a weight of zero would not do for an infinite neighbour. The weights stay in registers for all the
// pixels of a warp, and a warp's filters are numbered so that each thread ends with neighbouring ones.
//
// Where the next pixel of the result begins at an odd element, two of them are one with twice the filters (PAIRED): a
// warp has filters of the first or of the second, and masks what the other one meets alone.

#define PIXEL (CHANNELS_FIRST ? 1 : CHANNELS)  // elements from one pixel of a line to the next
#define LINE_LENGTH (IMAGE_W * PIXEL)
#define TOGETHER (1 + PAIRED)  // pixels of the result
#define SHIFT (STRIDE_W * PIXEL)  // from what one meets to what the next one does
#define STEP (TOGETHER * SHIFT)
#define LEAD ((COPY - PAD_LEFT * PIXEL % COPY) % COPY)  // where the first result's elements begin
#define SPARE (LEAD % 2)  // elements too much in front
#define RUN ((SPARE + KERNEL_W * PIXEL + PAIRED * SHIFT + 1) / 2 * 2)
#define PAIRS (RUN / 2)
#define SLOTS ((PAIRS + 3) / 4)  // of a line: four pairs, one for each quarter of a warp
#define LINES (CHANNELS_FIRST ? CHANNELS * KERNEL_H : KERNEL_H)  // of the kernel
// What an MMA of K = 16, two slots, sums over: slot by slot, so that shared memory is read at distances that
// are constants; or, where that leaves many pairs idle, pair by pair.
#define PACKED_K_STEPS ((LINES * PAIRS + 7) / 8)
#define PACKED (PACKED_K_STEPS * 5 <= (LINES * SLOTS + 1) / 2 * 4)
#define K_STEPS (PACKED ? PACKED_K_STEPS : (LINES * SLOTS + 1) / 2)
#define IMAGE_ROWS ((TILE_H - 1) * STRIDE_H + KERNEL_H)
#define IMAGE_LINES (CHANNELS_FIRST ? CHANNELS * IMAGE_ROWS : IMAGE_ROWS)
#define LINE_PITCH ((LEAD - SPARE + (TILE_W / TOGETHER - 1) * STEP + SLOTS * 8 + 7) / 8 * 8)
#define OCTETS_X (TILE_W / TOGETHER / 8)  // an MMA has two rows of eight pixels, or pairs of them
#define OCTETS (TILE_H * OCTETS_X)
#define COLUMNS (WARP_FILTERS / 8)  // of eight filters
#define GROUPS_OF_PIXEL (FILTERS / WARP_FILTERS)
#define GROUPS (TOGETHER * GROUPS_OF_PIXEL)
#define VECTOR (2 * COLUMNS)  // filters of a thread
#define THREADS (WARPS * 32)

// Two neighbours, as the tensor cores take them.
DEVICE unsigned join(storage_t low, storage_t high) { return (unsigned)low.bits | (unsigned)high.bits << 16; }

// The line of the kernel that a quarter of a warp has in a slot, and the number of the pair in that line.
DEVICE constexpr int line_of(int slot, int quarter) { return PACKED ? (slot * 4 + quarter) / PAIRS : slot / SLOTS; }
DEVICE constexpr int pair_of(int slot, int quarter) {
  return PACKED ? (slot * 4 + quarter) % PAIRS : slot % SLOTS * 4 + quarter;
}

// The element of the filter's line that the first of the pair meets, for the first or the second pixel.
DEVICE constexpr int tap_of(int slot, int quarter, int pixel) {
  return pair_of(slot, quarter) * 2 - SPARE - pixel * SHIFT;
}
// Which of the two count.
DEVICE constexpr unsigned mask_of(int slot, int quarter, int pixel) {
  const int tap = tap_of(slot, quarter, pixel);
  return line_of(slot, quarter) >= LINES ? 0u
                                         : (tap >= 0 && tap < KERNEL_W * PIXEL ? 0xffffu : 0u) |
      (tap >= -1 && tap < KERNEL_W * PIXEL - 1 ? 0xffff0000u : 0u);
}
DEVICE constexpr bool has_mask(int slot) {
  unsigned all = ~0u;
  for (int i = 0; i < 4 * TOGETHER; ++i) all &= mask_of(slot, i % 4, i / 4);
  return all != ~0u;
}

// Where it stands in shared memory, for the tile's first pixel.
DEVICE constexpr int place_of(int slot, int quarter) {
  const int line = line_of(slot, quarter) < LINES ? line_of(slot, quarter) : 0;
  return (CHANNELS_FIRST ? line / KERNEL_H * IMAGE_ROWS + line % KERNEL_H : line) * LINE_PITCH + LEAD - SPARE +
    pair_of(slot, quarter) * 2;
}

struct Tile {
  int n, y, x;
  DEVICE Tile(const Arguments& a, int number)
    : n(number / TILES_W / TILES_H), y(number / TILES_W % TILES_H * TILE_H), x(number % TILES_W * TILE_W) {}
};

// Starts copying a tile's part of the image, COPY elements at a time, zeros where there is none.
DEVICE void copy_image(storage_t* shared, const Arguments& a, const Tile& tile) {
  const storage_t* const image = (const storage_t*)a.in[0];
  constexpr int kCopies = LINE_PITCH / COPY;
  const int first = tile.x * SHIFT - PAD_LEFT * PIXEL - LEAD;
#pragma unroll 4
  for (int i = threadIdx.x; i < IMAGE_LINES * kCopies; i += THREADS) {
    const int line = i / kCopies, at = i % kCopies * COPY;
    const int channel = CHANNELS_FIRST ? line / IMAGE_ROWS : 0;
    const int y = tile.y * STRIDE_H - PAD_TOP + (CHANNELS_FIRST ? line % IMAGE_ROWS : line), x = first + at;
    const bool exists = (unsigned)y < IMAGE_H && (unsigned)x < LINE_LENGTH;
    const int lines = CHANNELS_FIRST ? tile.n * CHANNELS + channel : tile.n;
    const storage_t* const from = exists ? image + (lines * IMAGE_H + y) * LINE_LENGTH + x : image;
    const unsigned to = (unsigned)__cvta_generic_to_shared(shared + line * LINE_PITCH + at);
    if (COPY == 8) {
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(exists ? 16 : 0));
    } else {
      asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(COPY == 8 ? 4 : 2 * COPY),
        "r"(exists ? 2 * COPY : 0));
    }
  }
  asm volatile("cp.async.commit_group;");
}

// Two vectors of four pairs of weights are the B fragments of an MMA step with 32 filters, one with 16.
DEVICE void load_weights(uint4* shared_weights, const Arguments& a, int warp, int lane, int row, int quarter) {
#pragma unroll 2
  for (int i = warp; i < GROUPS * K_STEPS * (COLUMNS / 2); i += WARPS) {
    const int product = i / (COLUMNS / 2) % K_STEPS, group = i / (COLUMNS / 2) / K_STEPS;
    const storage_t* const w = (const storage_t*)a.in[1] +
      (group % GROUPS_OF_PIXEL * WARP_FILTERS + row / 2 * VECTOR + row % 2) * (KERNEL_H * KERNEL_W * CHANNELS);
    unsigned pairs[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int number = i % (COLUMNS / 2) * 4 + j, half = number / COLUMNS, column = number % COLUMNS;
      const int slot = product * 2 + half;
      storage_t x[2];
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const int line = line_of(slot, quarter), at = tap_of(slot, quarter, group / GROUPS_OF_PIXEL) + k;
        const bool exists = line < LINES && at >= 0 && at < KERNEL_W * PIXEL;
        const int offset = CHANNELS_FIRST ? (line % KERNEL_H * KERNEL_W + at) * CHANNELS + line / KERNEL_H
                                          : line * (KERNEL_W * CHANNELS) + at;
        x[k].bits = 0;
        if (exists) x[k] = w[column * 2 * (KERNEL_H * KERNEL_W * CHANNELS) + offset];
      }
      pairs[j] = join(x[0], x[1]);
    }
    shared_weights[i * 32 + lane] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
  }
}

DEVICE void read_weights(unsigned (&weights)[K_STEPS][2 * COLUMNS], const uint4* shared_weights, int group, int lane) {
#pragma unroll
  for (int i = 0; i < K_STEPS; ++i)
#pragma unroll
    for (int j = 0; j < COLUMNS / 2; ++j) {
      const uint4 four = shared_weights[((group * K_STEPS + i) * (COLUMNS / 2) + j) * 32 + lane];
      weights[i][j * 4] = four.x;
      weights[i][j * 4 + 1] = four.y;
      weights[i][j * 4 + 2] = four.z;
      weights[i][j * 4 + 3] = four.w;
    }
}

DEVICE void multiply(float (&sums)[PARTS][COLUMNS][4], const storage_t* const (&at)[PARTS][2],
  const int (&places)[2 * K_STEPS], const unsigned (&masks)[2 * K_STEPS],
  const unsigned (&weights)[K_STEPS][2 * COLUMNS]) {
#pragma unroll
  for (int i = 0; i < K_STEPS; ++i) {
    unsigned left[PARTS][4];
#pragma unroll
    for (int p = 0; p < PARTS; ++p)
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int slot = 2 * i + k / 2;
        left[p][k] = *(const unsigned*)(at[p][k % 2] + places[slot]);
        if (has_mask(slot)) left[p][k] &= masks[slot];
      }
#pragma unroll
    for (int p = 0; p < PARTS; ++p)
#pragma unroll
      for (int j = 0; j < COLUMNS; ++j) mma(sums[p][j], left[p], weights[i][j], weights[i][COLUMNS + j]);
  }
}

// The masks and the places of what a thread's weights meet.
DEVICE void find_pairs(unsigned (&masks)[2 * K_STEPS], int (&places)[2 * K_STEPS], int quarter, int pixel) {
#pragma unroll
  for (int i = 0; i < 2 * K_STEPS; ++i) {
    // Without PACKED all slots of one number in their line have the same mask, and distances are constants.
    masks[i] = mask_of(PACKED || line_of(i, 0) >= LINES ? i : i % SLOTS, quarter, pixel);
    places[i] = place_of(i, PACKED ? quarter : 0);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) stem(const Arguments a, const unsigned next_waits) {
  // The weights stand where a second part of the image does later.
  constexpr int kImage = IMAGE_LINES * LINE_PITCH / 8, kWeights = GROUPS * K_STEPS * (COLUMNS / 2) * 32;
  __shared__ uint4 shared[kImage + (BUFFERS == 2 && kImage > kWeights ? kImage : kWeights)];
  uint4* const shared_weights = shared + kImage;
  storage_t* const shared_image = (storage_t*)shared;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int row = lane / 4, quarter = lane % 4;  // what the thread has of an MMA
  const int tiles = (int)a.batch * (TILES_W * TILES_H);

  if (!CONSTANT_WEIGHTS) grid_dependency_wait();
  load_weights(shared_weights, a, warp, lane, row, quarter);
  if (CONSTANT_WEIGHTS) grid_dependency_wait();

  int number = blockIdx.x;  // there are no more blocks than tiles
  copy_image(shared_image, a, Tile(a, number));
  __syncthreads();
  unsigned weights[K_STEPS][2 * COLUMNS];
  const int group = warp % GROUPS, pixel = group / GROUPS_OF_PIXEL;
  read_weights(weights, shared_weights, group, lane);
  unsigned masks[2 * K_STEPS];
  int places[2 * K_STEPS];
  find_pairs(masks, places, quarter, pixel);

  if (BUFFERS == 2) __syncthreads();

  const int m = group % GROUPS_OF_PIXEL * WARP_FILTERS + quarter * VECTOR;
  for (int buffer = 0; number < tiles; number += gridDim.x, buffer = (buffer + 1) % BUFFERS) {
    const Tile tile(a, number);
    if (number + gridDim.x >= tiles) let_next_start(next_waits);
    TileOperands<VECTOR> shared_operands;
    shared_operands.load(a, tile.n, m);
    if (BUFFERS == 2 && number + gridDim.x < tiles) {
      copy_image(shared_image + (1 - buffer) * kImage * 8, a, Tile(a, number + gridDim.x));
      asm volatile("cp.async.wait_group 1;" ::: "memory");
    } else {
      asm volatile("cp.async.wait_group 0;" ::: "memory");
    }
    __syncthreads();
#pragma unroll 1
    for (int part = warp / GROUPS; part < (OCTETS + 2 * PARTS - 1) / (2 * PARTS); part += WARPS / GROUPS) {
      const storage_t* at[PARTS][2];
      int y[PARTS][2], x[PARTS][2];
      float sums[PARTS][COLUMNS][4];
#pragma unroll
      for (int p = 0; p < PARTS; ++p) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int number = (part * PARTS + p) * 2 + h, octet = min(number, OCTETS - 1);
          const int in_y = octet / OCTETS_X, in_x = octet % OCTETS_X * 8 + row;
          at[p][h] = shared_image + buffer * kImage * 8 + in_y * (STRIDE_H * LINE_PITCH) + in_x * STEP +
            (PACKED ? 0 : quarter * 2);
          y[p][h] = number < OCTETS ? tile.y + in_y : OUT_H;  // past the edge nothing is written
          x[p][h] = tile.x + in_x * TOGETHER + pixel;
        }
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j)
#pragma unroll
          for (int k = 0; k < 4; ++k) sums[p][j][k] = 0.0f;
      }
      multiply(sums, at, places, masks, weights);
#pragma unroll
      for (int p = 0; p < PARTS; ++p)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          if (y[p][h] >= OUT_H || x[p][h] >= OUT_W) continue;
          const int offset = ((tile.n * OUT_H + y[p][h]) * OUT_W + x[p][h]) * FILTERS + m;
          PixelOperands<VECTOR> operands;
          operands.load(a, tile.n, y[p][h], x[p][h], m, offset);
          Results<VECTOR> results;
#pragma unroll
          for (int j = 0; j < VECTOR; ++j) apply(shared_operands, operands, j, sums[p][j / 2][h * 2 + j % 2], results);
          results.store(a, offset);
        }
    }
    __syncthreads();
    if (BUFFERS == 1 && number + gridDim.x < tiles) copy_image(shared_image, a, Tile(a, number + gridDim.x));
  }
}
