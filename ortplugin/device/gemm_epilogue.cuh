// What becomes of the accumulators of Hopper's tensor cores: the program's results, for kernels whose warpgroups each
// have M_TILES MMAs of 64 rows and TILE_N columns. Expects an engine's preamble (engine.h), whose pixels are the rows
// and whose filters the columns, and as macros M_TILES, TILE_N, COLUMNS (columns that pass through shared memory at
// once, a chunk of them), VECTOR (columns that are read and written at once) and AHEAD (chunks of operands that are on
// their way at once, as many as registers have room for). With a gate (GATED) the tile's second half has the gate's
// columns, which stand where those of the first half do. Where SPLIT_K blocks share a tile, each has every SPLIT_Kth
// chunk of it, and the sums of these. RUNS_FIRST, of a program that reads nothing of a pixel and has one result, of 16
// bits, it runs where the sums are, and what passes through shared memory is its result.

#ifndef SPLIT_K
#define SPLIT_K 1
#endif
#ifndef RUNS_FIRST
#define RUNS_FIRST 0
#endif
#define SIZE ((int)sizeof(storage_t))
#define TILE_COLUMNS (TILE_N / (1 + GATED))  // of the result
#define CHUNKS ((TILE_COLUMNS + COLUMNS - 1) / COLUMNS)
#define OWN_CHUNKS ((CHUNKS + SPLIT_K - 1) / SPLIT_K)
#define SUMS (SPLIT_K > 1 ? OWN_CHUNKS * COLUMNS / 2 : TILE_COLUMNS / 2)  // of a product, of a thread
#define PITCH (COLUMNS + 8)  // floats: rows that are stored at the same time lie in different banks
#define VECTORS (COLUMNS / VECTOR)  // of a row
#define ITEMS (16 * VECTORS / 32)  // of VECTOR columns, of a thread
#define IMAGE (OUT_H * OUT_W)

#if RUNS_FIRST
// Four 8 x 8 matrices of which each thread has two neighbours of a row; `to`: of the row whose number is the thread's.
DEVICE void store_matrices(unsigned to, const Results<2> (&pairs)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(pairs[0].r0.words[0]),
    "r"(pairs[1].r0.words[0]), "r"(pairs[2].r0.words[0]), "r"(pairs[3].r0.words[0])
    : "memory");
}
DEVICE void load_octet(Results<8>& octet, unsigned from) {
  unsigned (&x)[4] = octet.r0.words;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
    : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
    : "r"(from)
    : "memory");
}
// By a predicate: behind a branch ptxas may take what is made of accumulators in between for a part of the MMAs'
// pipeline, and let one MMA wait for the other (remark C7514).
DEVICE void store_if(bool exists, void* to, const Results<8>& octet) {
  const unsigned (&x)[4] = octet.r0.words;
  asm volatile(
    "{\n\t.reg .pred exists;\n\tsetp.ne.s32 exists, %5, 0;\n\t"
    "@exists st.global.v4.u32 [%4], {%0, %1, %2, %3};\n\t}" ::"r"(x[0]),
    "r"(x[1]), "r"(x[2]), "r"(x[3]), "l"(to), "r"((int)exists)
    : "memory");
}
#endif

// What a consumer's thread makes of accumulators: COLUMNS of the 16 rows of its warp pass through shared memory, after
// which it has ITEMS of VECTOR neighbouring columns. What the program reads of them is loaded ahead.
struct Epilogue {
  const Arguments& a;
  float* staging;  // the warp's
  int rows, row, first, end;  // rows there are, and the tile's first one; its columns, and where their group ends
  int part;  // which of the blocks that share the tile this is

  // Chunks are counted over the 64 rows of the first MMA, then over those of the next one.
  DEVICE int chunk_in_tile(int chunk) const { return (chunk % OWN_CHUNKS * SPLIT_K + part) * COLUMNS; }
#if RUNS_FIRST
  TileOperands<2> of_columns[AHEAD][4];  // of the octets of a chunk

  // Thread t of four has columns 2 t and 2 t + 1 of each octet.
  DEVICE void load(int chunk) {
    const int m = first + chunk_in_tile(chunk) + threadIdx.x % 4 * 2;
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (m + j * 8 < end) of_columns[chunk % AHEAD][j].load(a, 0, m + j * 8);
  }
  // The results of the chunk, of rows from 0 and from 8 on.
  DEVICE void make(Results<2> (&pairs)[2][4], const float (&sums)[M_TILES][(1 + GATED) * SUMS], int chunk) {
    const float* const own = sums[chunk / OWN_CHUNKS];
    PixelOperands<2> none;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int half = i / 8, j = i / 2 % 4, k = i % 2;
      const int from = chunk % OWN_CHUNKS * (COLUMNS / 2) + j * 4 + half * 2 + k;
      if (from >= SUMS) continue;
#if GATED
      apply(of_columns[chunk % AHEAD][j], none, k, own[from], own[SUMS + from], pairs[half][j]);
#else
      apply(of_columns[chunk % AHEAD][j], none, k, own[from], pairs[half][j]);
#endif
    }
  }
  // A chunk's results come back from shared memory while those of the next one are made.
  DEVICE void run(const float (&sums)[M_TILES][(1 + GATED) * SUMS]) {
    static_assert(COLUMNS == 32, "a chunk is four octets of a row");
    static_assert(sizeof(PixelOperands<2>) == 1, "it has no member");
    constexpr int kPitch = 80, kBuffer = 16 * kPitch;  // bytes: rows of a matrix lie in different banks
    constexpr int kChunks = M_TILES * OWN_CHUNKS;
    const int lane = threadIdx.x % 32;
    const unsigned buffers = shared_address(staging);
    const unsigned to = buffers + lane % 8 * kPitch + lane / 8 * 16, from = buffers + lane / 4 * kPitch + lane % 4 * 16;
    __syncwarp();
#pragma unroll
    for (int chunk = 0; chunk <= kChunks; ++chunk) {
      Results<8> octets[2];
      Results<2> pairs[2][4];
#pragma unroll
      for (int half = 0; half < 2; ++half)
        if (chunk > 0) load_octet(octets[half], from + (chunk - 1) % 2 * kBuffer + half * 8 * kPitch);
      if (chunk < kChunks) make(pairs, sums, chunk);
      if (chunk > 0) store(octets, chunk - 1);
      if (chunk == kChunks) break;
      if (AHEAD < OWN_CHUNKS && chunk + AHEAD < kChunks) load(chunk + AHEAD);
#pragma unroll
      for (int half = 0; half < 2; ++half) store_matrices(to + chunk % 2 * kBuffer + half * 8 * kPitch, pairs[half]);
      __syncwarp();
    }
  }
  DEVICE void store(const Results<8> (&octets)[2], int chunk) const {
    const int lane = threadIdx.x % 32, column = chunk_in_tile(chunk) + lane % 4 * 8;
    const bool exists = first + column < end && (TILE_COLUMNS % (SPLIT_K * COLUMNS) == 0 || column < TILE_COLUMNS);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int p = row + chunk / OWN_CHUNKS * 64 + lane / 4 + half * 8;
      store_if(exists && p < rows, (storage_t*)a.out[0] + p * FILTERS + first + column, octets[half]);
    }
  }
