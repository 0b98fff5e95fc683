// y[q, m] = program(sum over taps and c of x[p, c] w[c, tap, m]), q = p stride + tap dilation - pad: a transposed
// convolution with a stride
//
// Before this text comes what engine.h says, and wgmma.cuh.
//
// A persistent kernel. The pixels of y that lie a stride apart, a phase, meet the same taps: each phase is a
// convolution of stride 1. A block makes tiles of TILE_M pixels and TILE_N filters of one phase. Its warpgroups,
// M_TILES times 64 of the pixels each, share copies of 64 channels of a tap, which go on from one tile to the next.
// Neighbouring blocks make all phases of the same pixels at the same time: x comes from memory once, and y's lines are
// written together. From round to round a block changes the phase, so that all have the same work.
//
// With a low arithmetic intensity the instructions between the MMAs and the way through shared memory take time. So
// descriptors and copies are made of few instructions, and results change threads when they are packed.

#define WARPGROUPS (WARPS / 4)
#define THREADS (WARPS * 32)
#define TILE_M (64 * M_TILES * WARPGROUPS)
#define STAGE_ELEMENTS ((TILE_M + TILE_N) * 64)
#define CHANNEL_TILES ((CHANNELS + 63) / 64)
#define TILES_N ((FILTERS + TILE_N - 1) / TILE_N)
#define PHASES (STRIDE_H * STRIDE_W)
#define TILE_H STRIDE_H  // of a patch of y, whose pixels are of all phases
#define TILE_W STRIDE_W
#define PHASE (TILES_H * TILES_W)

// Gives what a thread has of one octet for what another has of another.
DEVICE void exchange(Results<2>& even, Results<2>& odd, bool is_odd, int distance) {
#pragma unroll
  for (int i = 0; i < RESULT_WORDS; ++i) {
    unsigned &first = word_of(even, i), &second = word_of(odd, i);
    const unsigned given = __shfl_xor_sync(0xffffffffu, is_odd ? first : second, distance);
    (is_odd ? first : second) = given;
  }
}

// Runs the program on a tile's sums, when they are there.
DEVICE void finish_tile(const Arguments& a, float (&sums)[M_TILES][TILE_N / 2], int tile, int phase, int rows) {
  const int lane = threadIdx.x % 32, first = tile % TILES_N * TILE_N;
  const int first_row =
    tile / TILES_N * TILE_M + threadIdx.x / 128 * (M_TILES * 64) + threadIdx.x % 128 / 32 * 16 + lane / 4;
  int n[M_TILES * 2], y[M_TILES * 2], x[M_TILES * 2], offsets[M_TILES * 2];
#pragma unroll
  for (int i = 0; i < M_TILES * 2; ++i) {
    const int p = first_row + i / 2 * 64 + i % 2 * 8;
    n[i] = p / TILES_W / TILES_H, y[i] = p / TILES_W % TILES_H * STRIDE_H + phase / STRIDE_W;
    x[i] = p % TILES_W * STRIDE_W + phase % STRIDE_W;
    const bool exists = p < rows && (WHOLE_TILES_H || y[i] < OUT_H) && (WHOLE_TILES_W || x[i] < OUT_W);
    offsets[i] = exists ? ((n[i] * OUT_H + y[i]) * OUT_W + x[i]) * FILTERS : -1;
  }
  // Thread t of four has columns 2 t, 2 t + 1 of each eight. The operands of four such octets are on their way while
  // those of the four before are used.
  TileOperands<2> of_filters[2][4];
  const auto load_filters = [&](int group) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int m = first + group * 32 + j * 8 + lane % 4 * 2;
      if (!OF_IMAGE && (FILTERS % TILE_N == 0 || m < FILTERS)) of_filters[group % 2][j].load(a, 0, m);
    }
  };
  load_filters(0);
#pragma unroll
  for (int i = 0; i < M_TILES; ++i) wait_wgmma<0>(sums[i]);
