// s[i, j] = scale sum over d of q[i, d] k[j, d], then softcap and mask       of one batch and head
// y[i, e] = sum over j of p[i, j] v[j, e],  p[i, j] = exp(s[i, j] - m[i]) / l[i],  m = max over j of s, l its sum of
// exp
//
// The text in front of this one is generated for the node at hand (table.cc, flash.cc): head sizes, the tile
// configuration and what there is as macros, Arguments; mma.cuh and softmax.cuh.
//
// Softmax over tiles of keys as they come (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018;
// Dao, "FlashAttention-2", 2023). A block has ROWS queries, each of its warps M_TILES times 16 of them, whose sums stay
// in registers; tiles of BLOCK_N keys and values pass through two stages of shared memory. Where blocks are few, GROUPS
// of so many warps each take every so many'th tile, and the first adds up what they have. Both products run on
// mma.sync, accumulated in fp32; exponents are of base 2. Rows of shared memory are 16 bytes longer than their octets,
// so that the eight rows of an ldmatrix lie in different banks. An octet is 16 bytes: OCTET elements, eight or in fp32,
// whose products are TF32's, four. IS_EXACT, each of these is three (split_tf32), and as tensor cores cut off sums,
// too, these are short, of CHUNK MMAs or a tile of keys, and added up outside of them.

#define ROWS (16 * M_TILES * WARPS)
#define GROUP_THREADS (WARPS * 32)
#define THREADS (GROUPS * GROUP_THREADS)
#define THREAD_OF(count) (count == THREADS ? threadIdx.x : threadIdx.x % count)
#define IS_TF32 (OCTET == 4)
#define K_STEP (2 * OCTET)  // of an MMA
#define QK_PADDED ((HEAD_SIZE + 15) / 16 * 16)  // with zeros behind the head
#define V_PADDED ((VALUE_SIZE + 15) / 16 * 16)
#define QK_PITCH (QK_PADDED + OCTET)
#define V_PITCH (V_PADDED + OCTET)
#define STAGE_ELEMENTS (BLOCK_N * (QK_PITCH + V_PITCH))
#define PARTIAL (V_PADDED / 4 + 2)  // what a thread has of a row: values, the maximum, the sum
#define KEEPS_QUERIES (!IS_EXACT && (!IS_TF32 || QK_PADDED <= 128))  // in registers
#define PARTS (1 + IS_EXACT)  // of a factor: itself and its rest
#define CHUNK (QK_PADDED % 32 == 0 ? 4 : 2)

// COPY elements to shared memory, or zeros.
DEVICE void copy(storage_t* to, const storage_t* from, bool exists) {
#if COPY == OCTET
  copy_async(to, from, exists);
#elif COPY > 1 || IS_TF32
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"((unsigned)__cvta_generic_to_shared(to)), "l"(from),
    "n"(COPY * 16 / OCTET), "r"(exists ? COPY * 16 / OCTET : 0)
    : "memory");
#else
  Vector<storage_t, 1> one;
  load_if(exists, one, from);
  one.store(to);
#endif
}

DEVICE void sync_group() {
  if (GROUPS == 1) return __syncthreads();
  asm volatile("bar.sync %0, %1;" ::"r"(threadIdx.x / GROUP_THREADS + 1), "n"(GROUP_THREADS) : "memory");
}

// The first `rows` of TILE_ROWS rows of a tensor, zeros in place of the others and behind WIDTH, by COPIERS threads.
template <int COPIERS, int TILE_ROWS, int WIDTH, int PADDED>
DEVICE void copy_rows(storage_t* to, const storage_t* from, long long stride, int rows) {
  constexpr unsigned kCopies = PADDED / COPY;
#pragma unroll(COPY == 1 ? 1 : 64)  // what passes through registers, one after the other
  for (unsigned i = 0; i < (TILE_ROWS * kCopies + COPIERS - 1) / COPIERS; ++i) {
    const unsigned at = i * COPIERS + THREAD_OF(COPIERS), row = at / kCopies, column = at % kCopies * COPY;
    if (TILE_ROWS * kCopies % COPIERS != 0 && row >= TILE_ROWS) break;
    const bool exists = (int)row < rows && column < WIDTH;
    copy(to + row * (PADDED + OCTET) + column, exists ? from + row * stride + column : from, exists);
  }
}

