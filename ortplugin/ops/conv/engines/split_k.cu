// y[p, m] = program(sum over taps and c of x[p at tap, c] w[m, tap, c])
//
// Before this text comes what engine.h says, and wgmma.cuh and cluster.cuh.
//
// An implicit GEMM with split K: it keeps all multiprocessors at work where tiles are few, and long sums do not wait
// for memory step after step. A cluster of SPLIT_K blocks makes a tile of TILE_M pixels and TILE_N filters. Each of its
// warpgroups accumulates its own part of K, one K tile (128 bytes of a tap's channels) at a time, copied STAGES - 1
// ahead into its own shared memory. It then stores its partial sums to the blocks of the cluster, through distributed
// shared memory. Each block adds those of its share of the pixels, always in the same order, and runs the program.
// Constant weights are copied while the kernel in front ends.

#define TILE_M 64
#define WARPGROUPS (WARPS / 4)
#define THREADS (WARPS * 32)
#define K_PARTS (SPLIT_K * WARPGROUPS)
#define OCTET (16 / (int)sizeof(storage_t))  // channels of a copy; of fp32 a quad
#define TILE_K (8 * OCTET)
#define STAGE_ELEMENTS ((TILE_M + TILE_N) * TILE_K)
#define CHANNEL_TILES ((CHANNELS + TILE_K - 1) / TILE_K)
#define K_TILES (KERNEL_H * KERNEL_W * CHANNEL_TILES)
#define TILES_N ((FILTERS + TILE_N - 1) / TILE_N)
#define REDUCED_ROWS ((TILE_M + SPLIT_K - 1) / SPLIT_K)  // pixels of a tile whose sums a block adds
#define PITCH (TILE_N + 8)  // floats of a row of sums: no conflicts of banks

// The weights of a K tile.
DEVICE void copy_tap(storage_t* stages, const storage_t* w, int k_tile, int stage, int octet, int thread, int first) {
  const int tap = k_tile / CHANNEL_TILES, c = k_tile % CHANNEL_TILES * TILE_K + octet * OCTET;
  storage_t* const to = stages + stage * STAGE_ELEMENTS + TILE_M * TILE_K;
#pragma unroll
  for (int i = 0; i < TILE_N; i += 16) {
    const int row = i + thread / 8, m = first + row;
    const bool exists = m < FILTERS && c < CHANNELS;
    copy_async(to + swizzled_offset(row, octet, TILE_N),
      exists ? w + (m * (KERNEL_H * KERNEL_W) + tap) * CHANNELS + c : w, exists);
  }
}

// The pixels of a tile that a thread copies, and those of X that they meet at a tap.
struct Pixels {
  const Arguments& a;
  int top[TILE_M / 16], left[TILE_M / 16], image[TILE_M / 16];
  DEVICE Pixels(const Arguments& a, int first_row, int rows, int thread) : a(a) {
#pragma unroll
    for (int i = 0; i < TILE_M / 16; ++i) {
      const int p = first_row + i * 16 + thread / 8;
      top[i] = p < rows ? p / OUT_W % OUT_H * STRIDE_H - PAD_TOP : -(1 << 30);
      left[i] = p % OUT_W * STRIDE_W - PAD_LEFT;
      image[i] = p / OUT_W / OUT_H * IMAGE_H;
    }
  }
  DEVICE void copy(storage_t* to, const storage_t* x, int k_tile, int thread) const {
    const int octet = thread % 8;
    const int tap = k_tile / CHANNEL_TILES, c = k_tile % CHANNEL_TILES * TILE_K + octet * OCTET;
    const int down = tap / KERNEL_W * DILATION_H, right = tap % KERNEL_W * DILATION_W;
#pragma unroll
    for (int i = 0; i < TILE_M / 16; ++i) {
      const int y = top[i] + down, at = left[i] + right;
      const bool exists = (unsigned)y < (unsigned)IMAGE_H && (unsigned)at < (unsigned)IMAGE_W && c < CHANNELS;
      copy_async(to + swizzled_offset(i * 16 + thread / 8, octet, TILE_M),
        exists ? x + ((image[i] + y) * IMAGE_W + at) * CHANNELS + c : x, exists);
    }
  }
};

