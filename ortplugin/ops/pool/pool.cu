// The maximum or the average over windows of an image, or over all of it.
//
//   y[n, o, c] = max or mean over k of x[n, o * stride + k * dilation - begin, c]        n: outer, c: inner
//
// The text in front of this one is generated for the node at hand (pool_cuda.cc). It gives T (the elements), compute_t,
// widest_t (what T converts from), VECTOR, IS_MAX, THREADS, index_t and, for the kernel at hand, the numbers named
// below.
//
// Tensors are [outer, spatial.., inner]. With channels last inner is the number of channels and a thread takes VECTOR
// of them; with channels first it is 1.

// The greater of two; NaN if either is.
template <typename A>
DEVICE A greater(A a, A b) {
  return a > b || a != a ? a : b;
}
#if __CUDA_ARCH__ >= 800
DEVICE float greater(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
#endif

DEVICE void lower(half_t& x) { x.bits = 0xfc00; }
DEVICE void lower(bfloat_t& x) { x.bits = 0xff80; }
DEVICE void lower(float& x) { x = __uint_as_float(0xff800000u); }
DEVICE void lower(double& x) { x = __longlong_as_double(0xfff0000000000000ll); }
DEVICE void lower(signed char& x) { x = -128; }
DEVICE void lower(unsigned char& x) { x = 0; }

typedef Vector<T, VECTOR> Elements;

#if IS_MAX
// The maxima so far: elements as they are stored, of which 16-bit ones are compared in pairs.
struct Totals {
  Elements x;
  DEVICE void clear() {
    T lowest;
    lower(lowest);
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) x.set(j, lowest);
  }
  DEVICE void add(const Elements& other) {
#if __CUDA_ARCH__ >= 800 && defined(PAIRS) && VECTOR > 1
#pragma unroll
    for (int i = 0; i < VECTOR / 2; ++i)
      asm("max.NaN." PAIRS " %0, %1, %2;" : "=r"(x.words[i]) : "r"(x.words[i]), "r"(other.words[i]));
#else
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) {
      T stored;
      from_compute(greater(to_compute(x[j]), to_compute(other[j])), stored);
      x.set(j, stored);
    }
#endif
  }
  DEVICE compute_t get(int j) const { return (compute_t)to_compute(x[j]); }
};
DEVICE compute_t combined(compute_t a, compute_t b) { return greater(a, b); }
#else
struct Totals {
  compute_t x[VECTOR];
  DEVICE void clear() {
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) x[j] = 0;
  }
  DEVICE void add(const Elements& other) {
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) x[j] += to_compute(other[j]);
  }
  DEVICE compute_t get(int j) const { return x[j]; }
};
DEVICE compute_t combined(compute_t a, compute_t b) { return a + b; }
#endif

#if WINDOWS
// KERNEL_D .. DILATION_W and BEGIN_D ..: the windows. PADDED: some reach beyond the image. UNROLL: they are small.
struct Arguments {
  const T* x;
  T* y;
  unsigned long long count, inner;  // in vectors
  unsigned long long size[3], out[3], pad_end[3];
  Divider by_inner, by_w, by_h, by_d;
};

// One element of a window along an axis: where it is, brought inside the image.
struct Tap {
  int at;
  bool inside;
  DEVICE Tap(int where, int size) {
    at = where;
    inside = true;
#if PADDED
    inside = (unsigned)where < (unsigned)size;
    at = where < 0 ? 0 : (where < size ? where : size - 1);
#endif
  }
};

#if UNROLL
#define EACH_TAP _Pragma("unroll")
#define EACH_TAP_OF_ROW _Pragma("unroll")
#else
#define EACH_TAP _Pragma("unroll 1")
#define EACH_TAP_OF_ROW _Pragma("unroll 4")
#endif

