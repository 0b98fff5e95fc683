// y[p, m] = program(sum over taps and c of x[p at tap, c] w[m, tap, c]), a convolution of few pixels
//
// The text in front of this one is generated for the node at hand (few_pixels.cc, own_kernels.cc): the sizes as macros,
// the operands and `apply`, the program; and what wgmma.cuh has for Hopper's tensor cores.
//
// A matrix product that is to keep all multiprocessors at work, and not to wait for memory in turns, so each sum is
// divided. A cluster of SPLIT blocks makes a tile of ROWS pixels and COLUMNS filters; each of its warpgroups sums a
// part of its own, 64 channels of a tap at a time, copied STAGES - 1 ahead into shared memory of its own, and gives the
// sums to the blocks of the cluster: each adds those of its share of the pixels, always in the same order, and runs the
// program. Weights that are constant are copied while the kernel in front ends.

#define ROWS 64
#define TEAMS (WARPS / 4)  // warpgroups
#define THREADS (WARPS * 32)
#define PARTS (SPLIT * TEAMS)
#define STAGE ((ROWS + COLUMNS) * 64)  // elements
#define WIDE ((CHANNELS + 63) / 64)
#define CHUNKS (KERNEL_H * KERNEL_W * WIDE)
#define ALONG ((FILTERS + COLUMNS - 1) / COLUMNS)  // tiles
#define SHARE ((ROWS + SPLIT - 1) / SPLIT)         // pixels of a tile whose sums a block adds
#define PITCH (COLUMNS + 8)                        // floats of a row of sums: no conflicts of banks
#define OUT (OUT_H * OUT_W)

// All blocks of the cluster, or all threads of the only one: what they wrote before they arrived is there behind the
// wait.
__device__ __forceinline__ void arrive() {
#if SPLIT > 1
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void await_all() {
#if SPLIT > 1
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
  __syncthreads();
#endif
}

// Two floats to a block of the cluster, to what is their place in this one.
__device__ __forceinline__ void give(float* to, int block, float first, float second) {
#if SPLIT > 1
  unsigned there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(there)
               : "r"((unsigned)__cvta_generic_to_shared(to)), "r"(block));
  asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(there), "f"(first), "f"(second) : "memory");
#else
  *(float2*)to = make_float2(first, second);
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
#if SPLIT > 1
    __cluster_dims__(SPLIT, 1, 1)