DEVICE void add_partial_sums(float (&values)[VECTOR], const float* partial_sums, int item) {
  const float* const from = partial_sums + item / (TILE_N / VECTOR) * PITCH + item % (TILE_N / VECTOR) * VECTOR;
#pragma unroll
  for (int j = 0; j < VECTOR; ++j) values[j] = 0;
#pragma unroll
  for (int q = 0; q < K_PARTS; ++q)
#pragma unroll
    for (int j = 0; j < VECTOR; j += 2) {
      const float2 some = *(const float2*)(from + q * (REDUCED_ROWS * PITCH) + j);
      values[j] += some.x;
      values[j + 1] += some.y;
    }
}

// Every block adds the sums of every SPLITth pixel: thread t of four has columns 2 t, 2 t + 1 of each eight.
DEVICE void store_partial_sums(
  const float (&sums)[TILE_N / 2], float* partial_sums, int k_part, int first_row, int rows, int thread, int lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = thread / 32 * 16 + lane / 4 + half * 8;
    if (first_row + row >= rows) continue;
    float* const to = partial_sums + (k_part * REDUCED_ROWS + row / SPLIT_K) * PITCH + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < TILE_N / 8; ++j)
      store_to_block(to + j * 8, row % SPLIT_K, sums[j * 4 + half * 2], sums[j * 4 + half * 2 + 1]);
  }
}

// Every warpgroup meets equally often, for compute-sanitizer alone: where they don't, racecheck (2025.3) takes what
// they write behind it and read behind the barrier for a hazard.
DEVICE void meet(int steps, int warpgroup) {
  for (int i = steps; i < (K_TILES + K_PARTS - 1) / K_PARTS; ++i) sync_warpgroup(warpgroup);
}

// The tensor cores would cut fp32 off where TF32 ends: each thread rounds what it has copied.
DEVICE void round_copies(storage_t* stage, int thread) {
#pragma unroll
  for (int i = 0; i < (TILE_M + TILE_N) / 16; ++i) {
    const int row = i * 16 + thread / 8;
    uint4* const at = (uint4*)(stage + swizzled_offset(row, thread % 8, 0));
    uint4 x = *at;
    for (unsigned* const each : {&x.x, &x.y, &x.z, &x.w}) asm("cvt.rna.tf32.f32 %0, %0;" : "+r"(*each));
    *at = x;
  }
}

DEVICE void wait_stage(int warpgroup, storage_t* stage, int thread) {
  wait_copies<STAGES - 2>();
  if (sizeof(storage_t) == 4) round_copies(stage, thread);
  fence_async_proxy();
  sync_warpgroup(warpgroup);
}