// The elements that an average over the window at `start` counts along an axis.
DEVICE int count_of(int start, int kernel, int dilation, int size, int pad_end) {
#if !PADDED
  return kernel;
#else
  int count = 0;
  EACH_TAP
  for (int k = 0; k < kernel; ++k) {
    const int at = start + k * dilation;
    count += COUNT_PADDING ? at < size + pad_end : (unsigned)at < (unsigned)size;
  }
  return count;
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) pool(const Arguments a) {
  const index_t index = (index_t)blockIdx.x * THREADS + threadIdx.x;
  grid_dependency_wait();
  if (index >= (index_t)a.count) return;
  const index_t pixel = quotient(index, a.by_inner), c = index - pixel * (index_t)a.inner;
  const index_t rows = quotient(pixel, a.by_w), planes = quotient(rows, a.by_h), image = quotient(planes, a.by_d);
  const int size_d = (int)a.size[0], size_h = (int)a.size[1], size_w = (int)a.size[2];
  const int start_w = (int)(pixel - rows * (index_t)a.out[2]) * STRIDE_W - BEGIN_W;
  const int start_h = (int)(rows - planes * (index_t)a.out[1]) * STRIDE_H - BEGIN_H;
  const int start_d = (int)(planes - image * (index_t)a.out[0]) * STRIDE_D - BEGIN_D;

  Totals totals;
  totals.clear();
  EACH_TAP
  for (int d = 0; d < KERNEL_D; ++d) {
    const Tap tap_d(start_d + d * DILATION_D, size_d);
    EACH_TAP
    for (int h = 0; h < KERNEL_H; ++h) {
      const Tap tap_h(start_h + h * DILATION_H, size_h);
      const index_t row = ((image * size_d + tap_d.at) * size_h + tap_h.at) * size_w;
      EACH_TAP_OF_ROW
      for (int w = 0; w < KERNEL_W; ++w) {
        const Tap tap_w(start_w + w * DILATION_W, size_w);
        Elements x;
        x.load(a.x + ((row + tap_w.at) * (index_t)a.inner + c) * (unsigned long long)VECTOR);
#if PADDED && IS_MAX && !DILATED
        // Brought inside, it is another element of the same window, which changes no maximum.
#elif PADDED
        if (!(tap_d.inside && tap_h.inside && tap_w.inside)) {
          T nothing;
#if IS_MAX
          lower(nothing);
#else
          from_compute((compute_t)0, nothing);
#endif
#pragma unroll
          for (int j = 0; j < VECTOR; ++j) x.set(j, nothing);
        }
#endif
        totals.add(x);
      }
    }
  }

#if IS_MAX
  totals.x.store(a.y + index * (unsigned long long)VECTOR);
#else
  const compute_t count = (compute_t)count_of(start_d, KERNEL_D, DILATION_D, size_d, (int)a.pad_end[0]) *
    (compute_t)count_of(start_h, KERNEL_H, DILATION_H, size_h, (int)a.pad_end[1]) *
    (compute_t)count_of(start_w, KERNEL_W, DILATION_W, size_w, (int)a.pad_end[2]);
  const compute_t share = (compute_t)1 / (count > 0 ? count : (compute_t)1);
  Elements y;
#pragma unroll
  for (int j = 0; j < VECTOR; ++j) {
    T stored;
    from_compute(totals.get(j) * share, stored);
    y.set(j, stored);
  }
  y.store(a.y + index * (unsigned long long)VECTOR);
#endif
}

#else  // all of an image

// A group of GROUP threads, a power of two, takes one image, or of one image the channels of LANES vectors; CLUSTER
// blocks share the pixels. ALONG: inner is 1, and vectors lie along the pixels.
struct Arguments {
  const T* x;
  T* y;
  unsigned long long outer, pixels, inner;  // in vectors where they lie along these
  unsigned long long chunks;  // of the channels
  double share;  // 1 / pixels of an image
};

#define GROUPS (THREADS / GROUP)
#define SUMS (ITEMS < 2 ? 1 : 2)  // at once, of a thread
#define WIDTH (ALONG ? 1 : VECTOR)

DEVICE unsigned rank_in_cluster() {
  unsigned rank = 0;
#if CLUSTER > 1
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
  return rank;
}
DEVICE void meet_cluster() {
#if CLUSTER > 1
  asm volatile("barrier.cluster.arrive.aligned;\n\tbarrier.cluster.wait.aligned;" ::: "memory");
#endif
}

#if CLUSTER > 1
DEVICE void load_shared(unsigned address, int& x) {
  asm volatile("ld.shared::cluster.s32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
}
DEVICE void load_shared(unsigned address, float& x) {
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x) : "r"(address) : "memory");
}
DEVICE void load_shared(unsigned address, double& x) {
  asm volatile("ld.shared::cluster.f64 %0, [%1];" : "=d"(x) : "r"(address) : "memory");
}
#endif
// What stands at `here` in the shared memory of another block of the cluster.
DEVICE compute_t read_block(const compute_t* here, unsigned rank) {
  compute_t x = *here;
#if CLUSTER > 1
  unsigned address = (unsigned)__cvta_generic_to_shared(here);
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(address), "r"(rank));
  load_shared(address, x);
