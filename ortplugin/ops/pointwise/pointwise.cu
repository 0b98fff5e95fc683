// results[e] = program(inputs[e]) for every element e of the shape S that all inputs broadcast to.
//
// The text in front of this one is generated for the node at hand (pointwise_cuda.cc). It gives VECTOR, ITEMS, THREADS,
// TAIL, index_t, Arguments, Scalars (the operands of one element), Operands<N> and Results<N> (N neighbouring elements
// of each tensor) and `apply`, the program.
//
// A thread takes ITEMS vectors of VECTOR elements, a block's width apart. All their loads are under way before the
// first of them is needed, and an element's inputs are read before a result that may have taken their place is written.

extern "C" __global__ void __launch_bounds__(THREADS, 1) pointwise(const Arguments args) {
  grid_dependency_wait();
  const Scalars scalars(args);
  const index_t vectors = (index_t)args.vectors;
  const index_t step = (index_t)blockDim.x * ITEMS;
  for (index_t first = blockIdx.x * step + threadIdx.x; first < vectors; first += gridDim.x * step) {
    Operands<VECTOR> operands[ITEMS];
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
      // Past the end the last vector is read again and nothing is written.
      const index_t index = first + k * blockDim.x;
      operands[k].load(args, ITEMS == 1 || index < vectors ? index : vectors - 1);
    }
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
      const index_t index = first + k * blockDim.x;
      if (ITEMS > 1 && index >= vectors) continue;
      Results<VECTOR> results;
#pragma unroll
      for (int j = 0; j < VECTOR; ++j) apply(operands[k], scalars, j, results);
      results.store(args, index);
    }
  }
#if TAIL  // elements are left that fill no vector
  const index_t element = vectors * VECTOR + threadIdx.x;
  if (blockIdx.x == gridDim.x - 1 && element < (index_t)args.count) {
    Operands<1> operands;
    Results<1> results;
    operands.load(args, element);
    apply(operands, scalars, 0, results);
    results.store(args, element);
  }
#endif
}
