// Layer and RMS normalisation of S, [outer, HEIGHT, groups, RUN], over HEIGHT and RUN, with a pointwise prologue and
// epilogue: GroupNorm of channels last, norms of channels that are not the last axis, rows too long for one block.
//
//   s = prologue(inputs)                                               pointwise
//   m = mean of s, v = mean of (s - m)^2                               in compute_t (float; double for double)
//   n = (s - m) / sqrt(v + EPSILON)                                    RMS: m = 0
//   results = epilogue(s, n, inputs)                                   pointwise
//
// Tensors are matrices of outer * HEIGHT rows of WIDTH = groups * RUN columns. A tile is HEIGHT rows of GROUPS groups
// side by side, so that whole sectors are read: ACCESSES accesses of VECTOR columns in each row, TILES tiles beside
// each other. CHUNKS blocks share a tile, CHUNK accesses each, counted along its rows. ONE_READ: they are a cluster,
// and keep s in shared memory until its moments are known. Else two kernels read it, the first for moments of each
// chunk.
//
// The text in front of this one is generated for the node at hand (norm_tiles.cc), as for layer_norm.cu.

// Of several groups a thread keeps to its columns; THREADS and CHUNK are multiples of ACCESSES then. Of an access
// SPAN neighbours surely belong to one group; PARTS such spans have moments of their own.
#define SEVERAL (GROUPS > 1)
#define PARTS (VECTOR / SPAN)
#define LANES (SEVERAL ? ACCESSES : 1)
#define SLOTS ((THREADS / 2 > LANES ? THREADS / 2 : LANES) * PARTS)

typedef Vector<held_t, VECTOR> Held;

// 1 / sqrt(squares / (HEIGHT RUN) + EPSILON), within two units in the last place.
DEVICE compute_t scale_of(compute_t squares) {
  return rsqrt(squares * ((compute_t)1 / ((compute_t)HEIGHT * (compute_t)RUN)) + (compute_t)EPSILON);
}

// a / b for counts, without the branches of a general division.
DEVICE float ratio(float a, float b) { return __fdividef(a, b); }
DEVICE double ratio(double a, double b) {
  double reciprocal = __fdividef(1.0f, (float)b);
#pragma unroll
  for (int step = 0; step < 2; ++step) reciprocal = fma(reciprocal, fma(-b, reciprocal, 1.0), reciprocal);
  return a * reciprocal;
}

// Count, mean and sum of squared deviations of a set of elements, joined as in Chan, Golub and LeVeque, "Algorithms
// for computing the sample variance", 1983. For RMS the mean stays 0 and `squares` is the sum of squares.
struct Moments {
  compute_t count, mean, squares;

  DEVICE void join(const Moments& other) {
    const compute_t total = count + other.count;
    if (!IS_RMS && other.count > 0) {
      const compute_t delta = other.mean - mean, share = ratio(other.count, total);
      mean += delta * share;
      squares += delta * (delta * (count * share));
    }
    squares += other.squares;
    count = total;
  }
};

// What a block has of a tile.
struct Piece {
  unsigned tile, chunk;
  row_t row;  // the tile's first
  int column, first, last;  // the tile's first column; the block's accesses
  DEVICE Piece()
    : tile(blockIdx.x / CHUNKS),
      chunk(blockIdx.x % CHUNKS),
      row((row_t)(tile / TILES) * HEIGHT),
      column((int)(tile % TILES) * ACCESSES * VECTOR),
      first((int)chunk * CHUNK),
      last(end_of(chunk)) {}
  DEVICE static int end_of(int chunk) {
    return (chunk + 1) * CHUNK < HEIGHT * ACCESSES ? (chunk + 1) * CHUNK : HEIGHT * ACCESSES;
  }
  // How many elements of each group the chunk has.
  DEVICE static compute_t count_of(int chunk) {
    const int accesses = end_of(chunk) - chunk * CHUNK;
    return (compute_t)(SEVERAL ? accesses / ACCESSES * RUN : accesses * VECTOR);
  }
  DEVICE row_t row_of(int access) const { return row + access / ACCESSES; }
  DEVICE int column_of(int access) const { return column + (SEVERAL ? (int)threadIdx.x : access) % ACCESSES * VECTOR; }
  // A row's last tile may have more columns than the matrix.
  DEVICE bool has_thread() const { return !SEVERAL || column_of(0) < WIDTH; }
};

