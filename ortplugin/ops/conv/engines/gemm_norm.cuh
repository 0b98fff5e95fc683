// A norm of the rows of a matrix product, in the kernel that multiplies. Each of the CLUSTER blocks that share rows has
// TILE_N columns of them, all of which its threads keep in registers. Blocks tell each other mean and squared
// deviations of their columns through distributed shared memory: one barrier of the cluster in place of a kernel.

DEVICE float sum_of_row(float x) {
#pragma unroll
  for (int distance = VECTORS / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(0xffffffffu, x, distance);
  return x;
}

// `own_row`: the warp's first one in the tile.
DEVICE void normalize(Epilogue& epilogue, const float (&sums)[M_TILES][TILE_N / 2], int own_row) {
  static_assert(M_TILES == 1 && TILE_N % COLUMNS == 0, "chunks are whole columns of the same rows");
  const Arguments& a = epilogue.a;
  const int lane = threadIdx.x % 32;
  float s[ITEMS][CHUNKS][VECTOR] = {};
  epilogue.for_each(sums, [&](int chunk, int item, int offset, const Results<VECTOR>& results) {
    if (STORES_VALUES) results.store(a, offset);
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) s[item][chunk][j] = prologue(to_compute(results.r0[j]));
  });

  float mean[ITEMS], squares[ITEMS];
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    float sum = 0, own = 0;
#pragma unroll
    for (int i = 0; i < CHUNKS * VECTOR; ++i) sum += s[item][i / VECTOR][i % VECTOR];
    mean[item] = IS_RMS ? 0 : sum_of_row(sum) * (1.0f / TILE_N);
#pragma unroll
    for (int i = 0; i < CHUNKS * VECTOR; ++i) {
      const float deviation = s[item][i / VECTOR][i % VECTOR] - mean[item];
      own = fma(deviation, deviation, own);
    }
    squares[item] = sum_of_row(own);
  }
#if CLUSTER > 1
  __shared__ float2 moments[CLUSTER][TILE_ROWS];  // of each block's columns
  wait_cluster();  // all blocks have begun
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    const int row = own_row + (item * 32 + lane) / VECTORS;
    for (unsigned block = lane % VECTORS; block < CLUSTER; block += VECTORS)
      store_to_block((float*)&moments[blockIdx.x % CLUSTER][row], block, mean[item], squares[item]);
  }
  arrive_cluster();
#endif
  NormTileOperands<VECTOR> tile[CHUNKS];
#pragma unroll
  for (int chunk = 0; chunk < CHUNKS; ++chunk) tile[chunk].load(a, 0, epilogue.column_of(chunk));
#if CLUSTER > 1
  wait_cluster();
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    const int row = own_row + (item * 32 + lane) / VECTORS;
    float sum = 0, all = 0;
#pragma unroll
    for (int block = 0; block < CLUSTER; ++block) sum += moments[block][row].x;
    mean[item] = sum * (1.0f / CLUSTER);
#pragma unroll
    for (int block = 0; block < CLUSTER; ++block) {
      const float2 own = moments[block][row];
      const float deviation = own.x - mean[item];
      all += fma(deviation * TILE_N, deviation, own.y);
    }
    squares[item] = all;
  }
#endif

#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    const float scale = rsqrt(squares[item] * (1.0f / FILTERS) + (float)EPSILON);
    const int p = epilogue.row_of(0, item);
    if (p >= epilogue.rows) continue;
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; ++chunk) {
      const int m = epilogue.column_of(chunk);
      NormPixelOperands<VECTOR> pixel;
      pixel.load(a, p / OUT_W / OUT_H, p / OUT_W % OUT_H, p % OUT_W, m, p * FILTERS + m);
      if (OF_IMAGE) tile[chunk].load(a, p / OUT_W / OUT_H, m);
      NormResults<VECTOR> results;
#pragma unroll
      for (int j = 0; j < VECTOR; ++j) {
        const float x = s[item][chunk][j];
        apply(tile[chunk], pixel, j, x, (x - mean[item]) * scale, results);
      }
      results.store(a, p * FILTERS + m, 1);
    }
  }
}
