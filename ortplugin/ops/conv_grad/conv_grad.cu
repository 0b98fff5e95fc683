// A tensor with zeros around it along up to three axes, for weight gradients whose padding differs from end to end:
//
//   out[n, i0, i1, i2, c] = in[n, i0 - begin0, i1 - begin1, i2 - begin2, c], 0 beyond it
//
// Channels first, n runs over batch and channels and c has one index; channels last, c runs over the channels. ELEMENT
// is an unsigned type of the elements' size. Needs common.cuh.

struct Arguments {
  const void* in;
  void* out;
  unsigned long long count;  // of elements of `out`
  unsigned long long inner;  // of c
  unsigned long long large[3], small[3], pads_begin[3];
};

extern "C" __global__ void __launch_bounds__(256) pad(Arguments a) {
  grid_dependency_wait();
  const unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
  for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < a.count; i += step) {
    unsigned long long rest = i / a.inner, from = 0, stride = 1;
    bool inside = true;
#pragma unroll
    for (int axis = 2; axis >= 0; --axis) {
      const unsigned long long at = rest % a.large[axis] - a.pads_begin[axis];  // before the tensor: beyond every size
      inside = inside && at < a.small[axis];
      from += at * stride;
      stride *= a.small[axis];
      rest /= a.large[axis];
    }
    from = (rest * stride + from) * a.inner + i % a.inner;
    ((ELEMENT*)a.out)[i] = inside ? ((const ELEMENT*)a.in)[from] : 0;
  }
}