// s of the accesses at, at + THREADS, .. of which `count` are the block's. `stores`: results of the prologue too.
DEVICE void load_batch(const Arguments& args, const SharedOperands& shared_operands, const Piece& piece, int at,
  int count, bool stores, compute_t (&s)[BATCH][VECTOR]) {
  PrologueRow operands[BATCH];
#pragma unroll
  for (int b = 0; b < BATCH; ++b)
    if (b < count)
      operands[b].load(args, Offsets(args, piece.row_of(at + b * THREADS)), piece.column_of(at + b * THREADS));
#pragma unroll
  for (int b = 0; b < BATCH; ++b) {
    if (b >= count) continue;
    PrologueShared shared;
    PrologueResults results;
    shared.load(args, shared_operands, piece.column_of(at + b * THREADS));
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) s[b][j] = prologue(operands[b], shared, j, results);
    if (stores) results.store(args, Offsets(args, piece.row_of(at + b * THREADS)), piece.column_of(at + b * THREADS));
  }
}

DEVICE int batch_at(const Piece& piece, int at) {
  const int count = (piece.last - at + THREADS - 1) / THREADS;
  return count < BATCH ? count : BATCH;
}

// The moments of each part of the thread's accesses; s goes to `held` where it is kept.
DEVICE void take_moments(const Arguments& args, const Piece& piece, Held* held, Moments (&moments)[PARTS]) {
  const SharedOperands shared_operands(args);
  compute_t seen = 0, means[PARTS] = {}, squares[PARTS] = {};
  for (int at = piece.first + threadIdx.x; at < piece.last && piece.has_thread(); at += BATCH * THREADS) {
    const int count = batch_at(piece, at);
    compute_t s[BATCH][VECTOR];
    load_batch(args, shared_operands, piece, at, count, true, s);
#if ONE_READ
#pragma unroll
    for (int b = 0; b < BATCH; ++b) {
      if (b >= count) continue;
      Held kept;
#pragma unroll
      for (int j = 0; j < VECTOR; ++j) {
        held_t stored;
        from_compute(s[b][j], stored);
        kept.set(j, stored);
      }
      held[at - piece.first + b * THREADS] = kept;
    }
#endif
    // The batch's own mean first, then all so far joined with it.
    const compute_t added = (compute_t)(count * SPAN), inverse = ratio((compute_t)1, added);
    const compute_t share = ratio(added, seen + added), both = seen * share;
    seen += added;
#pragma unroll
    for (int p = 0; p < PARTS; ++p) {
      compute_t sum = 0, deviations = 0;
#pragma unroll
      for (int b = 0; b < BATCH; ++b)
#pragma unroll
        for (int j = 0; j < SPAN; ++j)
          if (!IS_RMS && b < count) sum += s[b][p * SPAN + j];
      const compute_t mean = sum * inverse, delta = mean - means[p];
#pragma unroll
      for (int b = 0; b < BATCH; ++b)
#pragma unroll
        for (int j = 0; j < SPAN; ++j)
          if (b < count) deviations = fma(s[b][p * SPAN + j] - mean, s[b][p * SPAN + j] - mean, deviations);
      means[p] += delta * share;
      squares[p] += deviations + delta * (delta * both);
    }
  }
#pragma unroll
  for (int p = 0; p < PARTS; ++p) moments[p] = {seen, means[p], squares[p]};
}

