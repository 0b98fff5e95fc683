// y[p, m] = program(sum over c of x[p, c] w[m, c]), a convolution with a kernel of one element; transposed:
// y[q, m] = program(sum over c of x[p, c] w[c, m]) for the pixel q = p stride, program(0) for those between
//
// The text in front of this one is generated for the node at hand (one_tap.cc, own_kernels.cc): the sizes as macros,
// the operands and `apply`, the program; and what wgmma.cuh has for Hopper's tensor cores.
//
// A matrix product that is to run at the memory's speed. Each block keeps the weights of SLICE filters in shared memory
// for as long as it lives. Each of its warpgroups works for itself: it takes tiles of ROWS pixels, CHUNK channels at a
// time, copied STAGES - 1 ahead into shared memory of its own, and sums GROUP filters at once. Either the chunk is all
// channels, or the group all filters of the slice, so that nothing is copied twice.
//
// With SHARED_TILES a warpgroup takes, after its first STAGES tiles, the next one that nobody has: all stay close to
// each other in memory. Where each has tiles of its own the faster ones run ahead, and memory takes up to 10% longer.
//
// The filters of a group are in an order in which a thread, which has two neighbouring columns of each eight, ends with
// eight neighbours of y.

#define ROWS 64
#define WIDE ((CHANNELS + 63) / 64 * 64)  // with zeros behind the channels
#define CHUNKS (WIDE / CHUNK)
#define GROUPS (SLICE / GROUP)
#define TEAMS (WARPS / 4)  // warpgroups
#define THREADS (WARPS * 32)
#define IMAGE (IMAGE_H * IMAGE_W)

// The row of filter m of a slice: thread t of four ends with the columns 2 t, 2 t + 1 of each eight.
__device__ __forceinline__ int row_of(int m) { return m / 32 * 32 + m % 8 / 2 * 8 + m % 32 / 8 * 2 + m % 2; }

// The weights of a slice, zeros where there are none.
__device__ __forceinline__ void copy_weights(storage_t* to, const storage_t* w, int first) {
#if TRANSPOSED
#pragma unroll 4
  for (int i = threadIdx.x; i < WIDE * (SLICE / 8); i += THREADS) {
    const int c = i / (SLICE / 8), m = i % (SLICE / 8) * 8;
    Vector<storage_t, 8> some;
    load_if(c < CHANNELS && first + m < FILTERS, some, w + c * FILTERS + first + m);
#pragma unroll
    for (int j = 0; j < 8; ++j) to[place_of(row_of(m + j), c / 8, SLICE) + c % 8] = some[j];
  }
#else
#pragma unroll 4
  for (int i = threadIdx.x; i < SLICE * (WIDE / 8); i += THREADS) {
    const int m = i / (WIDE / 8), c = i % (WIDE / 8) * 8;
    const bool exists = c < CHANNELS && first + m < FILTERS;
    copy_async(to + place_of(row_of(m), c / 8, SLICE), exists ? w + (first + m) * CHANNELS + c : w, exists);
  }
#endif
}

// A pixel of x, and the one of y that it becomes.
struct Pixel {
  int n, y, x;
  __device__ __forceinline__ Pixel(int row)
      : n(row / IMAGE), y(row % IMAGE / IMAGE_W * UP_H), x(row % IMAGE_W * UP_W) {}
  __device__ __forceinline__ int offset() const { return ((n * OUT_H + y) * OUT_W + x) * FILTERS; }
};

#if SHARED_TILES
// What warpgroups have in common, zeros before and after a launch. A launch is known by where its results go: whatever
// streams and graphs they are in, no two launches write there at the same time, or else both write the same and may
// share their tiles. No place is given back, so after some thousand addresses later ones find none, and divide their
// tiles in advance.
struct Launch {
  unsigned long long results;        // their address, or 0
  unsigned finished, taken[SLICES];  // warpgroups that found no more tiles, and tiles that were taken of each slice
};
#define LAUNCHES 1024  // of which the hash below has the bits
#define PROBES 4
__device__ Launch launches[LAUNCHES];

