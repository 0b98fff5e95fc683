// y[p, m] = program(sum over taps and c of x[p + tap, c] w[m, tap, c]): a convolution of stride 1 of up to 64 channels
//
// Before this text comes what engine.h says, and wgmma.cuh and tma.cuh.
//
// A persistent, warp-specialized kernel. So few channels make a GEMM that reads each pixel once for every tap bound by
// what L2 gives. Here a block has all weights of 64 filters in shared memory, and patches of the image, by TMA with the
// 128-byte swizzle, of PATCH_W x PATCH_H pixels with all channels, each for one tile of the result. Filters are the
// rows of MMAs and the tile's pixels their columns: of a tap these are the patch's pixels from that tap's place on, so
// that B is the same patch at another address. The last KERNEL_W - 1 of every PATCH_W columns belong to no result. The
// CONSUMERS warpgroups take turns: others run the program while the tensor cores work for one.

#define TILE_W (PATCH_W - KERNEL_W + 1)  // of results
#define PATCH_H (TILE_H + KERNEL_H - 1)
#define TAPS (KERNEL_H * KERNEL_W)
#define PIXELS (TILE_H * PATCH_W)  // columns of an MMA
#define PIXEL_BYTES 128
#define TAP_BYTES (TILE_FILTERS * 128)
#define PATCH_BYTES (PATCH_H * PATCH_W * PIXEL_BYTES)
#define FILTER_TILES ((FILTERS + TILE_FILTERS - 1) / TILE_FILTERS)
#define VECTORS (16 / VECTOR)  // of a pixel
#define ITEMS (CHUNK * VECTORS / 32)  // of VECTOR filters, of a thread

struct PatchArguments {
  Arguments a;
  TensorMap x, w;
};

// Those of a block, which keeps its filters.
struct Tiles {
  const Arguments& a;
  int next = blockIdx.x / FILTER_TILES;
  DEVICE bool exists() const { return next < (int)a.batch * (TILES_H * TILES_W); }
  DEVICE void step(int count = 1) { next += gridDim.x / FILTER_TILES * count; }
  DEVICE int image() const { return next / TILES_W / TILES_H; }
  DEVICE int y() const { return next / TILES_W % TILES_H * TILE_H; }
  DEVICE int x() const { return next % TILES_W * TILE_W; }
};

DEVICE int first_filter() { return blockIdx.x % FILTER_TILES * TILE_FILTERS; }

// `weights`, `patches`: addresses; `full`, `empty`: those of the first of the patches' barriers.
DEVICE void produce(
  const PatchArguments& g, unsigned weights, unsigned patches, unsigned loaded, unsigned full, unsigned empty) {
  prefetch_map(&g.w);
  prefetch_map(&g.x);
  // Weights that no kernel writes are on their way before the kernel in front has completed.
  if (!CONSTANT_WEIGHTS) grid_dependency_wait();
  expect_bytes(loaded, TAPS * TAP_BYTES);
#pragma unroll 1
  for (int tap = 0; tap < TAPS; ++tap) copy_box(weights + tap * TAP_BYTES, &g.w, 0, first_filter(), tap, 0, loaded);
  if (CONSTANT_WEIGHTS) grid_dependency_wait();
  Ring<STAGES> ring;
  Tiles tiles{g.a};
#pragma unroll 1
  for (int round = 0; tiles.exists(); tiles.step(), ring.step(), ++round) {
    if (round >= STAGES) wait_barrier(empty + ring.stage * 8, ring.phase ^ 1);
    expect_bytes(full + ring.stage * 8, PATCH_BYTES);
    copy_box(patches + ring.stage * PATCH_BYTES, &g.x, 0, tiles.x() - PAD_LEFT, tiles.y() - PAD_TOP, tiles.image(),
      full + ring.stage * 8);
  }
}

// What becomes of a warp's 16 filters of a tile's pixels: after the way through shared memory a thread has VECTOR
// neighbouring filters, the same ones of all its pixels.
struct Epilogue {
  const Arguments& a;
  float* staging;  // the warp's
  int m, n, y, x;  // the thread's first filter; the tile's place
  PixelOperands<VECTOR> operands[AHEAD][ITEMS];
  TileOperands<VECTOR> of_filters;

