// y[n, i STRIDE_H + k - PAD_TOP, j STRIDE_W + l - PAD_LEFT, m] = program(p[n, i, j, k, l, m]), program(0) elsewhere
//
// Before this text comes what engine.h says. KERNEL_H <= STRIDE_H and KERNEL_W <= STRIDE_W, so each pixel of the result
// has at most one element of P. A thread has PARTS vectors of channels, THREADS apart, and loads all before it stores
// one.

#define VECTORS (FILTERS / VECTOR)  // of a pixel

// A vector of the result.
struct Place {
  int n, y, x, m;
  bool exists;
  const Arguments& a;
  DEVICE Place(const Arguments& a, int number)
    : n(number / VECTORS / OUT_W / OUT_H),
      y(number / VECTORS / OUT_W % OUT_H),
      x(number / VECTORS % OUT_W),
      m(number % VECTORS * VECTOR),
      exists(n < (int)a.batch),
      a(a) {}
  DEVICE int offset() const { return ((n * OUT_H + y) * OUT_W + x) * FILTERS + m; }

  DEVICE void load_product(Vector<storage_t, VECTOR>& product, const storage_t* p) const {
    const int row = y + PAD_TOP, column = x + PAD_LEFT;
    const int i = row / STRIDE_H, j = column / STRIDE_W, k = row % STRIDE_H, l = column % STRIDE_W;
    const bool is_product = exists && i < IMAGE_H && j < IMAGE_W && k < KERNEL_H && l < KERNEL_W;
    load_if(is_product, product,
      p + (((n * IMAGE_H + i) * IMAGE_W + j) * (KERNEL_H * KERNEL_W) + k * KERNEL_W + l) * FILTERS + m);
  }
};

extern "C" __global__ void __launch_bounds__(THREADS) pixel_shuffle(const Arguments a) {
  grid_dependency_wait();
  const int first = blockIdx.x * (THREADS * PARTS) + threadIdx.x;
  Vector<storage_t, VECTOR> products[PARTS];
#pragma unroll
  for (int part = 0; part < PARTS; ++part)
    Place(a, first + part * THREADS).load_product(products[part], (const storage_t*)a.in[0]);
#pragma unroll
  for (int part = 0; part < PARTS; ++part) {
    const Place at(a, first + part * THREADS);
    if (!at.exists) return;
    TileOperands<VECTOR> shared_operands;
    PixelOperands<VECTOR> operands;
    Results<VECTOR> results;
    shared_operands.load(a, at.n, at.m);
    operands.load(a, at.n, at.y, at.x, at.m, at.offset());
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) apply(shared_operands, operands, j, to_compute(products[part][j]), results);
    results.store(a, at.offset());
  }
}