DEVICE void load_operands(
  const Arguments& a, TileOperands<VECTOR>& of_filters, PixelOperands<VECTOR>& of_pixel, int p, int m) {
  of_filters.load(a, p / OUT_W / OUT_H, m);
  of_pixel.load(a, p / OUT_W / OUT_H, p / OUT_W % OUT_H, p % OUT_W, m, p * FILTERS + m);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
#if SPLIT_K > 1
  __cluster_dims__(SPLIT_K, 1, 1)
#endif
    split_k(const Arguments a) {
  extern __shared__ __align__(1024) uint4 shared[];
  const int warpgroup = threadIdx.x / 128, thread = threadIdx.x % 128, lane = threadIdx.x % 32;
  const int tile = blockIdx.x / SPLIT_K, block = blockIdx.x % SPLIT_K;
  const int first_row = tile / TILES_N * TILE_M, first = tile % TILES_N * TILE_N;
  storage_t* const stages = (storage_t*)shared + warpgroup * (STAGES * STAGE_ELEMENTS);
  const storage_t *const x = (const storage_t*)a.in[0], *const w = (const storage_t*)a.in[1];
  const int rows = (int)a.batch * (OUT_H * OUT_W), k_part = block * WARPGROUPS + warpgroup;
  const int k_end = K_TILES * (k_part + 1) / K_PARTS;

  const int octet = thread % 8;
  const auto copy_weights = [&](int k_tile, int stage) { copy_tap(stages, w, k_tile, stage, octet, thread, first); };
  const Pixels pixels(a, first_row, rows, thread);

  int k_tile = K_TILES * k_part / K_PARTS, stage = 0;
  begin_cluster();
  if (!CONSTANT_WEIGHTS) grid_dependency_wait();
#pragma unroll
  for (int i = 0; i < STAGES - 1; ++i)
    if (k_tile + i < k_end) copy_weights(k_tile + i, i);
  commit_copies();
  if (CONSTANT_WEIGHTS) grid_dependency_wait();
#pragma unroll
  for (int i = 0; i < STAGES - 1; ++i) {
    if (k_tile + i < k_end) pixels.copy(stages + i * STAGE_ELEMENTS, x, k_tile + i, thread);
    commit_copies();
  }

  float sums[TILE_N / 2];
#pragma unroll
  for (int i = 0; i < TILE_N / 2; ++i) sums[i] = 0;
#pragma unroll 1
  for (; k_tile < k_end; ++k_tile) {
    wait_stage(warpgroup, stages + stage * STAGE_ELEMENTS, thread);
    if (k_tile + STAGES - 1 < k_end) {
      const int next = stage == 0 ? STAGES - 1 : stage - 1;
      copy_weights(k_tile + STAGES - 1, next);
      pixels.copy(stages + next * STAGE_ELEMENTS, x, k_tile + STAGES - 1, thread);
    }
    commit_copies();
    const storage_t* const from = stages + stage * STAGE_ELEMENTS;
    if (++stage == STAGES) stage = 0;
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int k = 0; k < TILE_K; k += 2 * OCTET)
      wgmma(sums, descriptor(from + k), descriptor(from + TILE_M * TILE_K + k), true);
    commit_wgmma();
    wait_wgmma<0>(sums);
  }

  meet(k_end - K_TILES * k_part / K_PARTS, warpgroup);
  float* const partial_sums = (float*)((storage_t*)shared + WARPGROUPS * STAGES * STAGE_ELEMENTS);
  if (SPLIT_K > 1) wait_cluster();  // there are no blocks to give to before they have started
  store_partial_sums(sums, partial_sums, k_part, first_row, rows, thread, lane);
  arrive_cluster();

  // Neighbouring threads have neighbouring filters.
  int item = threadIdx.x;
  const auto row_of = [&] { return item / (TILE_N / VECTOR) * SPLIT_K + block; };
  const auto filter_of = [&] { return first + item % (TILE_N / VECTOR) * VECTOR; };
  const auto exists = [&] { return row_of() < TILE_M && first_row + row_of() < rows && filter_of() < FILTERS; };
  TileOperands<VECTOR> of_filters;
  PixelOperands<VECTOR> of_pixel;
  if (exists()) load_operands(a, of_filters, of_pixel, first_row + row_of(), filter_of());
  wait_cluster();
#pragma unroll 1
  for (; item < REDUCED_ROWS * (TILE_N / VECTOR); item += THREADS) {
    if (!exists()) continue;
    if (item >= THREADS) load_operands(a, of_filters, of_pixel, first_row + row_of(), filter_of());
    float values[VECTOR];
    add_partial_sums(values, partial_sums, item);
    Results<VECTOR> results;
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) apply(of_filters, of_pixel, j, values[j], results);
    results.store(a, (first_row + row_of()) * FILTERS + filter_of());
  }
}