// This launch's place, or null where others have its places: every block finds the same.
__device__ __forceinline__ Launch* find_launch(const void* results) {
  const unsigned long long address = (unsigned long long)results;
  const unsigned place = (unsigned)(address >> 8) * 2654435769u;  // the golden ratio's, spreads neighbours
  Launch* found = nullptr;
#pragma unroll  // a loop would keep the compiler from uniform registers in all that follows
  for (unsigned i = 0; i < PROBES; ++i) {
    Launch& one = launches[((place >> 22) + i) % LAUNCHES];
    if (found == nullptr) {
      unsigned long long before = *(const volatile unsigned long long*)&one.results;
      if (before == 0) before = atomicCAS(&one.results, 0ull, address);
      if (before == 0 || before == address) found = &one;
    }
  }
  return found;
}

// The next tile of this slice that nobody took.
__device__ __forceinline__ int take_tile(Launch& launch) {
  return (int)atomicAdd(launch.taken + blockIdx.x % SLICES, 1u);
}

// Once for each warpgroup, when it takes no more; the last one leaves zeros.
__device__ __forceinline__ void finish(Launch& launch) {
  const unsigned last = gridDim.x * TEAMS - 1;
  if (atomicInc(&launch.finished, last) != last) return;
#pragma unroll 1
  for (int i = 0; i < SLICES; ++i) launch.taken[i] = 0;
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, 1) one_tap(const Arguments a) {
  extern __shared__ __align__(1024) uint4 shared[];
  const int team = threadIdx.x / 128, thread = threadIdx.x % 128, lane = threadIdx.x % 32;
  storage_t* const weights = (storage_t*)shared;
  storage_t* const mine = weights + SLICE * WIDE + team * (STAGES * ROWS * CHUNK);
  const storage_t* const x = (const storage_t*)a.in[0];
  const int first = blockIdx.x % SLICES * SLICE;
  const int rows = (int)a.batch * IMAGE, tiles = (rows + ROWS - 1) / ROWS;
  const int blocks = gridDim.x / SLICES, step = TEAMS * blocks;
  // Neighbouring tiles are at work at the same time; where their results interleave, in the same block.
  const int begin = UP_H > 1 ? blockIdx.x / SLICES * TEAMS + team : team * blocks + blockIdx.x / SLICES;
  // This team's next tiles, in a ring.
  int* const coming = (int*)(weights + SLICE * WIDE + TEAMS * (STAGES * ROWS * CHUNK)) + team * STAGES;
  if (thread < STAGES) coming[thread] = begin + thread * step;
  meet_team(team);
#if SHARED_TILES
  Launch* const launch = thread == 0 ? find_launch(a.out[0]) : nullptr;
#endif

  if (!CONSTANT_WEIGHTS) grid_dependency_wait();
  copy_weights(weights, (const storage_t*)a.in[1], first);
  end_copies();
  if (CONSTANT_WEIGHTS) grid_dependency_wait();

  int next_tile = begin, next_turn = 0, next_chunk = 0, next_stage = 0;
  const auto copy_next = [&] {
    if (next_chunk == 0) next_tile = coming[next_turn];
    if (next_tile < tiles) {
      storage_t* const to = mine + next_stage * (ROWS * CHUNK);
#pragma unroll
      for (int i = 0; i < ROWS * CHUNK / 8; i += 128) {
        const int row = (i + thread) / 8 % ROWS, octet = (i + thread) / (8 * ROWS) * 8 + thread % 8;
        const int p = next_tile * ROWS + row, c = next_chunk * CHUNK + octet * 8;
        const bool exists = p < rows && c < CHANNELS;
        copy_async(to + place_of(row, octet, ROWS), exists ? x + p * CHANNELS + c : x, exists);
      }
      if (++next_chunk == CHUNKS) {
        next_chunk = 0;
        if (++next_turn == STAGES) next_turn = 0;
      }
      if (++next_stage == STAGES) next_stage = 0;
    }
    end_copies();
  };
#pragma unroll
  for (int i = 0; i < STAGES - 1; ++i) copy_next();
  await_copies<STAGES - 1>();
  show_to_tensor_cores();
  __syncthreads();

  int stage = 0, turn = 0;
#pragma unroll 1
  for (int tile = begin; tile < tiles; tile = coming[turn]) {
    float sums[GROUP / 2];
#pragma unroll 1
    for (int chunk = 0; chunk < CHUNKS; ++chunk) {
      await_copies<STAGES - 2>();
      show_to_tensor_cores();
      meet_team(team);
      copy_next();
      const storage_t* const left = mine + stage * (ROWS * CHUNK);
      if (++stage == STAGES) stage = 0;
#pragma unroll 1
      for (int group = 0; group < GROUPS; ++group) {
        const storage_t* const right = weights + (chunk * (CHUNK / 64) * SLICE + group * GROUP) * 64;
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int c = 0; c < CHUNK; c += 16)
          multiply(sums, descriptor(left + c / 64 * ROWS * 64 + c % 64),
                   descriptor(right + c / 64 * SLICE * 64 + c % 64), c > 0 || (GROUPS == 1 && chunk > 0));
        // Threads of two neighbouring rows end with a whole line of 64 filters of each: for one the first has its first
        // half, for the other the second has its second half.
        const bool last = GROUPS > 1 || chunk == CHUNKS - 1, odd = lane / 4 % 2;
        const int row = tile * ROWS + thread / 32 * 16 + lane / 8 * 2;
        const int m = first + group * GROUP + lane % 8 * 8;
        PixelOperands<8> operands[EARLY ? GROUP / 64 : 1][2][2];
        const auto load = [&](int o, int half, int which) {
          const int p = row + half * 8 + which;
          const Pixel at(p);
          if (p < rows && m + o * 64 < FILTERS)
            operands[EARLY ? o : 0][half][which].load(a, at.n, at.y, at.x, m + o * 64, at.offset() + m + o * 64);
        };
        // What the program reads of each pixel comes while the products are made.
        if (EARLY && last) {
#pragma unroll
          for (int o = 0; o < GROUP / 64; ++o)
#pragma unroll
            for (int k = 0; k < 4; ++k) load(o, k / 2, k % 2);
        }
        await_products(sums);
        if (!last) continue;
#pragma unroll
        for (int o = 0; o < GROUP / 64; ++o) {
          TileOperands<8> of_filters;
          if (!OF_IMAGE && m + o * 64 < FILTERS) of_filters.load(a, 0, m + o * 64);
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            float values[2][8];
#pragma unroll
            for (int j = 0; j < 8; ++j) {
              const float lower = sums[(o * 8 + j / 2) * 4 + half * 2 + j % 2];
              const float upper = sums[(o * 8 + 4 + j / 2) * 4 + half * 2 + j % 2];
              const float given = __shfl_xor_sync(0xffffffffu, odd ? lower : upper, 4);
              values[0][j] = odd ? given : lower;
              values[1][j] = odd ? upper : given;
            }
#pragma unroll
            for (int which = 0; which < 2; ++which) {
              const int p = row + half * 8 + which;
              if (p >= rows || m + o * 64 >= FILTERS) continue;
              const Pixel at(p);
              const int offset = at.offset() + m + o * 64;
              if (OF_IMAGE) of_filters.load(a, at.n, m + o * 64);
              if (!EARLY) load(o, half, which);
              Results<8> results;
#pragma unroll
              for (int j = 0; j < 8; ++j)
                apply(of_filters, operands[EARLY ? o : 0][half][which], j, values[which][j], results);
              results.store(a, offset);
              // The other pixels of the patch, which meet no pixel of x.
#pragma unroll
              for (int k = 1; k < UP_H * UP_W; ++k) {
                const int up_y = k / UP_W, up_x = k % UP_W, there = offset + (up_y * OUT_W + up_x) * FILTERS;
                if (at.y + up_y >= OUT_H || at.x + up_x >= OUT_W) continue;
                PixelOperands<8> of_other;
                of_other.load(a, at.n, at.y + up_y, at.x + up_x, m + o * 64, there);
                Results<8> others;
#pragma unroll
                for (int j = 0; j < 8; ++j) apply(of_filters, of_other, j, 0.0f, others);
                others.store(a, there);
              }
            }
          }
        }
      }
    }
    if (thread == 0) {
      int then = tile;
#if SHARED_TILES
      // As late as can be: 2% faster than at the tile's beginning, though it waits for the answer.
      if (launch != nullptr) then = take_tile(*launch);
#endif
      coming[turn] = STAGES * step + then;
    }
    if (++turn == STAGES) turn = 0;
  }
#if SHARED_TILES
  if (launch != nullptr) finish(*launch);
#endif
}
