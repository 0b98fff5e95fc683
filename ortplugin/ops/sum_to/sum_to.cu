// Sums over some axes of what a pointwise program computes, and such values themselves.
//
//   terms, results = program(inputs[k, r])         for every index k of the axes that are kept and r of those summed
//   over sums[k] = sum over r of terms[k, r]            in the arithmetic of the terms: float, double or an integer's
//
// The text in front of this one is generated for the node at hand (sum_to_cuda.cc). It gives VECTOR, ITEMS, ALONG,
// KEPT_THREADS, SUMMED_THREADS, index_t, EACH_SUM (a macro over the sums' numbers and types), Arguments, Scalars (the
// operands of one element), Kept (where an index k leads, and the operands that have no r), Operands and Results (those
// of VECTOR neighbouring elements), `apply`, the program, and `store_sums`.
//
// k and r count vectors where VECTOR elements lie along their axes: along r where ALONG, so that neighbouring threads
// add up neighbouring elements, and along k where not, so that each thread adds up columns of its own. The
// KEPT_THREADS x SUMMED_THREADS threads of a block take as many k, for one chunk of r. Where r is cut into several
// chunks `add_chunks` adds their sums. Who adds what to what, and in which order, depends on the shapes and the GPU's
// size alone.

#define THREADS (KEPT_THREADS * SUMMED_THREADS)
#define WIDTH (ALONG ? 1 : VECTOR)
// So many steps of a thread are added up by themselves, so that no long row of numbers is added one after the other.
#define SEGMENT 32

// Of each sum COUNT values side by side.
template <int COUNT>
struct Totals {
#define MEMBER(i, T) T s##i[COUNT];
  EACH_SUM(MEMBER)
#undef MEMBER
  DEVICE void clear() {
#pragma unroll
    for (int j = 0; j < COUNT; ++j) {
#define CLEAR(i, T) s##i[j] = 0;
      EACH_SUM(CLEAR)
#undef CLEAR
    }
  }
  DEVICE void add(const Totals& other) {
#pragma unroll
    for (int j = 0; j < COUNT; ++j) {
#define ADD(i, T) s##i[j] += other.s##i[j];
      EACH_SUM(ADD)
#undef ADD
    }
  }
};

struct Terms : Totals<VECTOR> {};

// Of one index k.
struct Sums : Totals<WIDTH> {
  using Totals::add;
  DEVICE void add(const Terms& terms) {
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) {
#define ADD(i, T) s##i[j] += ALONG ? sum_of_vector(terms.s##i) : terms.s##i[j];
      EACH_SUM(ADD)
#undef ADD
    }
  }

 private:
  template <typename T>
  DEVICE static T sum_of_vector(const T (&terms)[VECTOR]) {
    T x[VECTOR];
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) x[j] = terms[j];
#pragma unroll
    for (int half = VECTOR / 2; half > 0; half /= 2)
#pragma unroll
      for (int j = 0; j < half; ++j) x[j] += x[j + half];
    return x[0];
  }
};

// What the threads of one index k have found, added up in the first of them. `slots`: room for THREADS * WIDTH.
template <typename T>
DEVICE void sum_of_threads(T (&x)[WIDTH], T* slots) {
#if ALONG
  const int lanes = SUMMED_THREADS < 32 ? SUMMED_THREADS : 32;
#pragma unroll
  for (int distance = lanes / 2; distance > 0; distance /= 2) x[0] += __shfl_xor_sync(0xffffffffu, x[0], distance);
  if (SUMMED_THREADS <= 32) return;
  if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = x[0];
  __syncthreads();
  const int first = threadIdx.x / SUMMED_THREADS * (SUMMED_THREADS / 32);
  x[0] = slots[first];
#pragma unroll
  for (int warp = 1; warp < SUMMED_THREADS / 32; ++warp) x[0] += slots[first + warp];
  __syncthreads();  // the slots are used again
#else
  if (SUMMED_THREADS == 1) return;
#pragma unroll
  for (int j = 0; j < WIDTH; ++j) slots[j * THREADS + threadIdx.x] = x[j];
  __syncthreads();
#pragma unroll
  for (int half = SUMMED_THREADS / 2; half > 0; half /= 2) {
    if (threadIdx.x < half * KEPT_THREADS) {
#pragma unroll
      for (int j = 0; j < WIDTH; ++j)
        slots[j * THREADS + threadIdx.x] += slots[j * THREADS + threadIdx.x + half * KEPT_THREADS];
    }
    __syncthreads();
  }
#pragma unroll
  for (int j = 0; j < WIDTH; ++j) x[j] = slots[j * THREADS + threadIdx.x];
  __syncthreads();
#endif
}