#if ROTARY
// The first 2 * PAIRS elements of TILE_ROWS rows in shared memory, rotated by cos and sin [row, pair] and rounded. Each
// thread has some chunks of neighbouring pairs. It loads its part of the tables before the rows are there, where it has
// the registers.
template <int ROTATORS, int TILE_ROWS>
struct Rotation {
  static constexpr int kMost = IS_INTERLEAVED ? OCTET / 2 : OCTET;  // so that elements are read in 16 bytes at most
  static constexpr int kCommon = PAIRS & -PAIRS, kPairs = kCommon < kMost ? kCommon : kMost;
  static constexpr int kChunks = PAIRS / kPairs;  // of a row
  static constexpr int kOwn = (TILE_ROWS * kChunks + ROTATORS - 1) / ROTATORS;
  static constexpr bool kIsEarly = HEAD_SIZE <= 128;
  const table_t *const cosines, *const sines;
  const int count;
  Vector<table_t, kPairs> cos[kIsEarly ? kOwn : 1], sin[kIsEarly ? kOwn : 1];

  // Of the rows of a tile from the first position on, of which so many exist.
  DEVICE Rotation(const table_t* cosines, const table_t* sines, long long first, int count)
    : cosines(cosines + first * PAIRS), sines(sines + first * PAIRS), count(count) {
#pragma unroll
    for (int i = 0; kIsEarly && i < kOwn; ++i) load(i, i);
  }

  DEVICE void load(int i, int to) {
    const int at = i * ROTATORS + THREAD_OF(ROTATORS);
    const bool exists = at / kChunks < count;
    load_if(exists, cos[to], cosines + (exists ? at * kPairs : 0));
    load_if(exists, sin[to], sines + (exists ? at * kPairs : 0));
  }

  DEVICE void apply(storage_t* rows) {
#pragma unroll(kIsEarly ? kOwn : 1)
    for (int i = 0; i < kOwn; ++i) {
      const int at = i * ROTATORS + THREAD_OF(ROTATORS);
      if (TILE_ROWS * kChunks % ROTATORS != 0 && at >= TILE_ROWS * kChunks) break;
      if (!kIsEarly) load(i, 0);
      storage_t* const row = rows + at / kChunks * QK_PITCH;
#if IS_INTERLEAVED
      Vector<storage_t, 2 * kPairs> x;
      storage_t* const to = row + at % kChunks * (2 * kPairs);
      load_shared(x, to);
#pragma unroll
      for (int p = 0; p < kPairs; ++p) {
        storage_t first, second;
        rotate(kIsEarly ? i : 0, p, x[2 * p], x[2 * p + 1], first, second);
        x.set(2 * p, first);
        x.set(2 * p + 1, second);
      }
      x.store(to);
#else
      Vector<storage_t, kPairs> x, y;
      storage_t* const to = row + at % kChunks * kPairs;
      load_shared(x, to);
      load_shared(y, to + PAIRS);
#pragma unroll
      for (int p = 0; p < kPairs; ++p) {
        storage_t first, second;
        rotate(kIsEarly ? i : 0, p, x[p], y[p], first, second);
        x.set(p, first);
        y.set(p, second);
      }
      x.store(to);
      y.store(to + PAIRS);
#endif
    }
  }

  DEVICE void rotate(int i, int p, storage_t first, storage_t second, storage_t& x, storage_t& y) const {
    const float c = to_compute(cos[i][p]), s = to_compute(sin[i][p]), a = to_compute(first), b = to_compute(second);
    from_compute(a * c - b * s, x);
    from_compute(b * c + a * s, y);
  }
};
#endif