// Joins the moments of `rows` rows of `lanes` threads into those of row 0, always in the same order.
template <int N>
DEVICE void join_rows(Moments (&x)[N], Moments* slots, int row, int lane, int rows, int lanes) {
  while (rows > 1) {
    const int half = (rows + 1) / 2, slot = (row < half ? row : row - half) * lanes + lane;
    if (lane < lanes && row >= half && row < rows)
#pragma unroll
      for (int p = 0; p < N; ++p) slots[p * (SLOTS / PARTS) + slot] = x[p];
    __syncthreads();
    if (lane < lanes && row < rows - half)
#pragma unroll
      for (int p = 0; p < N; ++p) x[p].join(slots[p * (SLOTS / PARTS) + slot]);
    __syncthreads();
    rows = half;
  }
}

// The moments of each group of the tile, of what the block has of it: group g is thread g's, then g + THREADS, ..
struct BlockMoments {
  Moments* slots;
  DEVICE BlockMoments(Moments (&x)[PARTS], Moments* shared) : slots(shared) {
    int row = threadIdx.x / LANES, lane = threadIdx.x % LANES, rows = THREADS / LANES;
    if (LANES < 32 && 32 % LANES == 0 && THREADS % 32 == 0) {
#pragma unroll
      for (int distance = 16; distance >= LANES; distance /= 2)
#pragma unroll
        for (int p = 0; p < PARTS; ++p) {
          Moments other;
          other.count = __shfl_down_sync(0xffffffffu, x[p].count, distance);
          other.mean = __shfl_down_sync(0xffffffffu, x[p].mean, distance);
          other.squares = __shfl_down_sync(0xffffffffu, x[p].squares, distance);
          x[p].join(other);
        }
      row = threadIdx.x / 32, lane = threadIdx.x % 32, rows = THREADS / 32;
    }
    join_rows(x, slots, row, lane, rows, LANES);
    if (row == 0 && lane < LANES)
#pragma unroll
      for (int p = 0; p < PARTS; ++p) slots[lane * PARTS + p] = x[p];
    __syncthreads();
  }
  DEVICE Moments operator[](int group) const {
    const int spans = SEVERAL ? RUN / SPAN : 1;
    Moments x = slots[group * spans];
    for (int k = 1; k < spans; ++k) x.join(slots[group * spans + k]);
    return x;
  }
};

// What the elements of a tile's groups are normalised with.
struct Scales {
  compute_t mean[GROUPS], scale[GROUPS];
  DEVICE void set(int group, const Moments& x) {
    mean[group] = x.mean;
    scale[group] = scale_of(x.squares);
  }
};

DEVICE void normalize(const Arguments& args, const Piece& piece, const Held* held, const Scales& scales) {
  const SharedOperands shared_operands(args);
  compute_t mean[PARTS], scale[PARTS];
#pragma unroll
  for (int p = 0; p < PARTS; ++p) {
    const int group = SEVERAL ? ((int)threadIdx.x % ACCESSES * PARTS + p) / (RUN / SPAN) : 0;
    mean[p] = scales.mean[group];
    scale[p] = scales.scale[group];
  }
  for (int at = piece.first + threadIdx.x; at < piece.last && piece.has_thread(); at += BATCH * THREADS) {
    const int count = batch_at(piece, at);
    EpilogueRow operands[BATCH];
#pragma unroll
    for (int b = 0; b < BATCH; ++b)
      if (b < count)
        operands[b].load(args, Offsets(args, piece.row_of(at + b * THREADS)), piece.column_of(at + b * THREADS));
    compute_t s[BATCH][VECTOR];
#if ONE_READ
#pragma unroll
    for (int b = 0; b < BATCH; ++b) {
      if (b >= count) continue;
      const Held kept = held[at - piece.first + b * THREADS];
#pragma unroll
      for (int j = 0; j < VECTOR; ++j) s[b][j] = to_compute(kept[j]);
    }
#else
    load_batch(args, shared_operands, piece, at, count, false, s);
#endif
#pragma unroll
    for (int b = 0; b < BATCH; ++b) {
      if (b >= count) continue;
      const int column = piece.column_of(at + b * THREADS);
      EpilogueShared shared;
      EpilogueResults results;
      shared.load(args, shared_operands, column);
#pragma unroll
      for (int j = 0; j < VECTOR; ++j)
        epilogue(operands[b], shared, j, s[b][j], (s[b][j] - mean[j / SPAN]) * scale[j / SPAN], results);
      results.store(args, Offsets(args, piece.row_of(at + b * THREADS)), column);
    }
  }
}

