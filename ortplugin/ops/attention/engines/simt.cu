// y[i] = sum over keys j of softmax(s[i])[j] v[j]        s[i, j] = scale q[i] . k[j], capped and masked
//
// The text in front of this one is generated for the node at hand (table.cc, simt.cc): dtypes, head sizes, attributes;
// and rows.cuh.
//
// Online softmax (Milakov and Gimelshein, 2018). A block has WARPS warps, a warp ROWS_OF_WARP queries. Keys come 32 at
// a time, a lane's own each; K and V pass through shared memory in chunks of the head. The scores of a tile stay in
// registers, one for each lane and query, and so do the results, of which a lane has every 32nd column.

#define THREADS (32 * WARPS)
#define ROWS (ROWS_OF_WARP * WARPS)
#define KEYS 32
#define COLUMNS ((VALUE_SIZE + 31) / 32)

DEVICE float infinity(float) { return __int_as_float(0x7f800000); }
DEVICE double infinity(double) { return __longlong_as_double(0x7ff0000000000000ll); }
DEVICE float power_of_e(float x) { return expf(x); }
DEVICE double power_of_e(double x) { return exp(x); }
DEVICE float hyperbolic_tangent(float x) { return tanhf(x); }
DEVICE double hyperbolic_tangent(double x) { return tanh(x); }

#if ROTARY && ROTATES_KEYS
typedef RotatedRows KeyRows;
#else
typedef Rows KeyRows;
#endif
typedef compute_t Tile[KEYS][CHUNK + 1];  // a column more, so that lanes side by side read from other banks

// Columns [first, first + CHUNK) of the keys from `key` on, 0 beyond the tensor.
template <int SIZE, typename Loaded>
DEVICE void load_tile(Tile& tile, const Loaded& rows, long long key, long long keys, int first) {
  __syncthreads();
#if ROTARY  // of few registers
#pragma unroll 2
#endif
  for (int i = threadIdx.x; i < KEYS * CHUNK; i += THREADS) {
    const int j = i / CHUNK, d = first + i % CHUNK;
    compute_t x = 0;
    if (key + j < keys && d < SIZE) x = rows(key + j, d);
    tile[j][i % CHUNK] = x;
  }
  __syncthreads();
}

// The score of a query and a key that the product of theirs gives. A lane beyond the keys has -inf.
DEVICE compute_t score(
  const Arguments& a, compute_t product, long long mask_row, long long query, long long key, long long last_seen) {
  compute_t s = product * (compute_t)a.scale;
#if HAS_SOFTCAP
  s = (compute_t)a.softcap * hyperbolic_tangent(s / (compute_t)a.softcap);
#endif
  bool seen = key < a.keys && query < a.queries;
#if MASK
  if (seen) {
    const mask_t given = a.mask[mask_row + query * a.mask_view.row + key * a.mask_view.column];
#if IS_BOOL_MASK
    seen = to_compute(given);
#else
    s += (compute_t)to_compute(given);
#endif
  }
#endif
#if IS_CAUSAL
  seen = seen && key <= query + last_seen;
#endif
#if HAS_WINDOW
  seen = seen && key > query + last_seen - a.window;
#endif
  return seen ? s : -infinity(s);
}

// Of one query: what the scores of a tile change. Gives the lane's exp(s - most), and the factor of what there is.
DEVICE compute_t weigh(compute_t s, compute_t& most, compute_t& sum, compute_t& factor) {
  compute_t larger = s > most ? s : most;  // a NaN is no maximum, but all that is made of its row
#pragma unroll
  for (int bit = 16; bit > 0; bit /= 2) {
    const compute_t other = __shfl_xor_sync(0xffffffffu, larger, bit);
    larger = other > larger ? other : larger;
  }
  const compute_t base = larger == -infinity(s) ? 0 : larger;
  compute_t weight = power_of_e(s - base), total = weight;
  factor = power_of_e(most - base);
#pragma unroll
  for (int bit = 16; bit > 0; bit /= 2) total += __shfl_xor_sync(0xffffffffu, total, bit);
  sum = sum * factor + total;
  most = larger;
#if IS_NARROW
  storage_t rounded;
  from_compute(weight, rounded);
  weight = to_compute(rounded);
#endif
  return weight;
}

typedef compute_t Queries[ROWS][HEAD_SIZE];
typedef compute_t Results[ROWS_OF_WARP][COLUMNS];

// 0 beyond the tensor.
DEVICE void load_queries(Queries& queries, const RotatedRows& rows, long long first, long long count) {
#if ROTARY
#pragma unroll 2
#endif
  for (int i = threadIdx.x; i < ROWS * HEAD_SIZE; i += THREADS) {
    const int row = i / HEAD_SIZE, d = i % HEAD_SIZE;
    compute_t x = 0;
    if (first + row < count) x = rows(first + row, d);
    queries[row][d] = x;
  }
}

