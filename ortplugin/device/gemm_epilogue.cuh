// What becomes of the accumulators of Hopper's tensor cores: the program's results, for kernels whose warpgroups each
// have M_TILES MMAs of 64 rows and TILE_N columns. Expects an engine's preamble (engine.h), whose pixels are the rows
// and whose filters the columns, and as macros M_TILES, TILE_N, COLUMNS (columns that pass through shared memory at
// once, a chunk of them), VECTOR (columns that are read and written at once) and AHEAD (chunks of operands that are on
// their way at once, as many as registers have room for). With a gate (GATED) the tile's second half has the gate's
// columns, which stand where those of the first half do. Where SPLIT_K blocks share a tile, each has every SPLIT_Kth
// chunk of it, and the sums of these.

#ifndef SPLIT_K
#define SPLIT_K 1
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

// What a consumer's thread makes of accumulators: COLUMNS of the 16 rows of its warp pass through shared memory, after
// which it has ITEMS of VECTOR neighbouring columns. What the program reads of them is loaded ahead.
struct Epilogue {
  const Arguments& a;
  float* staging;  // the warp's
  int rows, row, first, end;  // rows there are, and the tile's first one; its columns, and where their group ends
  int part;  // which of the blocks that share the tile this is
  PixelOperands<VECTOR> operands[AHEAD][ITEMS];
  TileOperands<VECTOR> of_filters[AHEAD];

  // Chunks are counted over the 64 rows of the first MMA, then over those of the next one.
  DEVICE int row_of(int chunk, int item) const {
    return row + chunk / OWN_CHUNKS * 64 + (item * 32 + threadIdx.x % 32) / VECTORS;
  }
  DEVICE int column_in_tile(int chunk) const {
    return (chunk % OWN_CHUNKS * SPLIT_K + part) * COLUMNS + threadIdx.x % VECTORS * VECTOR;
  }
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
      if (p < rows) operands[chunk % AHEAD][item].load(a, p / IMAGE, p % IMAGE / OUT_W, p % OUT_W, m, p * FILTERS + m);
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
        if (OF_IMAGE) tile.load(a, p / IMAGE, m);
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
};
