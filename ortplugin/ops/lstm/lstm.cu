// For each sequence b, direction d and unit u, step by step, with the gates n = i, o, f, g (ONNX's order):
//
//   a[n] = G[t, b, d, u, n] + sum over k of R[d, n, u, k] h[k]
//   c[u] = sigmoid(a[f]) c[u] + sigmoid(a[i]) tanh(a[g])
//   h[u] = Y[t, b, d, u] = sigmoid(a[o]) tanh(c[u])
//
// The text in front defines storage_t, HIDDEN (H), DIRECTIONS (D), REVERSE (1: the first direction goes backwards; the
// second always does), THREADS, USES_MMA (every tensor begins at a multiple of 16 bytes, and no kernel writes R)
// and, with it, MMA_TYPE and MMA_K. Needs common.cuh, copy.cuh and, with USES_MMA, mma.cuh.

struct Arguments {
  const storage_t *g, *r, *h0, *c0;  // h0, c0: null for zeros
  storage_t *y, *y_h, *y_c;  // y_h, y_c: null where nobody asks for them
  int steps, batch;
  int inner;  // sequences that lie beside each other in each step: [batch / inner, steps, inner, ..]
};

// Where G and Y have the first step that a direction of a sequence takes, in units of HIDDEN, and how far its next is.
DEVICE long long first_of(const Arguments& a, int d, bool is_reverse, unsigned sequence) {
  const unsigned outer = sequence / (unsigned)a.inner;
  const long long row = ((long long)outer * a.steps + (is_reverse ? a.steps - 1 : 0)) * a.inner;
  return (row + (sequence - outer * (unsigned)a.inner)) * DIRECTIONS + d;
}
DEVICE long long step_of(const Arguments& a, bool is_reverse) {
  return (long long)(is_reverse ? -a.inner : a.inner) * DIRECTIONS;
}

#if USES_MMA

// A block has one direction of SEQUENCES sequences, which are N of mma.sync; M are gates, K the units of h. A warp has
// eight units: in one tile of M the gates i and o of each, in another f and g, so that all four meet in one thread. R
// stays in registers for the whole launch, c too; h passes through two buffers in shared memory, whose rows are an odd
// number of 16 bytes, so that the eight rows of an ldmatrix lie in different banks. Of float R and h are multiplied in
// TF32; a register has one element then, for two of 16 bits, and an ldmatrix moves it as two halves.

#define SEQUENCES 8
#define IS_TF32 (sizeof(storage_t) == 4)
#define PACKED (IS_TF32 ? 1 : 2)  // elements of a register
#define K_STEPS (HIDDEN / (8 * PACKED))
#define PITCH ((HIDDEN + 31) / 32 * 32 + 4 * PACKED)
#define CHUNKS (HIDDEN / 8)  // of 16 bytes, of a row of Y in 16 bits

// 2^min(x, 40): the product of three that are one more is finite. A NaN stays one.
DEVICE float power(float x) {
  float y;
  asm("{\n\t.reg .f32 low;\n\tmin.NaN.f32 low, %1, 0f42200000;\n\tex2.approx.ftz.f32 %0, low;\n\t}" : "=f"(y) : "f"(x));
  return y;
}
DEVICE float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// With p = exp(-a) a sigmoid is 1 / (1 + p), with q = exp(-2 a) a tanh (1 - q) / (1 + q). Powers and reciprocals bound
// a step, so those that are multiplied or added share one reciprocal: seven for both states, within 2^-21 of one.
DEVICE float advance(float i, float o, float f, float g, float& c) {
  constexpr float kOnce = -1.44269504088896340736f, kTwice = 2 * kOnce;
  const float of_f = 1.0f + power(f * kOnce), q = power(g * kTwice);
  const float of_new = (1.0f + power(i * kOnce)) * (1.0f + q);
  c = (c * of_new + (1.0f - q) * of_f) * reciprocal(of_new * of_f);
  const float of_c = power(c * kTwice);
  return (1.0f - of_c) * reciprocal((1.0f + power(o * kOnce)) * (1.0f + of_c));
}

// h as it is multiplied.
template <typename T>
DEVICE void as_factor(float h, T& x) {
  from_compute(h, x);
}
DEVICE void as_factor(float h, float& x) { x = __uint_as_float(to_tf32(h)); }

