// s[i, j] = scale q[i] . k[j], then softcap and mask             of one batch and one head of K and V, few queries i
// y[i, e] = sum over j of p[i, j] v[j, e] / l[i],  p[i, j] = exp(s[i, j] - m[i]),  m = max over j of s, l the sum of p
//
// With a cache (HAS_PAST), keys and values are the rows of past, then the new ones, and all of them are written to
// present, by WRITERS warps of their own: stores of a whole cache would make those wait that compute. Both read past,
// which is in L2 then. With HAS_POSITION the new ones stand in the place of rows of past, and are all that is written
// where the caller gave the memory of past to present: no block reads what another one writes there.
//
// The text in front of this one is generated for the node at hand (table.cc, decode.cc): sizes, the configuration and
// what there is as macros, Arguments; copy.cuh, cluster.cuh, mma.cuh, softmax.cuh and rows.cuh.
//
// Few queries leave memory as all there is to wait for, so the keys of a head are divided among the blocks of a
// cluster, and those of a block among its warps: each takes every so many'th tile of KEYS of them, STAGES tiles ahead,
// in shared memory of its own, and waits for no other warp. All queries of a head of K and V (ROWS at most: queries
// times the heads that share it) are the rows of one m16n8k16 tile. At the end each block adds up what its warps have,
// in their order, and gives each row to one block of the cluster, which adds up those of all, in their order, through
// distributed shared memory (Flash-Decoding, Dao et al., 2023, without its memory between two kernels).
//
// A step of a model is a chain of short kernels, each of which runs its code once and waits for the one before it. So
// what needs no other kernel comes before grid_dependency_wait: addresses and, where no kernel that may still run
// writes them (cache_is_there), the position and the first tiles of the cache. The queries and the new rows are left.

#define THREADS (32 * WARPS)  // that compute
#define ROWS 16
#define KEYS 16
#define QK_PADDED ((HEAD_SIZE + 15) / 16 * 16)  // with zeros behind the head
#define V_PADDED ((VALUE_SIZE + 15) / 16 * 16)
#define QK_PITCH (QK_PADDED + 8)  // so that the eight rows of an ldmatrix lie in different banks
#define V_PITCH (V_PADDED + 8)
#define STAGE_ELEMENTS (KEYS * (QK_PITCH + V_PITCH))
#define PARTIAL (V_PADDED + 2)  // floats of a row: its values, its maximum, its sum
#define ROWS_OF_BLOCK ((ROWS + CLUSTER - 1) / CLUSTER)  // that are added up there

