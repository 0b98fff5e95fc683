// An image of another size: the nearest element, or linearly in between.
//
//   y[n, o, c] = x[n, nearest(at(o)), c]                                    n: outer, c: inner
//   y[n, o, c] = (1 - w) x[n, i, c] + w x[n, i + 1, c],  i + w = at(o)        one axis after the other
//   at(o) = (o + SHIFT) * factor / divisor - SHIFT                            in float, in this order
//
// The text in front of this one is generated for the node at hand (pool_cuda.cc). It gives T (the elements), compute_t,
// VECTOR, ALONG, IMAGES, IS_LINEAR, SHIFT, IS_NEXT(part) (whether the
// element after floor(at) is nearer), AXES (spatial axes that the tensor has), THREADS, index_t.
//
// Tensors are [outer, spatial.., inner]. A thread takes VECTOR channels of a pixel, or with channels first, where inner
// is 1 (ALONG), VECTOR pixels side by side, in IMAGES images: where these lie is worked out once for all.

struct Axis {
  float factor, divisor;
  int size, out;
};
struct Arguments {
  const T* x;
  T* y;
  unsigned long long count, outer, inner;  // threads; inner in vectors
  Axis axes[3];
  Divider by_inner, by_w, by_h, by_d;  // by_w: vectors of a row where ALONG
};

// Where an element of the output lies along an axis: at `low`, or between it and `high`.
struct Place {
  int low, high;
  float weight;  // of the second; below 0 where both are the same
  DEVICE Place() : low(0), high(0), weight(-1.0f) {}
  DEVICE Place(int o, const Axis& axis) {
    const float shifted = __fadd_rn((float)o, SHIFT);
    const float at = __fsub_rn(__fdiv_rn(__fmul_rn(shifted, axis.factor), axis.divisor), SHIFT);
#if IS_LINEAR
    const float inside = fminf(fmaxf(at, 0.0f), (float)(axis.size - 1));
    low = min((int)inside, axis.size - 1);
    high = min(low + 1, axis.size - 1);
    weight = low == high ? -1.0f : inside - (float)low;
#else
    const float below = floorf(at), part = __fsub_rn(at, below);
    low = high = min(max((int)below + (IS_NEXT(part) ? 1 : 0), 0), axis.size - 1);
    weight = -1.0f;
#endif
  }
};

#if IS_LINEAR
// An element whose weight is 0 takes part, as in ONNX Runtime: NaN and infinity times 0 are NaN. Beyond the edge there
// is none.
DEVICE compute_t between(compute_t low, compute_t high, compute_t weight) {
  return weight < (compute_t)0 ? low : fma(weight, high, ((compute_t)1 - weight) * low);
}
#endif

#if ALONG
typedef Vector<T, 1> Element;
#define WIDTH 1
#else
typedef Vector<T, VECTOR> Element;
#define WIDTH VECTOR
#endif

// The rows of an image that a row of the output lies between, up to four.
struct Rows {
  index_t at[AXES == 3 ? 2 : 1][AXES >= 2 ? 2 : 1];  // in elements of inner's vectors, from the image's start
  compute_t weight_d, weight_h;
  DEVICE Rows(const Arguments& a, const Place& d, const Place& h) {
    weight_d = (compute_t)d.weight;
    weight_h = (compute_t)h.weight;
    const index_t row = (index_t)a.axes[2].size * (index_t)a.inner;
#pragma unroll
    for (int i = 0; i < (AXES == 3 ? 2 : 1); ++i)
#pragma unroll
      for (int j = 0; j < (AXES >= 2 ? 2 : 1); ++j)
        at[i][j] = ((index_t)(i ? d.high : d.low) * a.axes[1].size + (j ? h.high : h.low)) * row;
  }
};