#else
  PixelOperands<VECTOR> operands[AHEAD][ITEMS];
  TileOperands<VECTOR> of_filters[AHEAD];

  DEVICE int row_of(int chunk, int item) const {
    return row + chunk / OWN_CHUNKS * 64 + (item * 32 + threadIdx.x % 32) / VECTORS;
  }
  DEVICE int column_in_tile(int chunk) const { return chunk_in_tile(chunk) + threadIdx.x % VECTORS * VECTOR; }
  DEVICE int column_of(int chunk) const { return first + column_in_tile(chunk); }
  // The last chunk of a tile may be narrower.
  DEVICE bool has_column(int chunk, int m) const {
    return m < end && (TILE_COLUMNS % (SPLIT_K * COLUMNS) == 0 || column_in_tile(chunk) < TILE_COLUMNS);
  }
  DEVICE void load(int chunk) {
    const int m = column_of(chunk);
    if (!has_column(chunk, m)) return;
    if (!OF_IMAGE) of_filters[chunk % AHEAD].load(a, 0, m);
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
      const int p = row_of(chunk, item);
      if (p < rows)
        operands[chunk % AHEAD][item].load(a, p / OUT_W / OUT_H, p / OUT_W % OUT_H, p % OUT_W, m, p * FILTERS + m);
    }
  }
  // A chunk of the product's accumulators, or of the gate's, to shared memory.
  DEVICE void stage(const float (&sums)[M_TILES][(1 + GATED) * SUMS], int chunk, int product) {
    const int lane = threadIdx.x % 32;
    __syncwarp();
#pragma unroll
    for (int j = 0; j < COLUMNS / 8; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int from = chunk % OWN_CHUNKS * (COLUMNS / 2) + j * 4 + half * 2;
        const float* const pair = sums[chunk / OWN_CHUNKS] + product * SUMS + from;
        if (from < SUMS)
          *(float2*)(staging + (lane / 4 + half * 8) * PITCH + j * 8 + lane % 4 * 2) = {pair[0], pair[1]};
      }
    __syncwarp();
  }
  DEVICE void read_staged(int item, float (&values)[VECTOR]) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < VECTOR; ++j)
      values[j] = staging[(item * 32 + lane) / VECTORS * PITCH + lane % VECTORS * VECTOR + j];
  }
  // take(chunk, item, offset, results): what the program makes of VECTOR columns.
  template <typename Take>
  DEVICE void for_each(const float (&sums)[M_TILES][(1 + GATED) * SUMS], Take take) {
#pragma unroll
    for (int chunk = 0; chunk < M_TILES * OWN_CHUNKS; ++chunk) {
#if GATED
      float gates[ITEMS][VECTOR];
      stage(sums, chunk, 1);
#pragma unroll
      for (int item = 0; item < ITEMS; ++item) read_staged(item, gates[item]);
#endif
      stage(sums, chunk, 0);
      const int m = column_of(chunk);
      const bool exists = has_column(chunk, m);
      TileOperands<VECTOR>& tile = of_filters[chunk % AHEAD];
#pragma unroll
      for (int item = 0; item < ITEMS; ++item) {
        const int p = row_of(chunk, item);
        if (p >= rows || !exists) continue;
        if (OF_IMAGE) tile.load(a, p / OUT_W / OUT_H, m);
        float values[VECTOR];
        read_staged(item, values);
        Results<VECTOR> results;
#pragma unroll
        for (int j = 0; j < VECTOR; ++j)
#if GATED
          apply(tile, operands[chunk % AHEAD][item], j, values[j], gates[item][j], results);
#else
          apply(tile, operands[chunk % AHEAD][item], j, values[j], results);
#endif
        take(chunk, item, p * FILTERS + m, results);
      }
      if (chunk + AHEAD < M_TILES * OWN_CHUNKS) load(chunk + AHEAD);
    }
  }
  DEVICE void run(const float (&sums)[M_TILES][(1 + GATED) * SUMS]) {
    for_each(sums, [&](int, int, int offset, const Results<VECTOR>& results) { results.store(a, offset); });
  }
#endif
};