#endif
  return x;
}

DEVICE void store_total(const Arguments& a, unsigned long long at, compute_t total) {
#if IS_MAX
  from_compute((widest_t)total, a.y[at]);
#else
  from_compute(total * (compute_t)a.share, a.y[at]);
#endif
}

#if CLUSTER > 1
#define IN_CLUSTERS __attribute__((cluster_dims(CLUSTER, 1, 1)))
#else
#define IN_CLUSTERS
#endif

extern "C" __global__ void IN_CLUSTERS __launch_bounds__(THREADS, 1) pool_global(const Arguments a) {
  const int ROWS = GROUP / LANES;  // threads that share a vector's channels
  const int WARPS = GROUP < 32 ? 1 : GROUP / 32;
  __shared__ compute_t slots[GROUPS][WARPS][LANES * WIDTH];
  __shared__ compute_t sums[GROUPS][LANES * WIDTH];
  const int group = threadIdx.x / GROUP, thread = threadIdx.x % GROUP;
  const int lane = thread % LANES, row = thread / LANES;
  const unsigned rank = rank_in_cluster();
  const unsigned long long number = (unsigned long long)(blockIdx.x / CLUSTER) * GROUPS + group;
  const unsigned long long image = number / a.chunks;
  const index_t c = (index_t)(number - image * a.chunks) * LANES + lane;
  const bool is_there = image < a.outer && c < (index_t)a.inner;
  grid_dependency_wait();

  // ITEMS loads are under way at once; past the end the last pixel is read again and left out. The sums are taken in an
  // order that the shape decides.
  Totals totals[SUMS];
#pragma unroll
  for (int i = 0; i < SUMS; ++i) totals[i].clear();
  if (is_there) {
    const T* x = a.x + (image * a.pixels * a.inner + c) * VECTOR;
    const index_t pixels = (index_t)a.pixels, step = CLUSTER * ROWS;
    index_t pixel = rank * ROWS + row;
    for (; pixel < pixels; pixel += ITEMS * step) {
      Elements elements[ITEMS];
#pragma unroll
      for (int i = 0; i < ITEMS; ++i) {
        const index_t at = pixel + i * step;
        elements[i].load(x + (at < pixels ? at : pixels - 1) * (index_t)a.inner * (unsigned long long)VECTOR);
      }
#pragma unroll
      for (int i = 0; i < ITEMS; ++i)
        if (pixel + i * step < pixels) totals[i % SUMS].add(elements[i]);
    }
  }
  compute_t total[WIDTH];
#if ALONG
  total[0] = totals[0].get(0);
#pragma unroll
  for (int i = 0; i < SUMS; ++i)
#pragma unroll
    for (int j = i == 0 ? 1 : 0; j < VECTOR; ++j) total[0] = combined(total[0], totals[i].get(j));
#else
#pragma unroll
  for (int j = 0; j < VECTOR; ++j) {
    total[j] = totals[0].get(j);
#pragma unroll
    for (int i = 1; i < SUMS; ++i) total[j] = combined(total[j], totals[i].get(j));
  }
#endif

  // Over the rows of a warp, the warps of a group, the blocks of a cluster.
#pragma unroll
  for (int distance = (GROUP < 32 ? GROUP : 32) / 2; distance >= LANES; distance /= 2)
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) total[j] = combined(total[j], __shfl_xor_sync(0xffffffffu, total[j], distance));
  if (thread % 32 < LANES) {
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) slots[group][thread / 32][lane * WIDTH + j] = total[j];
  }
  __syncthreads();
  for (int i = thread; i < LANES * WIDTH; i += GROUP) {
    compute_t sum = slots[group][0][i];
#pragma unroll
    for (int warp = 1; warp < WARPS; ++warp) sum = combined(sum, slots[group][warp][i]);
    sums[group][i] = sum;
  }
  meet_cluster();
  if (rank == 0 && image < a.outer) {
    const unsigned long long first = (number - image * a.chunks) * (LANES * WIDTH);
    const unsigned long long channels = a.inner * WIDTH;
    for (int i = thread; i < LANES * WIDTH; i += GROUP) {
      compute_t sum = sums[group][i];
#pragma unroll
      for (unsigned block = 1; block < CLUSTER; ++block) sum = combined(sum, read_block(&sums[group][i], block));
      if (first + i < channels) store_total(a, image * channels + first + i, sum);
    }
  }
  meet_cluster();  // until then the other blocks' memory is read
}
#endif