DEVICE void sync_computing() { asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory"); }

// The rows of K or V of one head: those of past, then the new ones. Steps of 16 rows are offsets of 32 bits.
struct Source {
  const storage_t *past, *added;
  int past_step, added_step;
  storage_t* present;
  int present_step;
};

// Of the PADDED / 8 octets of each of KEYS rows, the i'th of this thread.
template <int PADDED>
struct Octet {
  static const int kCount = KEYS * PADDED / 8, kOfThread = (kCount + 31) / 32;
  const int row, column;
  DEVICE explicit Octet(int i)
    : row((i * 32 + threadIdx.x % 32) / (PADDED / 8)), column((i * 32 + threadIdx.x % 32) % (PADDED / 8) * 8) {}
  DEVICE bool exists() const { return kCount % 32 == 0 || row < KEYS; }
};

// Which rows a copy takes.
enum Part { kCached, kAdded, kAll };

// Of KEYS rows from `first` on those of a part, to shared memory; zeros behind the last one and the head. ROTATED: new
// ones are written by rotate_keys.
template <int WIDTH, int PADDED, bool ROTATED, Part PART>
DEVICE void copy_rows(storage_t* to, const Source& from, int first, const AddedRows<int>& rows, int keys) {
  const int base = rows.base(first);
  const storage_t* const added = from.added + (long long)base * from.added_step;
  const storage_t* const cached = from.past + (long long)first * from.past_step;
#pragma unroll
  for (int i = 0; i < Octet<PADDED>::kOfThread; ++i) {
    const Octet<PADDED> octet(i);
    const int key = first + octet.row, own = rows.of(key);
    if (!octet.exists() || ROTATED && own >= 0 && key < keys || PART == kCached && own >= 0 ||
      PART == kAdded && own < 0)
      continue;
    const bool exists = key < keys && octet.column < WIDTH, is_cached = HAS_PAST && own < 0;
    const int at = (is_cached ? octet.row * from.past_step : (own - base) * from.added_step) + octet.column;
    copy_async(to + octet.row * (PADDED + 8) + octet.column, (is_cached ? cached : added) + (exists ? at : 0), exists);
  }
}

#if HAS_PAST
// KEYS rows from `first` on to present, but for what stands there and what rotate_keys writes.
template <int WIDTH, bool ROTATED>
DEVICE void copy_to_present(const Source& of, int first, const AddedRows<int>& rows, int keys) {
  typedef Octet<WIDTH> Each;
  const int base = rows.base(first);
  const bool stays = HAS_POSITION && of.past == of.present;
  const auto is_copied = [&](const Each& at) {
    const int key = first + at.row;
    return at.exists() && key < keys && (rows.of(key) < 0 ? !stays : !ROTATED);
  };
  const storage_t* const added = of.added + (long long)base * of.added_step;
  const storage_t* const cached = of.past + (long long)first * of.past_step;
  storage_t* const to = of.present + (long long)first * of.present_step;
  Vector<storage_t, 8> some[Each::kOfThread];
#pragma unroll
  for (int i = 0; i < Each::kOfThread; ++i) {
    const Each at(i);
    const int own = rows.of(first + at.row);
    const int offset = (own < 0 ? at.row * of.past_step : (own - base) * of.added_step) + at.column;
    load_if(is_copied(at), some[i], (own < 0 ? cached : added) + offset);
  }
#pragma unroll
  for (int i = 0; i < Each::kOfThread; ++i) {
    const Each at(i);
    if (is_copied(at)) some[i].store(to + at.row * of.present_step + at.column);
  }
}
#endif

// What a warp has summed up, of which a thread has the rows lane / 4 and 8 more, and of each eight columns two.
struct WarpTile {
  float sums[V_PADDED / 8][4], row_max[2], row_sum[2];
  int first_key[2], last_key[2];  // what the row's query sees
  const float scale, softcap;
#if MASK
  const mask_t* mask[2];
  long long mask_step;
#endif

  DEVICE WarpTile(const Arguments& a, const Keys& seen, long long batch, long long kv_head)
    : scale((float)a.scale), softcap((float)a.softcap) {
#pragma unroll
    for (int n = 0; n < V_PADDED / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[n][i] = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = threadIdx.x % 32 / 4 + half * 8, query = row / GROUP;
      row_max[half] = -INFINITE;
      row_sum[half] = 0;
      first_key[half] = seen.first(query);
      last_key[half] = seen.last(query);
#if MASK
      const long long there = min((long long)query, a.queries - 1), head = kv_head * GROUP + row % GROUP;
      mask[half] = a.mask + batch * a.mask_view.batch + head * a.mask_view.head + there * a.mask_view.row;
#endif
    }
#if MASK
    mask_step = a.mask_view.column;
#endif
  }

  // The score as an exponent of 2.
  DEVICE float score(float product, int half, int key) const {
    if (key < first_key[half] || key >= last_key[half]) return -INFINITE;
    product *= scale;
#if HAS_SOFTCAP
    product = softcap - 2 * softcap / (exp2_of(product * (2 * LOG2_E / softcap)) + 1);
#endif
#if MASK
#if IS_BOOL_MASK
    if (!to_compute(mask[half][key * mask_step])) product = -INFINITE;
#else
    product += to_compute(mask[half][key * mask_step]);
#endif
#endif
    return exponent_of(product);
  }

  DEVICE void take(const storage_t* q, const storage_t* stage, int first) {
    const int lane = threadIdx.x % 32;
    float scores[2][4] = {};
    const storage_t* const queries = q + lane % 16 * QK_PITCH + lane / 16 * 8;
    const storage_t* const keys = stage + (lane / 16 * 8 + lane % 8) * QK_PITCH + lane / 8 % 2 * 8;
#pragma unroll
    for (int d = 0; d < QK_PADDED / 16; ++d) {
      unsigned x[4], b[4];
      load_matrices(x, queries + d * 16);
      load_matrices(b, keys + d * 16);
      mma(scores[0], x, b[0], b[1]);
      mma(scores[1], x, b[2], b[3]);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) soften(scores, half, first);
    unsigned p[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) p[i] = pack(scores[i / 2][i % 2 * 2], scores[i / 2][i % 2 * 2 + 1]);
    const storage_t* const values = stage + KEYS * QK_PITCH + lane % 16 * V_PITCH + lane / 16 * 8;
#pragma unroll
    for (int e = 0; e < V_PADDED / 16; ++e) {
      unsigned b[4];
      load_transposed(b, values + e * 16);
      mma(sums[2 * e], p, b[0], b[1]);
      mma(sums[2 * e + 1], p, b[2], b[3]);
    }
  }

  // Products become exponentials; what was summed before shrinks where the maximum grows.
  DEVICE void soften(float (&scores)[2][4], int half, int first) {
    float most = row_max[half], sum = 0;
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& s = scores[n][half * 2 + i];
        s = score(s, half, first + n * 8 + threadIdx.x % 4 * 2 + i);
        most = fmaxf(most, s);
      }
    most = max_of_row(most);
    const float base = most == -INFINITE ? 0.0f : most;  // of nothing but -inf, exponentials are 0
    const float factor = exp2_of(row_max[half] - base);
    row_max[half] = most;
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) sum += scores[n][half * 2 + i] = exp2_of(scores[n][half * 2 + i] - base);
    row_sum[half] = row_sum[half] * factor + sum;
#pragma unroll
    for (int n = 0; n < V_PADDED / 8; ++n) {
      sums[n][half * 2] *= factor;
      sums[n][half * 2 + 1] *= factor;
    }
  }

  // [ROWS][PARTIAL]
  DEVICE void store(float* partial, int rows) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = sum_of_row(row_sum[half]);
      const int row = threadIdx.x % 32 / 4 + half * 8, column = threadIdx.x % 4 * 2;
      if (row >= rows) continue;
      float* const to = partial + row * PARTIAL;