// Of fp32 what MMAs take.
DEVICE void to_factor(unsigned (&x)[PARTS][4], int i, float of) {
#if IS_EXACT
  split_tf32(of, x[0][i], x[1][i]);
#else
  x[0][i] = to_tf32(of);
#endif
}

// A thread's part of four matrices of eight rows and an octet, for products.
DEVICE void load_factors(unsigned (&x)[PARTS][4], const storage_t* from) {
  load_matrices(x[0], from);
#pragma unroll
  for (int i = 0; IS_TF32 && i < 4; ++i) to_factor(x, i, __uint_as_float(x[0][i]));
}

// The queries of a warp as factors: in registers or, where these are too few, read anew for each tile of keys.
struct Queries {
  const storage_t* const own;
  unsigned words[M_TILES][QK_PADDED / K_STEP][PARTS][4];

  DEVICE explicit Queries(const storage_t* rows)
    : own(rows + (THREAD_OF(GROUP_THREADS) / 32 * (16 * M_TILES) + threadIdx.x % 16) * QK_PITCH +
        threadIdx.x % 32 / 16 * OCTET) {
#pragma unroll
    for (int m = 0; KEEPS_QUERIES && m < M_TILES; ++m)
#pragma unroll
      for (int d = 0; d < QK_PADDED / K_STEP; ++d) load_factors(words[m][d], own + m * 16 * QK_PITCH + d * K_STEP);
  }
  DEVICE void load(unsigned (&x)[PARTS][4], int m, int d) const {
    if (!KEEPS_QUERIES) return load_factors(x, own + m * 16 * QK_PITCH + d * K_STEP);
#pragma unroll
    for (int i = 0; i < 4; ++i) x[0][i] = words[m][d][0][i];
  }
};

// A thread's part of K_STEP values in 16 columns. In fp32 from where its own first element lies: two keys in two
// columns.
DEVICE void load_values(unsigned (&x)[PARTS][4], const storage_t* from) {
#if IS_TF32
  const float2 even = *(const float2*)from, odd = *(const float2*)(from + V_PITCH);
  to_factor(x, 0, even.x), to_factor(x, 1, odd.x), to_factor(x, 2, even.y), to_factor(x, 3, odd.y);
#else
  load_transposed(x[0], from);
#endif
}

#if IS_EXACT
// The products of a few MMAs, in 16 columns.
struct Products {
  float high[2][4] = {}, rests[2][4] = {};
  DEVICE void add(const unsigned (&a)[2][4], const unsigned (&b)[2][4]) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      mma(rests[n], a[1], b[0][2 * n], b[0][2 * n + 1]);
      mma(high[n], a[0], b[0][2 * n], b[0][2 * n + 1]);
      mma(rests[n], a[0], b[1][2 * n], b[1][2 * n + 1]);
    }
  }
  DEVICE void add_to(float (*sums)[4]) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) sums[i / 4][i % 4] += high[i / 4][i % 4] + rests_of(rests[i / 4][i % 4]);
  }
};
#endif

// The queries of a warp. A thread has of each 16 rows the rows lane / 4 and 8 more, and of each eight columns two.
//
// In fp32 the MMAs' K columns t and t + 4 stand for the keys 2t and 2t + 1, which a thread has of the scores, and the
// columns n of two neighbouring sums for the columns 2n and 2n + 1 of 16: then a thread has what lies side by side.
struct WarpTile {
  const int row;  // the thread's first
  float sums[M_TILES][V_PADDED / 8][4], row_max[M_TILES][2], row_sum[M_TILES][2];
  const float scale, exponent_scale, softcap;
#if MASK
  const mask_t* mask[M_TILES][2];
  long long mask_step;
#endif