// s[r] = the product of query `own` + r and the lane's key.
DEVICE void multiply(compute_t (&s)[ROWS_OF_WARP], const Queries& queries, int own, Tile& tile, const KeyRows& rows,
  long long key, long long keys) {
#pragma unroll
  for (int r = 0; r < ROWS_OF_WARP; ++r) s[r] = 0;
  for (int at = 0; at < HEAD_SIZE; at += CHUNK) {
    load_tile<HEAD_SIZE>(tile, rows, key, keys, at);
    const int size = HEAD_SIZE - at < CHUNK ? HEAD_SIZE - at : CHUNK;
#pragma unroll 4
    for (int d = 0; d < size; ++d)
#pragma unroll
      for (int r = 0; r < ROWS_OF_WARP; ++r) s[r] += queries[own + r][at + d] * tile[threadIdx.x % 32][d];
  }
}

// results[r] += the lanes' weights times their keys' rows of V.
DEVICE void add(Results& results, const compute_t (&weights)[ROWS_OF_WARP], Tile& tile, const Rows& rows, long long key,
  long long keys) {
#pragma unroll
  for (int at = 0; at < VALUE_SIZE; at += CHUNK) {
    load_tile<VALUE_SIZE>(tile, rows, key, keys, at);
#pragma unroll 4
    for (int j = 0; j < KEYS; ++j)
#pragma unroll
      for (int r = 0; r < ROWS_OF_WARP; ++r) {
        const compute_t weight = __shfl_sync(0xffffffffu, weights[r], j);
#pragma unroll
        for (int c = 0; c < CHUNK / 32; ++c)
          if (at / 32 + c < COLUMNS) results[r][at / 32 + c] += weight * tile[j][32 * c + threadIdx.x % 32];
      }
  }
}

// The results of the queries from `query` on, each divided by its sum.
DEVICE void store(
  const Arguments& a, storage_t* head, long long query, const Results& results, const compute_t (&sum)[ROWS_OF_WARP]) {
  const compute_t nan = infinity(compute_t()) - infinity(compute_t());
  const compute_t nothing = a.zero_where_nothing_is_seen ? compute_t(0) : nan;
#pragma unroll
  for (int r = 0; r < ROWS_OF_WARP; ++r)
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
      const int e = 32 * c + threadIdx.x % 32;
      if (query + r >= a.queries || e >= VALUE_SIZE) continue;
      storage_t stored;
      from_compute(sum[r] == 0 ? results[r][c] * nothing : results[r][c] / sum[r], stored);
      head[(query + r) * a.y_view.row + e * a.y_view.column] = stored;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) attention_simt(const Arguments a) {
  __shared__ Queries queries;
  __shared__ Tile tile;
  grid_dependency_wait();
  const int lane = threadIdx.x % 32, own = threadIdx.x / 32 * ROWS_OF_WARP;
  const long long blocks = (a.queries + ROWS - 1) / ROWS, first = blockIdx.x % blocks * ROWS;
  const long long head = blockIdx.x / blocks % a.heads, batch = blockIdx.x / blocks / a.heads;
  const long long kv_head = head / a.group;
  const Rows q{a.q + a.q_view.offset + batch * a.q_view.batch + head * a.q_view.head, a.q_view};
  const Rows k{a.k + a.k_view.offset + batch * a.k_view.batch + kv_head * a.k_view.head, a.k_view};
  const Rows v{a.v + a.v_view.offset + batch * a.v_view.batch + kv_head * a.v_view.head, a.v_view};
#if ROTARY
  const table_t *const cos = a.cos + batch * a.rotary_batch, *const sin = a.sin + batch * a.rotary_batch;
  const RotatedRows rotated_q{q, cos, sin};
#else
  const Rows& rotated_q = q;
#endif
#if ROTARY && ROTATES_KEYS
  const KeyRows rotated_k{k, cos, sin};
#else
  const KeyRows& rotated_k = k;
#endif
  const long long mask_row = batch * a.mask_view.batch + head * a.mask_view.head;
  load_queries(queries, rotated_q, first, a.queries);

  compute_t most[ROWS_OF_WARP], sum[ROWS_OF_WARP];
  Results results;
#pragma unroll
  for (int r = 0; r < ROWS_OF_WARP; ++r) {
    most[r] = -infinity(compute_t());
    sum[r] = 0;
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) results[r][c] = 0;
  }
  const long long last_seen = LAST_SEEN(a, batch);
  long long key = 0, last = a.keys;  // what the block's queries see
#if IS_CAUSAL
  if (last > first + ROWS + last_seen) last = first + ROWS + last_seen;
#endif
#if HAS_WINDOW
  if (first + last_seen - a.window >= 0) key = first + last_seen - a.window + 1;
#endif
  for (; key < last; key += KEYS) {
    compute_t s[ROWS_OF_WARP], weights[ROWS_OF_WARP];
    multiply(s, queries, own, tile, rotated_k, key, a.keys);
#pragma unroll
    for (int r = 0; r < ROWS_OF_WARP; ++r) {
      compute_t factor;
      weights[r] = weigh(score(a, s[r], mask_row, first + own + r, key + lane, last_seen), most[r], sum[r], factor);
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c) results[r][c] *= factor;
    }
    add(results, weights, tile, v, key, a.keys);
  }
  store(a, a.y + a.y_view.offset + batch * a.y_view.batch + head * a.y_view.head, first + own, results, sum);
}