#pragma unroll
  for (int group = 0; group < TILE_N / 32; ++group) {
    if (group + 1 < TILE_N / 32) load_filters(group + 1);
    const int m = first + group * 32 + lane % 4 * 2, octet = first + group * 32 + lane % 4 * 8;
#pragma unroll
    for (int i = 0; i < M_TILES * 2; ++i) {
      Results<2> pairs[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        PixelOperands<2> of_pixel;
        if (offsets[i] >= 0 && (FILTERS % TILE_N == 0 || m + j * 8 < FILTERS)) {
          of_pixel.load(a, n[i], y[i], x[i], m + j * 8, offsets[i] + m + j * 8);
          if (OF_IMAGE) of_filters[group % 2][j].load(a, n[i], m + j * 8);
        }
#pragma unroll
        for (int k = 0; k < 2; ++k)
          apply(of_filters[group % 2][j], of_pixel, k, sums[i / 2][(group * 4 + j) * 4 + i % 2 * 2 + k], pairs[j]);
      }
      // The thread gets the octet with its number, and gives the others.
      exchange(pairs[0], pairs[1], lane % 2, 1);
      exchange(pairs[2], pairs[3], lane % 2, 1);
      exchange(pairs[0], pairs[2], lane / 2 % 2, 2);
      exchange(pairs[1], pairs[3], lane / 2 % 2, 2);
      if (offsets[i] < 0 || (FILTERS % TILE_N != 0 && octet >= FILTERS)) continue;
      Results<8> results;
      join(results, pairs);
      results.store(a, offsets[i] + octet);
    }
  }
}

// Where the pixels of a tile that a thread copies are.
DEVICE void find_pixels(const Arguments& a, unsigned (&from)[TILE_M * 8 / THREADS],
  unsigned (&places)[TILE_M * 8 / THREADS], int tile, int rows, int thread) {
#pragma unroll
  for (int i = 0; i < TILE_M * 8 / THREADS; ++i) {
    const int p = tile / TILES_N * TILE_M + i * (THREADS / 8) + thread / 8;
    const int at_y = p / TILES_W % TILES_H, at_x = p % TILES_W;
    from[i] = ((p / TILES_W / TILES_H * IMAGE_H + at_y) * IMAGE_W + at_x) * (CHANNELS * 2u);
    places[i] = p < rows ? at_y << 16 | at_x : 0xc0000000;
  }
}

// Starts the MMAs of a stage.
DEVICE void mma_stage(float (&sums)[M_TILES][TILE_N / 2], unsigned pixels, unsigned filters) {
#pragma unroll
  for (int k = 0; k < 4; ++k)
#pragma unroll
    for (int i = 0; i < M_TILES; ++i)
      wgmma(sums[i], full_descriptor(pixels + i * 512 + k * 2), full_descriptor(filters + k * 128), true);
}

// Goes on to the next stage, tap and channels.
DEVICE void advance(
  const Taps& down, const Taps& right, int& left, int& next_stage, int& next_right, int& next_down, int& channel_tile) {
  --left;
  if (++next_stage == STAGES) next_stage = 0;
  if (++next_right == right.count) {
    next_right = 0;
    if (++next_down == down.count) {
      next_down = 0;
      ++channel_tile;
    }
  }
}

