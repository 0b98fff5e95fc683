// y[n, p, c] = x[n, c, p]: NCHW to NHWC, for an image that comes as NCHW, or, with pixels in the place of channels,
// NHWC to NCHW, for a result that shall have it. There are few channels, so that neighbours in y lie in a few lines of
// x or the other way round. The text in front gives element_t.

extern "C" __global__ void __launch_bounds__(256) transpose(const element_t* x, element_t* y,
    unsigned long long channels, unsigned long long pixels, unsigned long long count) {
  grid_dependency_wait();
  const unsigned long long step = (unsigned long long)gridDim.x * 256;
  for (unsigned long long i = (unsigned long long)blockIdx.x * 256 + threadIdx.x; i < count; i += step) {
    const unsigned long long pixel = i / channels, c = i - pixel * channels, n = pixel / pixels;
    y[i] = x[(n * channels + c) * pixels + (pixel - n * pixels)];
  }
}