#pragma unroll
      for (int n = 0; n < V_PADDED / 8; ++n)
        *(float2*)(to + n * 8 + column) = make_float2(sums[n][half * 2], sums[n][half * 2 + 1]);
      if (column == 0) *(float2*)(to + V_PADDED) = make_float2(row_max[half], sum);
    }
  }
};

// The sum over COUNT partial results, `step` floats apart: of one column, and of the rows' maximum and sum.
template <int COUNT>
DEVICE void add(const float* partials, int step, int column, float& most, float& sum, float& value) {
  most = -INFINITE;
#pragma unroll
  for (int i = 0; i < COUNT; ++i) most = fmaxf(most, partials[i * step + V_PADDED]);
  const float base = most == -INFINITE ? 0.0f : most;
  sum = value = 0;
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    const float factor = exp2_of(partials[i * step + V_PADDED] - base);
    sum += factor * partials[i * step + V_PADDED + 1];
    value += factor * partials[i * step + column];
  }
}

// What a block of the cluster is at work on.
struct Place {
  const int batch, head, block, rows;  // head: of K and V
  DEVICE explicit Place(const Arguments& a)
    : batch(blockIdx.x / CLUSTER / ((unsigned)a.heads / GROUP)),
      head(blockIdx.x / CLUSTER % ((unsigned)a.heads / GROUP)),
      block(blockIdx.x % CLUSTER),
      rows((int)a.queries * GROUP) {}
  // A row of the tile is a query of one of the heads that share those of K and V.
  DEVICE long long offset(const View& view, int row) const {
    return view.offset + batch * view.batch + (head * GROUP + row % GROUP) * view.head;
  }
  DEVICE long long kv_offset(const View& view) const { return view.offset + batch * view.batch + head * view.head; }
};

#if HAS_PAST
#define SOURCE(x, name) \
  Source { \
    a.past_##name + place.kv_offset(a.past_##name##_view), a.x + place.kv_offset(a.x##_view), \
      (int)a.past_##name##_view.row, (int)a.x##_view.row, a.present_##name + place.kv_offset(a.present_##name##_view), \
      (int)a.present_##name##_view.row \
  }
#else
#define SOURCE(x, name) Source{nullptr, a.x + place.kv_offset(a.x##_view), 0, (int)a.x##_view.row, nullptr, 0}
#endif

// q[row][d], 0 beyond the queries and the head; where nothing is rotated it ends with the copies that are committed
// next.
DEVICE void load_queries(const Arguments& a, const Place& place, storage_t* q) {
#if ROTARY
  const long long tables = (long long)place.batch * a.rotary_batch;
  constexpr int kAtOnce = 4;  // loads are not moved in front of stores that might meet their memory
  for (int from = threadIdx.x; from < place.rows * HEAD_SIZE; from += kAtOnce * THREADS) {
    float x[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int at = min(from + i * THREADS, place.rows * HEAD_SIZE - 1), row = at / HEAD_SIZE;
      const Rows of_head{a.q + place.offset(a.q_view, row), a.q_view};
      x[i] = RotatedRows{of_head, a.cos + tables, a.sin + tables}(row / GROUP, at % HEAD_SIZE);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int at = min(from + i * THREADS, place.rows * HEAD_SIZE - 1);
      from_compute(x[i], q[at / HEAD_SIZE * QK_PITCH + at % HEAD_SIZE]);
    }
  }
#else
#pragma unroll
  for (int i = threadIdx.x; i < ROWS * QK_PADDED / 8; i += THREADS) {
    const int row = i / (QK_PADDED / 8), d = i % (QK_PADDED / 8) * 8;
    const bool exists = row < place.rows && d < HEAD_SIZE;
    const long long at = place.offset(a.q_view, row) + row / GROUP * a.q_view.row + d;
    copy_async(q + row * QK_PITCH + d, a.q + (exists ? at : 0), exists);
  }
#endif
}

