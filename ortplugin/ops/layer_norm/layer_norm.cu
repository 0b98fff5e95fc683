// Layer and RMS normalisation of the rows of a [rows, WIDTH] matrix, with a pointwise prologue and epilogue:
//
//   s = prologue(inputs)                                               pointwise
//   m = sum(s) / WIDTH,  v = sum((s - m)^2) / WIDTH                    in compute_t (float; double for double)
//   n = (s - m) / sqrt(v + EPSILON)                                    RMS: m = 0
//   results = epilogue(s, n, inputs)                                   pointwise
//
// The text in front of this one is generated for the node at hand (operands.cc has its shape). It gives WIDTH, EPSILON,
// IS_RMS, the launch shape, compute_t, Arguments, Offsets, and for both phases the operands (those of one row, and
// those that all rows share), the results and the arithmetic.
//
// A group of LANES threads owns a row and holds all of it in registers: one read and one write of memory. With 32 lanes
// that needs no barrier; with more the block is the group. Rows that no block can hold, and norms over other axes than
// the last ones, are for norm_tiles.cu.

DEVICE compute_t sum_of_warp(compute_t x) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(0xffffffffu, x, distance);
  return x;
}

// x / WIDTH without the branches of a general division: the product with the reciprocal, and one correction.
DEVICE compute_t mean_of(compute_t sum) {
  const compute_t reciprocal = (compute_t)1 / (compute_t)WIDTH;
  const compute_t mean = sum * reciprocal;
  return fma(fma(-mean, (compute_t)WIDTH, sum), reciprocal, mean);
}

// 1 / sqrt(squares / WIDTH + EPSILON), within two units in the last place.
DEVICE compute_t scale_of(compute_t squares) {
  return rsqrt(squares * ((compute_t)1 / (compute_t)WIDTH) + (compute_t)EPSILON);
}

typedef compute_t Slots[ROWS_AT_ONCE][32];

// The sums over the LANES threads of the rows at hand, given to each. Calls alternate between two slots, so that one
// barrier a call is enough: who writes a slot again has passed the other slot's barrier, and so has everyone who read
// it.
DEVICE void sum_of_group(compute_t (&x)[ROWS_AT_ONCE], Slots* slots, int& parity) {
#pragma unroll
  for (int m = 0; m < ROWS_AT_ONCE; ++m) x[m] = sum_of_warp(x[m]);
  if (LANES <= 32) return;
  Slots& slot = slots[parity];
  parity ^= 1;
#pragma unroll
  for (int m = 0; m < ROWS_AT_ONCE; ++m)
    if (threadIdx.x % 32 == 0) slot[m][threadIdx.x / 32] = x[m];
  __syncthreads();
#pragma unroll
  for (int m = 0; m < ROWS_AT_ONCE; ++m)
    x[m] = sum_of_warp(threadIdx.x % 32 < LANES / 32 ? slot[m][threadIdx.x % 32] : (compute_t)0);
}

// Item k of a lane is the VECTOR elements from COLUMN on. Rows that start between cache lines are shifted: their
// accesses count from the line's start, `shift` accesses before the row's, so that those of a warp fill whole lines.
// In 64 bits the compiler sees that a lane's addresses differ by constants, and computes one of them for each operand.
#define ACCESSES (WIDTH / VECTOR)
#define IS_SHIFTED (ACCESSES % LINE != 0)  // LINE: accesses of a line, 1 where shifting gains nothing
#define SHIFT(r) (IS_SHIFTED ? (int)((r) % LINE * (ACCESSES % LINE) % LINE) : 0)
#define COLUMN(k, shift) \
  (IS_SHIFTED ? (long long)(lane - (shift)) * VECTOR + (long long)(k) * LANES * VECTOR : ((k) * LANES + lane) * VECTOR)
#define IN_ROW(k, shift) \
  ((!IS_SHIFTED || (k) * LANES >= LINE || (k) * LANES + lane >= (shift)) && \
    (((k) + 1) * LANES <= ACCESSES || (k) * LANES + lane - (shift) < ACCESSES))

#define IS_ACTIVE(r) (ROWS_AT_ONCE == 1 || (r) < rows)
// Past the last row that one is read again and nothing is written.
#define CLAMPED(r) ((r) < rows ? (r) : rows - 1)

// Loads of what all rows share must stay in the loop: moved out of it they would fill the registers, and fewer rows
// would be in flight. `chunks` is 0 here, which the compiler does not know.
DEVICE SharedOperands keep_in_loop(const SharedOperands& operands, const Arguments& args, row_t row) {
  return operands.moved(args.chunks * (long long)row);
}