// What the block keeps of h in 16 bits: the rows that exist, in 16 bytes each thread.
DEVICE void store_rows(const storage_t* rows, storage_t* to, bool exists) {
  if (!exists) return;
  Vector<storage_t, 8> h;
  load_shared(h, rows + threadIdx.x / CHUNKS * PITCH + threadIdx.x % CHUNKS * 8);
  h.store(to);
}

// R of a thread's tiles, as mma.sync takes A: rows lane / 4, which are the first gate's, and eight behind, the
// second's; columns lane % 4 and four behind, of 16 bits in pairs.
DEVICE void load_weights(unsigned (&weights)[2][K_STEPS][4], const storage_t* r, int d, int unit) {
#pragma unroll
  for (int m = 0; m < 2; ++m)
#pragma unroll
    for (int k = 0; k < K_STEPS; ++k)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int row = (d * 4 + m * 2 + j % 2) * HIDDEN + unit;
        Vector<storage_t, PACKED> x;
        x.load(r + row * HIDDEN + (k * 8 + j / 2 * 4 + threadIdx.x % 4) * PACKED);
        weights[m][k][j] = IS_TF32 ? to_tf32(__uint_as_float(x.words[0])) : x.words[0];
      }
}

// sums[m] += R h, of the rows of h in shared memory.
DEVICE void add_products(float (&sums)[2][4], const unsigned (&weights)[2][K_STEPS][4], const storage_t* rows) {
  const storage_t* const h = rows + threadIdx.x % 8 * PITCH + threadIdx.x % 32 / 8 * 4 * PACKED;
#pragma unroll
  for (int k = 0; k < K_STEPS; k += 2) {
    unsigned x[4];  // of two steps
    load_matrices(x, h + k * 8 * PACKED);
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      mma(sums[m], weights[m][k], x[0], x[1]);
      if (k + 1 < K_STEPS) mma(sums[m], weights[m][k + 1], x[2], x[3]);
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) lstm(const Arguments a) {
  __shared__ __align__(16) storage_t rows[2][SEQUENCES * PITCH];
  const int lane = threadIdx.x % 32, d = blockIdx.x % DIRECTIONS, unit = threadIdx.x / 32 * 8 + lane / 4;
  const bool is_reverse = REVERSE || d == 1;
  unsigned weights[2][K_STEPS][4];
  load_weights(weights, a.r, d, unit);
  grid_dependency_wait();

  // This thread's sequences of sums, and the one of which it writes a part of Y.
  const int first = blockIdx.x / DIRECTIONS * SEQUENCES;
  const int column = lane % 4 * 2, own = threadIdx.x / CHUNKS;
  const bool writes = own < SEQUENCES && first + own < a.batch;
  bool exists[2];
  float c[2], last[2];
#pragma unroll
  for (int s = 0; s < 2; ++s) {
    const int sequence = first + column + s;
    exists[s] = sequence < a.batch;
    const bool has_state = exists[s] && a.h0 != nullptr;
    const long long at = has_state ? ((long long)d * a.batch + sequence) * HIDDEN + unit : 0;
    Vector<storage_t, 1> h, state;
    load_if(has_state, h, a.h0 + at);
    load_if(has_state, state, a.c0 + at);
    last[s] = to_compute(h.elements[0]);
    as_factor(last[s], rows[0][(column + s) * PITCH + unit]);
    c[s] = to_compute(state.elements[0]);
  }
  const long long place = first_of(a, d, is_reverse, first + column);
  const storage_t* g = a.g + (place * HIDDEN + unit) * 4;
  storage_t* y = a.y + place * HIDDEN + unit;
  if (!IS_TF32) y = a.y + (writes ? first_of(a, d, is_reverse, first + own) * HIDDEN + threadIdx.x % CHUNKS * 8 : 0);
  const long long between = (first_of(a, d, is_reverse, first + column + 1) - place) * (HIDDEN * 4);
  Vector<storage_t, 4> next[2];
#pragma unroll
  for (int s = 0; s < 2; ++s) load_if(exists[s] && a.steps > 0, next[s], g + s * between);
  __syncthreads();

#pragma unroll 1
  for (int n = 0; n < a.steps; ++n) {
    float sums[2][4];
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int j = 0; j < 4; ++j) sums[m][j] = to_compute(next[j % 2][m * 2 + j / 2]);
    g += step_of(a, is_reverse) * (HIDDEN * 4);
#pragma unroll
    for (int s = 0; s < 2; ++s) load_if(exists[s] && n + 1 < a.steps, next[s], g + s * between);
    add_products(sums, weights, rows[n % 2]);
    storage_t* const made = rows[(n + 1) % 2];
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      last[s] = advance(sums[0][s], sums[0][2 + s], sums[1][s], sums[1][2 + s], c[s]);
      as_factor(last[s], made[(column + s) * PITCH + unit]);
    }
    __syncthreads();
    // Of float Y is not rounded, and the eight units of a warp are 32 bytes.
#pragma unroll
    for (int s = 0; s < 2; ++s)
      if (IS_TF32 && exists[s]) from_compute(last[s], y[s * between / 4]);
    if (!IS_TF32) store_rows(made, y, writes);
    y += step_of(a, is_reverse) * HIDDEN;
  }

  if (!IS_TF32 && a.y_h != nullptr)
    store_rows(
      rows[a.steps % 2], a.y_h + ((long long)d * a.batch + first + own) * HIDDEN + threadIdx.x % CHUNKS * 8, writes);