#if ROTARY
// The new keys among the KEYS from `first` on, rotated, to shared memory and to present, by one warp.
DEVICE void rotate_keys(const Arguments& a, const Place& place, const Source& of, storage_t* to, int first,
  const AddedRows<int>& rows, int keys) {
  const long long tables = (long long)place.batch * a.rotary_batch;
  const RotatedRows rotated{{a.k + place.kv_offset(a.k_view), a.k_view}, a.cos + tables, a.sin + tables};
#pragma unroll 1
  for (int key = max(first, rows.first); key < min(first + KEYS, keys); ++key) {
    const int own = rows.of(key);
    if (own < 0) break;
    constexpr int kOfThread = (QK_PADDED + 31) / 32;
    float x[kOfThread];
#pragma unroll
    for (int i = 0; i < kOfThread; ++i) x[i] = rotated(own, min(i * 32 + (int)threadIdx.x % 32, HEAD_SIZE - 1));
#pragma unroll
    for (int i = 0; i < kOfThread; ++i) {
      const int d = i * 32 + threadIdx.x % 32;
      storage_t stored;
      from_compute(d < HEAD_SIZE ? x[i] : 0.0f, stored);
      if (d < QK_PADDED) to[(key - first) * QK_PITCH + d] = stored;
      if (d < HEAD_SIZE) of.present[(long long)key * of.present_step + d] = stored;
    }
  }
}
#endif

// Tiles of a warp, to its stages.
struct Copies {
  const Arguments& a;
  const Place& place;
  const Source &k, &v;
  const AddedRows<int>& added;
  storage_t* const stages;
  const int keys, end;

  template <Part PART>
  DEVICE void copy(int first, int stage) const {
    storage_t* const to = stages + stage * STAGE_ELEMENTS;
    if (first >= end || PART == kAdded && first + KEYS <= added.first) return;
    copy_rows<HEAD_SIZE, QK_PADDED, ROTARY, PART>(to, k, first, added, keys);
    copy_rows<VALUE_SIZE, V_PADDED, false, PART>(to + KEYS * QK_PITCH, v, first, added, keys);
#if ROTARY
    if (PART != kCached) rotate_keys(a, place, k, to, first, added, keys);
#endif
  }
};

// What the block's warps have, to the blocks that add up the rows: row to block row % CLUSTER.
DEVICE void give(const Place& place, const float* partials, float* given, unsigned barrier) {
  for (int i = threadIdx.x; i < place.rows * VALUE_SIZE; i += THREADS) {
    const int row = i / VALUE_SIZE, column = i % VALUE_SIZE;
    float most, sum, value;
    add<WARPS>(partials + row * PARTIAL, place.rows * PARTIAL, column, most, sum, value);
    float* const to = given + (row / CLUSTER * CLUSTER + place.block) * PARTIAL;
    give_to_block(to + column, row % CLUSTER, value, barrier);
    if (column > 0) continue;
    give_to_block(to + V_PADDED, row % CLUSTER, most, barrier);
    give_to_block(to + V_PADDED + 1, row % CLUSTER, sum, barrier);
  }
}

// The block's rows of the result.
DEVICE void write_results(const Arguments& a, const Place& place, const float* given) {
  for (int i = threadIdx.x; i < ROWS_OF_BLOCK * VALUE_SIZE; i += THREADS) {
    const int own = i / VALUE_SIZE, row = own * CLUSTER + place.block, column = i % VALUE_SIZE;
    if (row >= place.rows) break;
    float most, sum, value;
    add<CLUSTER>(given + own * CLUSTER * PARTIAL, PARTIAL, column, most, sum, value);
    const float scale = sum == 0 && a.zero_where_nothing_is_seen ? 0.0f : 1.0f / sum;
    from_compute(value * scale, a.y[place.offset(a.y_view, row) + row / GROUP * a.y_view.row + column]);
  }
}