#endif
        few_pixels(const Arguments a) {
  extern __shared__ __align__(1024) uint4 shared[];
  const int team = threadIdx.x / 128, thread = threadIdx.x % 128, lane = threadIdx.x % 32;
  const int tile = blockIdx.x / SPLIT, block = blockIdx.x % SPLIT;
  const int first_row = tile / ALONG * ROWS, first = tile % ALONG * COLUMNS;
  storage_t* const mine = (storage_t*)shared + team * (STAGES * STAGE);
  const storage_t *const x = (const storage_t*)a.in[0], *const w = (const storage_t*)a.in[1];
  const int rows = (int)a.batch * OUT, part = block * TEAMS + team;
  const int end = CHUNKS * (part + 1) / PARTS;

  // The weights of 64 channels of a tap, and the pixels that they meet.
  const int octet = thread % 8;
  const auto copy_weights = [&](int chunk, int stage) {
    const int tap = chunk / WIDE, c = chunk % WIDE * 64 + octet * 8;
    storage_t* const to = mine + stage * STAGE + ROWS * 64;
#pragma unroll
    for (int i = 0; i < COLUMNS; i += 16) {
      const int row = i + thread / 8, m = first + row;
      const bool exists = m < FILTERS && c < CHANNELS;
      copy_async(to + place_of(row, octet, COLUMNS), exists ? w + (m * (KERNEL_H * KERNEL_W) + tap) * CHANNELS + c : w,
                 exists);
    }
  };
  int top[ROWS / 16], left[ROWS / 16], image[ROWS / 16];
#pragma unroll
  for (int i = 0; i < ROWS / 16; ++i) {
    const int p = first_row + i * 16 + thread / 8;
    top[i] = p < rows ? p % OUT / OUT_W * STRIDE_H - PAD_TOP : -(1 << 30);
    left[i] = p % OUT_W * STRIDE_W - PAD_LEFT;
    image[i] = p / OUT * IMAGE_H;
  }
  const auto copy_pixels = [&](int chunk, int stage) {
    const int tap = chunk / WIDE, c = chunk % WIDE * 64 + octet * 8;
    const int down = tap / KERNEL_W * DILATION_H, right = tap % KERNEL_W * DILATION_W;
    storage_t* const to = mine + stage * STAGE;
#pragma unroll
    for (int i = 0; i < ROWS / 16; ++i) {
      const int y = top[i] + down, at = left[i] + right;
      const bool exists = (unsigned)y < (unsigned)IMAGE_H && (unsigned)at < (unsigned)IMAGE_W && c < CHANNELS;
      copy_async(to + place_of(i * 16 + thread / 8, octet, ROWS),
                 exists ? x + ((image[i] + y) * IMAGE_W + at) * CHANNELS + c : x, exists);
    }
  };

  int chunk = CHUNKS * part / PARTS;
  arrive();
  if (!CONSTANT_WEIGHTS) grid_dependency_wait();
#pragma unroll
  for (int i = 0; i < STAGES - 1; ++i)
    if (chunk + i < end) copy_weights(chunk + i, i);
  end_copies();
  if (CONSTANT_WEIGHTS) grid_dependency_wait();
#pragma unroll
  for (int i = 0; i < STAGES - 1; ++i) {
    if (chunk + i < end) copy_pixels(chunk + i, i);
    end_copies();
  }

  float sums[COLUMNS / 2];
#pragma unroll
  for (int i = 0; i < COLUMNS / 2; ++i) sums[i] = 0;
  int stage = 0;
#pragma unroll 1
  for (; chunk < end; ++chunk) {
    await_copies<STAGES - 2>();
    show_to_tensor_cores();
    meet_team(team);
    if (chunk + STAGES - 1 < end) {
      const int next = stage == 0 ? STAGES - 1 : stage - 1;
      copy_weights(chunk + STAGES - 1, next);
      copy_pixels(chunk + STAGES - 1, next);
    }
    end_copies();
    const storage_t* const from = mine + stage * STAGE;
    if (++stage == STAGES) stage = 0;
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int k = 0; k < 64; k += 16) multiply(sums, descriptor(from + k), descriptor(from + ROWS * 64 + k), true);
    await_products(sums);
  }

  // Every warpgroup meets equally often, for compute-sanitizer alone: where they don't, racecheck (2025.3) takes what
  // they write below and read behind the barrier for a hazard.
  for (int i = end - CHUNKS * part / PARTS; i < (CHUNKS + PARTS - 1) / PARTS; ++i) meet_team(team);

  // Every block adds the sums of every SPLITth pixel: thread t of four has columns 2 t, 2 t + 1 of each eight.
  float* const given = (float*)((storage_t*)shared + TEAMS * STAGES * STAGE);
#if SPLIT > 1
  await_all();  // there are no blocks to give to before they have started
#endif
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = thread / 32 * 16 + lane / 4 + half * 8;
    if (first_row + row >= rows) continue;
    float* const to = given + (part * SHARE + row / SPLIT) * PITCH + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < COLUMNS / 8; ++j)
      give(to + j * 8, row % SPLIT, sums[j * 4 + half * 2], sums[j * 4 + half * 2 + 1]);
  }
  arrive();

  // Neighbouring threads have neighbouring filters.
  int item = threadIdx.x;
  const auto row_of = [&] { return item / (COLUMNS / VECTOR) * SPLIT + block; };
  const auto filter_of = [&] { return first + item % (COLUMNS / VECTOR) * VECTOR; };
  const auto exists = [&] { return row_of() < ROWS && first_row + row_of() < rows && filter_of() < FILTERS; };
  TileOperands<VECTOR> of_filters;
  PixelOperands<VECTOR> of_pixel;
  const auto load = [&] {
    const int p = first_row + row_of(), m = filter_of();
    of_filters.load(a, p / OUT, m);
    of_pixel.load(a, p / OUT, p % OUT / OUT_W, p % OUT_W, m, p * FILTERS + m);
  };
  if (exists()) load();
  await_all();
#pragma unroll 1
  for (; item < SHARE * (COLUMNS / VECTOR); item += THREADS) {
    if (!exists()) continue;
    if (item >= THREADS) load();
    const float* const from = given + item / (COLUMNS / VECTOR) * PITCH + item % (COLUMNS / VECTOR) * VECTOR;
    float values[VECTOR];
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) values[j] = 0;
#pragma unroll
    for (int q = 0; q < PARTS; ++q)
#pragma unroll
      for (int j = 0; j < VECTOR; j += 2) {
        const float2 some = *(const float2*)(from + q * (SHARE * PITCH) + j);
        values[j] += some.x;
        values[j + 1] += some.y;
      }
    Results<VECTOR> results;
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) apply(of_filters, of_pixel, j, values[j], results);
    results.store(a, (first_row + row_of()) * FILTERS + filter_of());
  }
}