  DEVICE WarpTile(const Arguments& a, int first_row, long long batch, long long head)
    : row(first_row + THREAD_OF(GROUP_THREADS) / 32 * (16 * M_TILES) + threadIdx.x % 32 / 4),
      scale((float)a.scale),
      exponent_scale(SCALE_IS_LATE ? (float)a.scale * LOG2_E : 1.0f),
      softcap((float)a.softcap) {
#pragma unroll
    for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
      for (int n = 0; n < V_PADDED / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[m][n][i] = 0;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        row_max[m][half] = -INFINITE;
        row_sum[m][half] = 0;
#if MASK
        const long long there = min((long long)row_of(m, half), a.queries - 1);
        mask[m][half] =
          a.mask + a.mask_view.offset + batch * a.mask_view.batch + head * a.mask_view.head + there * a.mask_view.row;
#endif
      }
    }
#if MASK
    mask_step = a.mask_view.column;
#endif
  }
  DEVICE int row_of(int m, int half) const { return row + m * 16 + half * 8; }

  // Scores of BLOCK_N keys.
  typedef float Scores[M_TILES][BLOCK_N / 8][4];

  // Of a tile at the edge only the first `count` keys are seen.
  template <bool EDGE>
  DEVICE void multiply_keys(Scores& scores, const Queries& q, const storage_t* k, int count) {
    const int lane = threadIdx.x % 32;
    const storage_t* const from = k + (lane / 16 * 8 + lane % 8) * QK_PITCH + lane / 8 % 2 * OCTET;
#pragma unroll
    for (int n = 0; n < BLOCK_N / 16; ++n) {
#pragma unroll
      for (int m = 0; m < M_TILES; ++m)
#pragma unroll
        for (int i = 0; i < 4; ++i) scores[m][2 * n][i] = scores[m][2 * n + 1][i] = 0;
#if !IS_EXACT
      if (EDGE && n * 16 >= count) continue;
#pragma unroll
      for (int d = 0; d < QK_PADDED / K_STEP; ++d) {
        unsigned b[1][4];
        load_factors(b, from + n * 16 * QK_PITCH + d * K_STEP);
#pragma unroll
        for (int m = 0; m < M_TILES; ++m) {
          unsigned a[1][4];
          q.load(a, m, d);
          mma(scores[m][2 * n], a[0], b[0][0], b[0][1]);
          mma(scores[m][2 * n + 1], a[0], b[0][2], b[0][3]);
        }
      }
    }
#else
    }
#pragma unroll 1
    for (int chunk = 0; chunk < QK_PADDED / K_STEP; chunk += CHUNK) {
      Products products[BLOCK_N / 16];
#pragma unroll
      for (int d = chunk; d < chunk + CHUNK; ++d) {
        unsigned a[2][4], b[2][4];
        q.load(a, 0, d);
#pragma unroll
        for (int n = 0; n < BLOCK_N / 16; ++n) {
          load_factors(b, from + n * 16 * QK_PITCH + d * K_STEP);
          products[n].add(a, b);
        }
      }
#pragma unroll
      for (int n = 0; n < BLOCK_N / 16; ++n) products[n].add_to(&scores[0][2 * n]);
    }
#endif
  }

  DEVICE float score(float product, int m, int half, int key, bool is_seen) const {
    if (SCALE_IS_LATE) return product;
    product *= scale;
#if HAS_SOFTCAP
    product = softcap - 2 * softcap / (exp2_of(product * (2 * LOG2_E / softcap)) + 1);
#endif
#if MASK
    if (is_seen) {
#if IS_BOOL_MASK
      if (!to_compute(mask[m][half][key * mask_step])) product = -INFINITE;
#else
      product += to_compute(mask[m][half][key * mask_step]);
#endif
    }
#endif
    return exponent_of(product);
  }

  // Products become exponentials, whose maxima and sums are kept; what was summed before shrinks where they grow.
  template <bool EDGE>
  DEVICE void soften(Scores& scores, const Keys& seen, int first_key) {
#pragma unroll
    for (int m = 0; m < M_TILES; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int from = seen.first(row_of(m, half)), to = seen.last(row_of(m, half));
        float most = row_max[m][half];
#pragma unroll
        for (int n = 0; n < BLOCK_N / 8; ++n)
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const int key = first_key + n * 8 + threadIdx.x % 4 * 2 + i;
            const bool is_seen = !EDGE || (key >= from && key < to);
            float& s = scores[m][n][half * 2 + i];
            s = score(s, m, half, key, is_seen);
            if (EDGE && !is_seen) s = -INFINITE;
            most = fmaxf(most, s);
          }
        most = max_of_row(most);
        // A row in which nothing is seen yet has exponentials of 0.
        const float base = most == -INFINITE ? 0.0f : most * exponent_scale;
        const float factor = exp2_of(fmaf(row_max[m][half], exponent_scale, -base));
        row_max[m][half] = most;
        float sum = 0;
#pragma unroll
        for (int n = 0; n < BLOCK_N / 8; ++n)
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            float& s = scores[m][n][half * 2 + i];
            s = exp2_of(fmaf(s, exponent_scale, -base));
            sum += s;
          }
        row_sum[m][half] = row_sum[m][half] * factor + sum;