extern "C" __global__ void
#if CLUSTER > 1
__cluster_dims__(CLUSTER, 1, 1)
#endif
  __launch_bounds__(THREADS + 32 * WRITERS, MIN_BLOCKS) decode(const Arguments a) {
  extern __shared__ __align__(16) uint4 shared[];
  const unsigned barrier = shared_address(shared);  // in the first 16 bytes
  storage_t* const q = (storage_t*)(shared + 1);  // [ROWS][QK_PITCH]
  float* const given = (float*)(q + ROWS * QK_PITCH);  // [ROWS_OF_BLOCK][CLUSTER][PARTIAL]
  storage_t* const of_warps = (storage_t*)(given + (ROWS_OF_BLOCK * CLUSTER * PARTIAL + 3) / 4 * 4);
  storage_t* const stages = of_warps + threadIdx.x / 32 * (STAGES * STAGE_ELEMENTS);
  float* const partials = (float*)(of_warps + WARPS * (STAGES * STAGE_ELEMENTS));  // [WARPS][rows][PARTIAL]
  const Place place(a);
  const int own_rows = (place.rows - place.block + CLUSTER - 1) / CLUSTER;  // that this block adds up
  if (threadIdx.x == 0) {
    init_barrier(barrier, 1);
    fence_barriers();
    if (own_rows > 0) expect_bytes(barrier, own_rows * (CLUSTER * (VALUE_SIZE + 2) * 4));
  }
  __syncwarp();
  begin_cluster();
  const Source k = SOURCE(k, key), v = SOURCE(v, value);
  const int keys = (int)a.keys;
#if HAS_PAST
  if (!a.cache_is_there) grid_dependency_wait();
#elif SEES_POSITION
  grid_dependency_wait();
#endif
  const AddedRows<int> added(a, place.batch);
#if HAS_PAST
  if (threadIdx.x >= THREADS) {
    grid_dependency_wait();
    const bool stays = HAS_POSITION && k.past == k.present && v.past == v.present;
    const int begin = stays ? added.first / KEYS * KEYS : 0, end = stays ? min(keys, added.first + added.count) : keys;
    const int of_warp = (place.block * WRITERS + (threadIdx.x - THREADS) / 32) * KEYS;
#pragma unroll 1
    for (int first = begin + of_warp; first < end; first += CLUSTER * WRITERS * KEYS) {
      copy_to_present<HEAD_SIZE, ROTARY>(k, first, added, keys);
      copy_to_present<VALUE_SIZE, false>(v, first, added, keys);
    }
    __syncwarp();
    if (CLUSTER > 1) wait_cluster();
    return;
  }
#endif
  // What any of the queries sees; new keys are rotated for present, too.
  const Keys seen(a, place.batch);
  const int seen_from = seen.first(0), seen_to = seen.last((int)a.queries - 1);
#if ROTARY
  const int begin = min(seen_from, added.first) / KEYS * KEYS,
            end = HAS_POSITION ? max(seen_to, min(keys, added.first + added.count)) : keys;
#else
  const int begin = seen_from / KEYS * KEYS, end = seen_to;
#endif
  constexpr int step = CLUSTER * WARPS * KEYS;
  int first = begin + (place.block * WARPS + threadIdx.x / 32) * KEYS;
  const Copies copies{a, place, k, v, added, stages, keys, end};
#if HAS_PAST
#pragma unroll
  for (int stage = 0; stage < STAGES; ++stage) copies.copy<kCached>(first + stage * step, stage);
#endif
#if ROTARY
  for (int i = threadIdx.x; i < ROWS * QK_PITCH / 8; i += THREADS) ((uint4*)q)[i] = make_uint4(0, 0, 0, 0);
  sync_computing();
#endif
  WarpTile tile(a, seen, place.batch, place.head);

  grid_dependency_wait();
  load_queries(a, place, q);
#pragma unroll
  for (int stage = 0; stage < STAGES; ++stage) copies.copy<kAdded>(first + stage * step, stage);
  commit_copies();
  wait_copies<0>();
  sync_computing();
  int stage = 0;
#pragma unroll 1
  for (; first < end; first += step) {
    storage_t* const from = stages + stage * STAGE_ELEMENTS;
    if (first + KEYS > seen_from && first < seen_to) tile.take(q, from, first);
    __syncwarp();
    copies.copy<kAll>(first + STAGES * step, stage);
    commit_copies();
    stage = stage + 1 == STAGES ? 0 : stage + 1;
    wait_copies<STAGES - 1>();
    __syncwarp();
  }
  tile.store(partials + threadIdx.x / 32 * (place.rows * PARTIAL), place.rows);
  sync_computing();
  if (CLUSTER > 1) wait_cluster();  // there are no blocks to give to before they have started
  give(place, partials, given, barrier);
  if (own_rows <= 0) return;
#if CLUSTER > 1
  wait_given(barrier);
#else
  sync_computing();
#endif
  write_results(a, place, given);
}