extern "C" __global__ void __launch_bounds__(BOUNDS) sum_to(const Arguments args) {
  grid_dependency_wait();
  __shared__ unsigned long long slots[ALONG ? THREADS / 32 + 1 : THREADS * WIDTH];
  const int thread_of_kept = ALONG ? threadIdx.x / SUMMED_THREADS : threadIdx.x % KEPT_THREADS;
  const int thread_of_summed = ALONG ? threadIdx.x % SUMMED_THREADS : threadIdx.x / KEPT_THREADS;
  const Scalars scalars(args);
  const index_t kept = (index_t)args.kept, summed = (index_t)args.summed;
  const index_t chunks = (index_t)args.chunks, kept_blocks = (index_t)args.kept_blocks;
  for (index_t piece = blockIdx.x; piece < kept_blocks * chunks; piece += gridDim.x) {
    // Pieces that follow each other are neighbours in memory: the last axis is theirs.
    const index_t chunk = ALONG ? piece % chunks : piece / kept_blocks;
    const index_t k = (ALONG ? piece / chunks : piece % kept_blocks) * KEPT_THREADS + thread_of_kept;
    const bool is_kept = k < kept;
    // Past the ends the last vectors are read again, and what comes of them is dropped.
    const Kept at(args, is_kept ? k : kept - 1);
    const index_t size = (index_t)args.chunk_size, chunk_first = chunk * size;
    const index_t chunk_last = summed - chunk_first < size ? summed : chunk_first + size;

    Sums total;
    total.clear();
    for (index_t r = chunk_first + thread_of_summed; r < chunk_last;) {
      Sums segment;
      segment.clear();
      for (int step = 0; step < SEGMENT && r < chunk_last; ++step, r += SUMMED_THREADS * ITEMS) {
        Operands operands[ITEMS];
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
          const index_t index = r + i * SUMMED_THREADS;
          operands[i].load(args, at, index < chunk_last ? index : chunk_last - 1);
        }
        Terms terms[ITEMS];
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
          const index_t index = r + i * SUMMED_THREADS;
          Results results;
#pragma unroll
          for (int j = 0; j < VECTOR; ++j) apply(operands[i], at, scalars, j, results, terms[i]);
          if (index >= chunk_last) {
            terms[i].clear();
          } else if (is_kept) {
            results.store(args, at, index);
          }
        }
#pragma unroll
        for (int half = ITEMS / 2; half > 0; half /= 2)
#pragma unroll
          for (int i = 0; i < half; ++i) terms[i].add(terms[i + half]);
        segment.add(terms[0]);
      }
      total.add(segment);
    }

#define SUM(i, T) sum_of_threads(total.s##i, (T*)slots);
    EACH_SUM(SUM)
#undef SUM
    if (thread_of_summed != 0 || !is_kept) continue;
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) {
      const unsigned long long element = (unsigned long long)k * WIDTH + j;
      if (chunks == 1) {
#define VALUE(i, T) , total.s##i[j]
        store_sums(args, element EACH_SUM(VALUE));
#undef VALUE
      } else {
#define STORE(i, T) ((T*)args.partial[i])[(unsigned long long)chunk * args.sums + element] = total.s##i[j];
        EACH_SUM(STORE)
#undef STORE
      }
    }
  }
}

// Every `adders`-th chunk of one sum, from the `adder`-th on. So many are asked for before the first is needed.
template <typename T>
DEVICE T sum_of_chunks(const T* partial, unsigned adder, unsigned adders, const Arguments& args) {
  const int batch = 8;
  T sum = 0;
  for (unsigned long long chunk = adder; chunk < args.chunks; chunk += batch * adders) {
    T x[batch];
#pragma unroll
    for (int n = 0; n < batch; ++n) {
      const unsigned long long at = chunk + n * adders;
      x[n] = at < args.chunks ? partial[at * args.sums] : (T)0;
    }
#pragma unroll
    for (int half = batch / 2; half > 0; half /= 2)
#pragma unroll
      for (int n = 0; n < half; ++n) x[n] += x[n + half];
    sum += x[0];
  }
  return sum;
}

// What the threads `columns` apart have found, added up in the first of them.
template <typename T>
DEVICE T sum_of_column(T x, T* slots, unsigned adders, unsigned columns) {
  slots[threadIdx.x] = x;
  __syncthreads();
  for (unsigned half = adders / 2; half > 0; half /= 2) {
    if (threadIdx.x < half * columns) slots[threadIdx.x] += slots[threadIdx.x + half * columns];
    __syncthreads();
  }
  x = slots[threadIdx.x];
  __syncthreads();  // the slots are used again
  return x;
}

// partial[i]: [chunks, sums]. `adders` threads, a power of two, take the chunks of one sum.
extern "C" __global__ void __launch_bounds__(256, 1) add_chunks(const Arguments args) {
  grid_dependency_wait();
  __shared__ unsigned long long slots[256];
  const unsigned adders = (unsigned)args.adders, columns = 256 / adders;
  for (unsigned long long first = (unsigned long long)blockIdx.x * columns; first < args.sums;
    first += (unsigned long long)gridDim.x * columns) {
    const unsigned long long element = first + threadIdx.x % columns;
    const bool is_sum = element < args.sums;
#define TOTAL(i, T) \
  T x##i = 0; \
  if (is_sum) x##i = sum_of_chunks((const T*)args.partial[i] + element, threadIdx.x / columns, adders, args); \
  x##i = sum_of_column(x##i, (T*)slots, adders, columns);
    EACH_SUM(TOTAL)
#undef TOTAL
#define VALUE(i, T) , x##i
    if (threadIdx.x < columns && is_sum) store_sums(args, element EACH_SUM(VALUE));
#undef VALUE
  }
}