  DEVICE static int pixel_of(int chunk, int item) { return chunk * CHUNK + (item * 32 + threadIdx.x % 32) / VECTORS; }
  DEVICE bool has(int p) const {
    return p % PATCH_W < TILE_W && x + p % PATCH_W < OUT_W && y + p / PATCH_W < OUT_H &&
      (FILTERS % TILE_FILTERS == 0 || m < FILTERS);
  }
  DEVICE int offset_of(int p) const { return ((n * OUT_H + y + p / PATCH_W) * OUT_W + x + p % PATCH_W) * FILTERS + m; }
  DEVICE void load(int chunk) {
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
      const int p = pixel_of(chunk, item);
      if (has(p)) operands[chunk % AHEAD][item].load(a, n, y + p / PATCH_W, x + p % PATCH_W, m, offset_of(p));
    }
  }
  DEVICE void run(const float (&sums)[PIXELS / 2]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int chunk = 0; chunk < PIXELS / CHUNK; ++chunk) {
      __syncwarp();
#pragma unroll
      for (int i = 0; i < CHUNK / 2; ++i)  // of four: two pixels of a filter, then of the one 8 behind it
        staging[(i / 4 * 8 + lane % 4 * 2 + i % 2) * PITCH + lane / 4 + i % 4 / 2 * 8] = sums[chunk * (CHUNK / 2) + i];
      __syncwarp();
#pragma unroll
      for (int item = 0; item < ITEMS; ++item) {
        const int p = pixel_of(chunk, item);
        if (!has(p)) continue;
        const float* const from = staging + (p - chunk * CHUNK) * PITCH + lane % VECTORS * VECTOR;
        Results<VECTOR> results;
#pragma unroll
        for (int j = 0; j < VECTOR; j += 4) {
          const float4 four = *(const float4*)(from + j);
          apply(of_filters, operands[chunk % AHEAD][item], j, four.x, results);
          apply(of_filters, operands[chunk % AHEAD][item], j + 1, four.y, results);
          apply(of_filters, operands[chunk % AHEAD][item], j + 2, four.z, results);
          apply(of_filters, operands[chunk % AHEAD][item], j + 3, four.w, results);
        }
        results.store(a, offset_of(p));
      }
      if (chunk + AHEAD < PIXELS / CHUNK) load(chunk + AHEAD);
    }
  }
};

// `turns`: the barriers at which the warpgroups wait for each other.
DEVICE void consume(const Arguments& a, unsigned weights, unsigned patches, float* staging, unsigned loaded,
  unsigned full, unsigned empty, unsigned turns) {
  const int warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0), warp = threadIdx.x / 32;
  const int m = first_filter() + warp % 4 * 16 + threadIdx.x % VECTORS * VECTOR;
  Tiles tiles{a};
  tiles.step(warpgroup);
  Ring<STAGES> ring;
  ring.skip(warpgroup);
  grid_dependency_wait();  // before operands are read, and results written
  wait_barrier(loaded, 0);
#pragma unroll 1
  for (int turn = 0; tiles.exists(); tiles.step(CONSUMERS), ++turn) {
    Epilogue epilogue{a, staging + warp * (CHUNK * PITCH), m, tiles.image(), tiles.y(), tiles.x()};
    if (FILTERS % TILE_FILTERS == 0 || m < FILTERS) epilogue.of_filters.load(a, epilogue.n, m);
#pragma unroll
    for (int chunk = 0; chunk < AHEAD; ++chunk) epilogue.load(chunk);
    float sums[PIXELS / 2];
    wait_barrier(full + ring.stage * 8, ring.phase);
    if (turn > 0 || warpgroup > 0) wait_barrier(turns + warpgroup * 8, (turn - (warpgroup == 0)) & 1);
    const unsigned patch = patches + ring.stage * PATCH_BYTES;
    fence_wgmma();
#pragma unroll
    for (int tap = 0; tap < TAPS; ++tap)
#pragma unroll
      for (int k = 0; k < 4; ++k)
        wgmma(sums, descriptor_at(weights + tap * TAP_BYTES + k * 32),
          descriptor_at(patch + (tap / KERNEL_W * PATCH_W + tap % KERNEL_W) * PIXEL_BYTES + k * 32), tap + k > 0);
    commit_wgmma();
    if (threadIdx.x % 128 == 0) arrive(turns + (warpgroup + 1) % CONSUMERS * 8);
    wait_wgmma<0>(sums);
    if (threadIdx.x % 128 == 0) arrive(empty + ring.stage * 8);
    ring.skip(CONSUMERS);
    epilogue.run(sums);
  }
}

extern "C" __global__ void __launch_bounds__(CONSUMERS * 128 + 128, 1) patch(const __grid_constant__ PatchArguments g) {
  extern __shared__ __align__(1024) uint4 shared[];
  __shared__ __align__(8) unsigned long long barriers[1 + 2 * STAGES + CONSUMERS];
  const unsigned loaded = shared_address(barriers), full = loaded + 8, empty = full + STAGES * 8;
  const unsigned turns = empty + STAGES * 8;
  const unsigned weights = shared_address(shared), patches = weights + TAPS * TAP_BYTES;
  if (threadIdx.x == 0) {
    for (int i = 0; i < 1 + 2 * STAGES + CONSUMERS; ++i) init_barrier(loaded + i * 8, 1);
    fence_barriers();
  }
  __syncthreads();
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);  // known to be the same for a warp
  if (warp < CONSUMERS * 4) {
    take_registers<144>();
    // A tap's last pixels may lie up to KERNEL_W - 1 behind the patch: these belong to no result.
    float* const staging = (float*)((char*)shared + TAPS * TAP_BYTES + STAGES * PATCH_BYTES + 1024);
    consume(g.a, weights, patches, staging, loaded, full, empty, turns);
  } else {
    give_registers<40>();
    if (warp == CONSUMERS * 4 && threadIdx.x % 32 == 0) produce(g, weights, patches, loaded, full, empty);
  }
}