DEVICE void wait_stage() {
  wait_copies<STAGES - 3>();
  fence_async_proxy();
  __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) polyphase(const Arguments a) {
  extern __shared__ __align__(1024) storage_t shared[];
  grid_dependency_wait();
  const int thread = threadIdx.x, warpgroup = __shfl_sync(0xffffffffu, thread / 128, 0);
  const int rows = (int)a.batch * PHASE, units = (rows + TILE_M - 1) / TILE_M * TILES_N * PHASES;
  const unsigned all = (unsigned)__cvta_generic_to_shared(shared);

  // What this thread copies: an octet of channels of some pixels, an octet of filters of some channels; and where they
  // are in a stage. Offsets are in bytes.
  constexpr int kPixels = TILE_M * 8 / THREADS, kChannels = TILE_N * 8 / THREADS, kAcross = TILE_N / 8;
  constexpr long long kChannel = KERNEL_H * KERNEL_W * FILTERS * 2;
  const int octet = thread % kAcross, channel = thread / kAcross;
  const char* const x = (const char*)a.in[0] + thread % 8 * 16;
  const char* const w = (const char*)a.in[1] + channel * kChannel + octet * 16;
  const unsigned to_pixels = all + thread / 8 * 128 + (thread % 8 ^ thread / 8 % 8) * 16;
  const unsigned to_filters = all + TILE_M * 128 + octet / 8 * 8192 + channel * 128 + (octet % 8 ^ channel % 8) * 16;
  unsigned from[kPixels], places[kPixels];  // a pixel's row and column, 16 bits each
  Taps down, right;
  int first, next_unit = (int)blockIdx.x, next_round = 0, left = 0, channel_tile, next_down, next_right, next_stage = 0;
  const auto copy_next = [&] {
#pragma unroll 1
    for (; left == 0 && next_unit < units; next_unit += gridDim.x) {
      const int phase = (next_unit + next_round++) % PHASES, tile = next_unit / PHASES;
      down = taps_h[phase / STRIDE_W], right = taps_w[phase % STRIDE_W];
      left = CHANNEL_TILES * down.count * right.count;
      channel_tile = next_down = next_right = 0;
      first = tile % TILES_N * TILE_N;
      find_pixels(a, from, places, tile, rows, thread);
    }
    if (left > 0) {
      const unsigned stage = next_stage * (STAGE_ELEMENTS * 2);
      const int dy = down.shift - next_down * SHIFT_H, dx = right.shift - next_right * SHIFT_W, c = channel_tile * 64;
      const char* const some = x + ((long long)(dy * IMAGE_W + dx) * (CHANNELS * 2) + channel_tile * 128);
      const bool is_channel = CHANNELS % 64 == 0 || c + thread % 8 * 8 < CHANNELS;
#pragma unroll
      for (int i = 0; i < kPixels; ++i) {
        // A sign of what is left of a pixel's place, or of what it lacks to the last one, tells that it is outside.
        const unsigned place = places[i] + dy * 65536 + dx, lacks = ((IMAGE_H - 1) << 16 | (IMAGE_W - 1)) - place;
        const bool exists = ((place | lacks) & 0x80008000) == 0 && is_channel;
        // Past L1, which could keep what taps share, but would read it again at the expense of the MMAs: 5% slower.
        copy_async(to_pixels + stage + i * (THREADS * 16), some + from[i], exists);
      }
      const int tap = (down.first + next_down * TAPS_APART_H) * KERNEL_W + right.first + next_right * TAPS_APART_W;
      const char* const filters = w + (channel_tile * (64 * kChannel) + (tap * FILTERS + first) * 2);
#pragma unroll
      for (int i = 0; i < kChannels; ++i) {
        const int k = i * (THREADS / kAcross);
        const bool exists =
          (CHANNELS % 64 == 0 || c + channel + k < CHANNELS) && (FILTERS % TILE_N == 0 || first + octet * 8 < FILTERS);
        copy_async(to_filters + stage + k * 128, filters + k * kChannel, exists);
      }
      advance(down, right, left, next_stage, next_right, next_down, channel_tile);
    }
    commit_copies();
  };
#pragma unroll 1
  for (int i = 0; i < STAGES - 2; ++i) copy_next();

  const unsigned pixels = (unsigned)descriptor(shared) + warpgroup * (M_TILES * 512);
  const unsigned filters = (unsigned)descriptor_mn_major(shared + TILE_M * 64);
  int stage = 0, round = 0;
#pragma unroll 1
  for (int unit = blockIdx.x; unit < units; unit += gridDim.x) {
    const int phase = (unit + round++) % PHASES, tile = unit / PHASES;
    float sums[M_TILES][TILE_N / 2] = {};
#pragma unroll 1
    for (int step = CHANNEL_TILES * taps_h[phase / STRIDE_W].count * taps_w[phase % STRIDE_W].count; step > 0; --step) {
      wait_stage();
      const unsigned at = stage * (STAGE_ELEMENTS / 8);
      if (++stage == STAGES) stage = 0;
      asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
      mma_stage(sums, pixels + at, filters + at);
      commit_wgmma();
      // Into what the step before last read; the MMAs of this step and of the last one are still running.
      copy_next();
      wait_wgmma_but_last();
    }
    finish_tile(a, sums, tile, phase, rows);
  }
}