// Adds an element, of RMS its square.
DEVICE void add(compute_t& sum, compute_t s) { sum = IS_RMS ? fma(s, s, sum) : sum + s; }

DEVICE EpilogueRow load_operand(const Arguments& args, const Offsets& offsets, long long column) {
  EpilogueRow operand;
  operand.load(args, offsets, column);
  return operand;
}

extern "C" __global__ void __launch_bounds__(LANES* GROUPS, MIN_BLOCKS) layer_norm(const Arguments args) {
  // `row` is the first of the rows at hand; only where rows are taken singly are they shifted.
  row_t row = (blockIdx.x * (row_t)GROUPS + threadIdx.x / LANES) * ROWS_AT_ONCE;
  prefetch_order(row);
  grid_dependency_wait();
  const int lane = threadIdx.x % LANES;
  const row_t rows = (row_t)args.rows, step = gridDim.x * (row_t)GROUPS * ROWS_AT_ONCE;
  const SharedOperands invariant_operands(args);
  __shared__ Slots slots[2];
  int parity = 0;
  PrologueRow operands[ROWS_AT_ONCE][ITEMS];
  const auto load = [&](row_t first) {
    const int shift = SHIFT(first);
#pragma unroll
    for (int m = 0; m < ROWS_AT_ONCE; ++m) {
      const Offsets offsets(args, CLAMPED(first + m));
#pragma unroll
      for (int k = 0; k < ITEMS; ++k)
        if (IN_ROW(k, shift)) operands[m][k].load(args, offsets, COLUMN(k, shift));
    }
  };
  if (PREFETCH) load(row);

  for (; row < rows; row += step) {
    const int shift = SHIFT(row);
    const SharedOperands shared_operands = keep_in_loop(invariant_operands, args, row);
    compute_t s[ROWS_AT_ONCE][ITEMS][VECTOR], sum[ROWS_AT_ONCE] = {};
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
      PrologueShared shared;
      if (IN_ROW(k, shift)) shared.load(args, shared_operands, COLUMN(k, shift));
#pragma unroll
      for (int m = 0; m < ROWS_AT_ONCE; ++m) {
        if (!PREFETCH && IN_ROW(k, shift)) operands[m][k].load(args, Offsets(args, CLAMPED(row + m)), COLUMN(k, shift));
        PrologueResults results;
#pragma unroll
        for (int j = 0; j < VECTOR; ++j)
          add(sum[m], s[m][k][j] = IN_ROW(k, shift) ? prologue(operands[m][k], shared, j, results) : (compute_t)0);
        if (IN_ROW(k, shift) && IS_ACTIVE(row + m)) results.store(args, Offsets(args, row + m), COLUMN(k, shift));
      }
    }

    // The next rows are on their way while these are reduced and written.
    if (PREFETCH && row + step < rows) load(row + step);

    sum_of_group(sum, slots, parity);
    compute_t mean[ROWS_AT_ONCE], scale[ROWS_AT_ONCE], squares[ROWS_AT_ONCE] = {};
#pragma unroll
    for (int m = 0; m < ROWS_AT_ONCE; ++m) mean[m] = IS_RMS ? (compute_t)0 : mean_of(sum[m]);
    if (!IS_RMS) {
#pragma unroll
      for (int m = 0; m < ROWS_AT_ONCE; ++m)
#pragma unroll
        for (int k = 0; k < ITEMS; ++k)
#pragma unroll
          for (int j = 0; j < VECTOR; ++j)
            if (IN_ROW(k, shift)) squares[m] = fma(s[m][k][j] - mean[m], s[m][k][j] - mean[m], squares[m]);
      sum_of_group(squares, slots, parity);
    }
#pragma unroll
    for (int m = 0; m < ROWS_AT_ONCE; ++m) scale[m] = scale_of(IS_RMS ? sum[m] : squares[m]);

#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
      if (!IN_ROW(k, shift)) continue;
      EpilogueShared shared;
      shared.load(args, shared_operands, COLUMN(k, shift));
#pragma unroll
      for (int m = 0; m < ROWS_AT_ONCE; ++m) {
        const Offsets offsets(args, ROWS_AT_ONCE == 1 ? row : CLAMPED(row + m));
        const EpilogueRow operand = load_operand(args, offsets, COLUMN(k, shift));
        EpilogueResults results;
#pragma unroll
        for (int j = 0; j < VECTOR; ++j)
          epilogue(operand, shared, j, s[m][k][j], (s[m][k][j] - mean[m]) * scale[m], results);
        if (IS_ACTIVE(row + m)) results.store(args, offsets, COLUMN(k, shift));
      }
    }
  }
}