#if IS_LINEAR
DEVICE void load(const T* image, const Rows& rows, index_t low, index_t high, float weight, compute_t (&y)[WIDTH]) {
  const int COUNT_D = AXES == 3 ? 2 : 1, COUNT_H = AXES >= 2 ? 2 : 1;
  Element x[COUNT_D][COUNT_H][2];
#pragma unroll
  for (int d = 0; d < COUNT_D; ++d)
#pragma unroll
    for (int h = 0; h < COUNT_H; ++h) {
      x[d][h][0].load(image + (rows.at[d][h] + low) * (unsigned long long)WIDTH);
      x[d][h][1].load(image + (rows.at[d][h] + high) * (unsigned long long)WIDTH);
    }
#pragma unroll
  for (int j = 0; j < WIDTH; ++j) {
    compute_t planes[COUNT_D];
#pragma unroll
    for (int d = 0; d < COUNT_D; ++d) {
      compute_t made[COUNT_H];
#pragma unroll
      for (int h = 0; h < COUNT_H; ++h)
        made[h] = between(to_compute(x[d][h][0][j]), to_compute(x[d][h][1][j]), (compute_t)weight);
      planes[d] = between(made[0], made[COUNT_H - 1], rows.weight_h);
    }
    y[j] = between(planes[0], planes[COUNT_D - 1], rows.weight_d);
  }
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, 1) resize(const Arguments a) {
  const index_t index = (index_t)blockIdx.x * THREADS + threadIdx.x;
  const index_t pixel = quotient(index, a.by_inner), c = index - pixel * (index_t)a.inner;
  const index_t rows = quotient(pixel, a.by_w), planes = quotient(rows, a.by_h), group = quotient(planes, a.by_d);
  const index_t vectors_w = ALONG ? (index_t)a.axes[2].out / VECTOR : (index_t)a.axes[2].out;
  const int w = (int)(pixel - rows * vectors_w);
  const int h = (int)(rows - planes * (index_t)a.axes[1].out), d = (int)(planes - group * (index_t)a.axes[0].out);
  const Place place_d = AXES == 3 ? Place(d, a.axes[0]) : Place();
  const Place place_h = AXES >= 2 ? Place(h, a.axes[1]) : Place();
  const index_t image_size = (index_t)a.axes[0].size * a.axes[1].size * a.axes[2].size;
  grid_dependency_wait();
  if (index >= (index_t)a.count) return;

#if ALONG
  Place place[VECTOR];
#pragma unroll
  for (int j = 0; j < VECTOR; ++j) place[j] = Place(w * VECTOR + j, a.axes[2]);
  const Rows lying(a, place_d, place_h);
  const index_t out_row = (index_t)a.axes[0].out * a.axes[1].out * vectors_w;  // vectors of an image
  const index_t at = ((index_t)d * a.axes[1].out + h) * vectors_w + w;
#pragma unroll 1
  for (int i = 0; i < IMAGES; ++i) {
    const unsigned long long image = (unsigned long long)group * IMAGES + i;
    if (image >= a.outer) return;
    const T* x = a.x + image * image_size;
    Vector<T, VECTOR> y;
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) {
      T stored;
#if IS_LINEAR
      compute_t made[1];
      load(x, lying, place[j].low, place[j].high, place[j].weight, made);
      from_compute(made[0], stored);
#else
      Element element;
      element.load(x + (lying.at[0][0] + place[j].low));
      stored = element[0];
#endif
      y.set(j, stored);
    }
    y.store(a.y + (image * out_row + at) * VECTOR);
  }
#else
  const Place place_w(w, a.axes[2]);
  const Rows lying(a, place_d, place_h);
  const T* x = a.x + (unsigned long long)group * image_size * a.inner * VECTOR;
  Vector<T, VECTOR> y;
#if IS_LINEAR
  compute_t made[VECTOR];
  load(x, lying, place_w.low * (index_t)a.inner + c, place_w.high * (index_t)a.inner + c, place_w.weight, made);
#pragma unroll
  for (int j = 0; j < VECTOR; ++j) {
    T stored;
    from_compute(made[j], stored);
    y.set(j, stored);
  }
#else
  y.load(x + (lying.at[0][0] + place_w.low * (index_t)a.inner + c) * (unsigned long long)VECTOR);
#endif
  y.store(a.y + index * (unsigned long long)VECTOR);
#endif
}