#pragma unroll
        for (int n = 0; n < V_PADDED / 8; ++n) {
          sums[m][n][half * 2] *= factor;
          sums[m][n][half * 2 + 1] *= factor;
        }
      }
  }

  template <bool EDGE>
  DEVICE void add_values(const Scores& scores, const storage_t* v, int count) {
    const int lane = threadIdx.x % 32;
    const storage_t* const from =
      v + (IS_TF32 ? lane % 4 * 2 * V_PITCH + lane / 4 * 2 : lane % 16 * V_PITCH + lane / 16 * 8);
#if IS_EXACT
    unsigned p[BLOCK_N / K_STEP][2][4];
#pragma unroll
    for (int n = 0; n < BLOCK_N / K_STEP; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) to_factor(p[n], i, scores[0][n][i % 2 * 2 + i / 2]);
#pragma unroll
    for (int e = 0; e < V_PADDED / 16; ++e) {
      Products products;
#pragma unroll
      for (int n = 0; n < BLOCK_N / K_STEP; ++n) {
        unsigned b[2][4];
        load_values(b, from + n * K_STEP * V_PITCH + e * 16);
        products.add(p[n], b);
      }
      products.add_to(&sums[0][2 * e]);
    }
#else
#pragma unroll
    for (int n = 0; n < BLOCK_N / K_STEP; ++n) {
      if (EDGE && n * K_STEP >= count) break;
      unsigned p[M_TILES][4];
#pragma unroll
      for (int m = 0; m < M_TILES; ++m)
#pragma unroll
        for (int i = 0; i < 4; ++i)
#if IS_TF32
          p[m][i] = to_tf32(scores[m][n][i % 2 * 2 + i / 2]);
#else
          p[m][i] = pack(scores[m][2 * n + i / 2][i % 2 * 2], scores[m][2 * n + i / 2][i % 2 * 2 + 1]);
#endif
#pragma unroll
      for (int e = 0; e < V_PADDED / 16; ++e) {
        unsigned b[1][4];
        load_values(b, from + n * K_STEP * V_PITCH + e * 16);
#pragma unroll
        for (int m = 0; m < M_TILES; ++m) {
          mma(sums[m][2 * e], p[m], b[0][0], b[0][1]);
          mma(sums[m][2 * e + 1], p[m], b[0][2], b[0][3]);
        }
      }
    }
#endif
  }

  template <bool EDGE>
  DEVICE void take(const Queries& q, const storage_t* stage, const Keys& seen, int first_key) {
    Scores scores;
    // Of the keys from first_key on, what the warp's last query sees.
    const int count = seen.last(row - threadIdx.x % 32 / 4 + 16 * M_TILES - 1) - first_key;
    if (IS_EXACT && EDGE && count <= 0) return;
    multiply_keys<EDGE>(scores, q, stage, count);
    soften<EDGE>(scores, seen, first_key);
    add_values<EDGE>(scores, stage + BLOCK_N * QK_PITCH, count);
  }

  // What the warps of a group have, for the first group: [number][thread], without conflicts of banks.
  template <typename Each>
  DEVICE void pass(const Each& each) {
    int at = THREAD_OF(GROUP_THREADS);
#pragma unroll
    for (int m = 0; m < M_TILES; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        each(m, half, at);
        at += PARTIAL * GROUP_THREADS;
      }
  }
  DEVICE void give(float* partial) {
    pass([&](int m, int half, int at) {
      partial[at] = row_max[m][half];
      partial[at + GROUP_THREADS] = row_sum[m][half];
#pragma unroll
      for (int i = 0; i < V_PADDED / 4; ++i) partial[at + (i + 2) * GROUP_THREADS] = sums[m][i / 2][half * 2 + i % 2];
    });
  }
  DEVICE void add(const float* partial) {
    pass([&](int m, int half, int at) {
      const float other = partial[at], most = fmaxf(row_max[m][half], other);
      const float base = most == -INFINITE ? 0.0f : most * exponent_scale;
      const float own = exp2_of(fmaf(row_max[m][half], exponent_scale, -base));
      const float factor = exp2_of(fmaf(other, exponent_scale, -base));
      row_max[m][half] = most;
      row_sum[m][half] = row_sum[m][half] * own + partial[at + GROUP_THREADS] * factor;
#pragma unroll
      for (int i = 0; i < V_PADDED / 4; ++i) {
        float& sum = sums[m][i / 2][half * 2 + i % 2];
        sum = sum * own + partial[at + (i + 2) * GROUP_THREADS] * factor;
      }
    });
  }

  // Adds up in the first group what all have, in place of tiles.
  DEVICE void join(float* partials, int group) {
    constexpr int kPartial = 2 * M_TILES * PARTIAL * GROUP_THREADS;
    __syncthreads();  // all tiles have been read
    if (group > 0) give(partials + (group - 1) * kPartial);
    __syncthreads();
#pragma unroll
    for (int other = 0; group == 0 && other < GROUPS - 1; ++other) add(partials + other * kPartial);
  }

  // Through shared memory, the rows of this warp alone, to write whole lines.
  DEVICE void store(storage_t* shared, storage_t* y, long long stride, int first_row, int queries, bool zero) {
    const int lane = threadIdx.x % 32, first = THREAD_OF(GROUP_THREADS) / 32 * (16 * M_TILES);
#pragma unroll
    for (int m = 0; m < M_TILES; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float sum = sum_of_row(row_sum[m][half]);
        const float scale = sum == 0 && zero ? 0.0f : 1.0f / sum;
        storage_t* const row = shared + (first + m * 16 + half * 8 + lane / 4) * V_PITCH;
#if IS_TF32
#pragma unroll
        for (int e = 0; e < V_PADDED / 16; ++e) {
          const float (&low)[4] = sums[m][2 * e], (&high)[4] = sums[m][2 * e + 1];
          ((float4*)row)[e * 4 + lane % 4] = make_float4(
            low[half * 2] * scale, high[half * 2] * scale, low[half * 2 + 1] * scale, high[half * 2 + 1] * scale);
        }
#else
#pragma unroll
        for (int n = 0; n < V_PADDED / 8; ++n)
          ((unsigned*)row)[n * 4 + lane % 4] = pack(sums[m][n][half * 2] * scale, sums[m][n][half * 2 + 1] * scale);
#endif
      }
    __syncwarp();
    constexpr int kCopies = VALUE_SIZE / COPY;
#pragma unroll 4
    for (int i = lane; i < 16 * M_TILES * kCopies; i += 32) {
      const int at = first + i / kCopies, column = i % kCopies * COPY;
      Vector<storage_t, COPY> some;
      load_shared(some, shared + at * V_PITCH + column);
      if (first_row + at < queries) some.store(y + at * stride + column);
    }
  }
};

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) flash(const Arguments a) {
  extern __shared__ __align__(16) uint4 shared[];
  storage_t* const rows = (storage_t*)shared;  // queries, and at the end results
  storage_t* const of_groups = rows + ROWS * (QK_PITCH > V_PITCH ? QK_PITCH : V_PITCH);
  const int group = GROUPS == 1 ? 0 : threadIdx.x / GROUP_THREADS;
  storage_t* const stages = of_groups + group * 2 * STAGE_ELEMENTS;
  // With causal attention the tiles of most keys come first.
  const int queries = (int)a.queries;
  const unsigned tiles = (queries + ROWS - 1) / ROWS, blocks = gridDim.x / tiles, heads = (unsigned)a.heads;
  const int tile = IS_CAUSAL ? tiles - 1 - blockIdx.x / blocks : blockIdx.x % tiles;
  const unsigned both = IS_CAUSAL ? blockIdx.x % blocks : blockIdx.x / tiles;
  const long long batch = both / heads, head = both % heads, key_head = head / (unsigned)a.group;
  const int first_row = tile * ROWS, last_row = min(first_row + ROWS, queries) - 1;
  if (SEES_POSITION) grid_dependency_wait();
  const Keys seen(a, batch);
  const int begin = (seen.first(first_row) / BLOCK_N + group) * BLOCK_N, end = seen.last(last_row);

  const storage_t* const q = a.q + a.q_view.offset + batch * a.q_view.batch + head * a.q_view.head;
  const storage_t* const k = a.k + a.k_view.offset + batch * a.k_view.batch + key_head * a.k_view.head;
  const storage_t* const v = a.v + a.v_view.offset + batch * a.v_view.batch + key_head * a.v_view.head;
  const auto copy_tile = [&](int key, int stage) {
    storage_t* const to = stages + stage * STAGE_ELEMENTS;
    copy_rows<GROUP_THREADS, BLOCK_N, HEAD_SIZE, QK_PADDED>(to, k + key * a.k_view.row, a.k_view.row, seen.keys - key);
    copy_rows<GROUP_THREADS, BLOCK_N, VALUE_SIZE, V_PADDED>(
      to + BLOCK_N * QK_PITCH, v + key * a.v_view.row, a.v_view.row, seen.keys - key);
  };

  grid_dependency_wait();
  copy_rows<THREADS, ROWS, HEAD_SIZE, QK_PADDED>(rows, q + first_row * a.q_view.row, a.q_view.row, queries - first_row);
  commit_copies();
  if (begin < end) copy_tile(begin, 0);
  commit_copies();
#if ROTARY
  const table_t *const cos = a.cos + batch * a.rotary_batch, *const sin = a.sin + batch * a.rotary_batch;
  Rotation<THREADS, ROWS> of_queries(cos, sin, first_row, queries - first_row);
#endif
  wait_copies<1>();
  __syncthreads();
#if ROTARY
  of_queries.apply(rows);
  __syncthreads();
#endif

  const Queries of_q(rows);
  WarpTile warp(a, first_row, batch, head);
  int stage = 0;
#pragma unroll 1
  for (int key = begin; key < end; key += GROUPS * BLOCK_N) {
#if ROTARY && ROTATES_KEYS
    Rotation<GROUP_THREADS, BLOCK_N> of_keys(cos, sin, key, seen.keys - key);
#endif
    wait_copies<0>();
    sync_group();  // this stage is there, and nobody reads the other one any more
    if (key + GROUPS * BLOCK_N < end) copy_tile(key + GROUPS * BLOCK_N, stage ^ 1);
    commit_copies();
    storage_t* const from = stages + stage * STAGE_ELEMENTS;
#if ROTARY && ROTATES_KEYS
    of_keys.apply(from);
    sync_group();
#endif
    if (key >= seen.first(last_row) && key + BLOCK_N <= seen.last(first_row))
      warp.take<false>(of_q, from, seen, key);
    else
      warp.take<true>(of_q, from, seen, key);
    stage ^= 1;
  }
  if (GROUPS > 1) warp.join((float*)of_groups, group);
  if (group > 0) return;
  // Each warp's rows of the queries are its own, and have been read.
  __syncwarp();
  storage_t* const y = a.y + a.y_view.offset + batch * a.y_view.batch + head * a.y_view.head;
  if (QK_PITCH != V_PITCH) sync_group();
  warp.store(rows, y + first_row * a.y_view.row, a.y_view.row, first_row, queries, a.zero_where_nothing_is_seen);
}