#pragma unroll
  for (int s = 0; s < 2; ++s) {
    if (!exists[s]) continue;
    const long long at = ((long long)d * a.batch + first + column + s) * HIDDEN + unit;
    if (IS_TF32 && a.y_h != nullptr) from_compute(last[s], a.y_h[at]);
    if (a.y_c != nullptr) from_compute(c[s], a.y_c[at]);
  }
}

#else

// For every dtype, H and GPU: a block has one direction of one sequence, a warp one unit after the other.

DEVICE float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

extern "C" __global__ void __launch_bounds__(THREADS) lstm(const Arguments a) {
  __shared__ float h[2][HIDDEN], c[HIDDEN];
  grid_dependency_wait();
  const int lane = threadIdx.x % 32, d = blockIdx.x % DIRECTIONS;
  const bool is_reverse = REVERSE || d == 1;
  const int sequence = blockIdx.x / DIRECTIONS;
  const long long state = ((long long)d * a.batch + sequence) * HIDDEN;
  for (int unit = threadIdx.x; unit < HIDDEN; unit += THREADS) {
    h[0][unit] = a.h0 == nullptr ? 0.0f : to_compute(a.h0[state + unit]);
    c[unit] = a.c0 == nullptr ? 0.0f : to_compute(a.c0[state + unit]);
  }
  __syncthreads();
  long long at = first_of(a, d, is_reverse, sequence);
  for (int n = 0; n < a.steps; ++n, at += step_of(a, is_reverse)) {
    for (int unit = threadIdx.x / 32; unit < HIDDEN; unit += THREADS / 32) {
      float sums[4];
#pragma unroll
      for (int gate = 0; gate < 4; ++gate) {
        const storage_t* const row = a.r + ((long long)(d * 4 + gate) * HIDDEN + unit) * HIDDEN;
        sums[gate] = 0;
        for (int k = lane; k < HIDDEN; k += 32) sums[gate] += to_compute(row[k]) * h[n % 2][k];
#pragma unroll
        for (int other = 16; other > 0; other /= 2) sums[gate] += __shfl_xor_sync(~0u, sums[gate], other);
        sums[gate] += to_compute(a.g[(at * HIDDEN + unit) * 4 + gate]);
      }
      if (lane != 0) continue;
      c[unit] = sigmoid(sums[2]) * c[unit] + sigmoid(sums[0]) * tanhf(sums[3]);
      storage_t made;
      from_compute(sigmoid(sums[1]) * tanhf(c[unit]), made);
      a.y[at * HIDDEN + unit] = made;
      h[(n + 1) % 2][unit] = to_compute(made);
    }
    __syncthreads();
  }
  for (int unit = threadIdx.x; unit < HIDDEN; unit += THREADS) {
    if (a.y_h != nullptr) from_compute(h[a.steps % 2][unit], a.y_h[state + unit]);
    if (a.y_c != nullptr) from_compute(c[unit], a.y_c[state + unit]);
  }
}

#endif