#if ONE_READ

#if CLUSTER > 1
#define IN_CLUSTERS __attribute__((cluster_dims(CLUSTER, 1, 1)))
#else
#define IN_CLUSTERS
#endif

static_assert(CHUNK * sizeof(Held) <= HELD_BYTES, "the launch gives s less room than it takes");

extern "C" __global__ void IN_CLUSTERS __launch_bounds__(THREADS, MIN_BLOCKS) norm_tiles(const Arguments args) {
  extern __shared__ uint4 dynamic[];
  __shared__ Moments slots[SLOTS];
  __shared__ Scales scales;
  Held* const held = (Held*)dynamic;
  const Piece piece;
  begin_cluster();
  grid_dependency_wait();
  Moments moments[PARTS];
  take_moments(args, piece, held, moments);
  const BlockMoments found(moments, slots);
#if CLUSTER > 1
  __shared__ float2 shared_moments[CLUSTER][GROUPS];  // mean and squares of each block of the cluster
  wait_cluster();  // all have begun
  for (int group = threadIdx.x; group < GROUPS; group += THREADS) {
    const Moments x = found[group];
    for (int block = 0; block < CLUSTER; ++block)
      store_to_block(&shared_moments[piece.chunk][group].x, block, x.mean, x.squares);
  }
  arrive_cluster();
  wait_cluster();
  for (int group = threadIdx.x; group < GROUPS; group += THREADS) {
    Moments x = {0, 0, 0};
    for (int block = 0; block < CLUSTER; ++block)
      x.join({Piece::count_of(block), shared_moments[block][group].x, shared_moments[block][group].y});
    scales.set(group, x);
  }
#else
  for (int group = threadIdx.x; group < GROUPS; group += THREADS) scales.set(group, found[group]);
#endif
  __syncthreads();
  normalize(args, piece, held, scales);
}

#else

struct MeanAndSquares {
  compute_t mean, squares;
};

// partial: [tiles, CHUNKS, GROUPS].
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
  tile_moments(const Arguments args, MeanAndSquares* partial) {
  grid_dependency_wait();
  __shared__ Moments slots[SLOTS];
  const Piece piece;
  Moments moments[PARTS];
  take_moments(args, piece, nullptr, moments);
  const BlockMoments found(moments, slots);
  for (int group = threadIdx.x; group < GROUPS; group += THREADS) {
    const Moments x = found[group];
    partial[(size_t)blockIdx.x * GROUPS + group] = {x.mean, x.squares};
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
  normalize_tiles(const Arguments args, const MeanAndSquares* partial) {
  grid_dependency_wait();
  __shared__ Moments slots[SLOTS];
  __shared__ Scales scales;
  const Piece piece;
  const int row = threadIdx.x / GROUPS, group = threadIdx.x % GROUPS;
  const int rows = THREADS / GROUPS < CHUNKS ? THREADS / GROUPS : CHUNKS;
  Moments moments[1] = {{0, 0, 0}};
  for (int chunk = row; chunk < CHUNKS && row < rows; chunk += rows) {
    const MeanAndSquares x = partial[((size_t)piece.tile * CHUNKS + chunk) * GROUPS + group];
    moments[0].join({Piece::count_of(chunk), x.mean, x.squares});
  }
  join_rows(moments, slots, row, group, rows, GROUPS);
  if (row == 0) scales.set(group, moments[0]);
  __syncthreads();
  normalize(args, piece, nullptr, scales);
}

#endif
