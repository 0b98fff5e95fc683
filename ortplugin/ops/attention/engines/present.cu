// present[b, h, j, d] = past[b, h, j, d]                for j < past, of keys and of values
//                       K[b, h, j - past, d], rotated   for the keys behind, V[b, h, j - past, d] for the values
//
// or, with a position, K and V in the place of the rows of past from there on. The others stand there already where the
// caller gave the memory of past to present.
//
// The text in front of this one is generated for the node at hand (table.cc, present.cc): dtypes, sizes, attributes,
// Arguments; and rows.cuh. A thread writes VECTOR neighbouring elements; where that is more than one, everything begins
// and steps by so many. index_t counts them.

#define THREADS 256

template <int WIDTH, bool IS_KEY>
DEVICE void write(const Arguments& a, index_t item, const storage_t* added, const View& added_view,
  const storage_t* past, const View& past_view, storage_t* present, const View& present_view) {
  const index_t keys = (index_t)a.keys, kv_heads = (index_t)(a.heads / a.group), row = item / (WIDTH / VECTOR);
  const long long d = item % (WIDTH / VECTOR) * VECTOR, key = row % keys, both = row / keys;
  const long long head = both % kv_heads, batch = both / kv_heads, own = AddedRows<long long>(a, batch).of(key);
  if (HAS_POSITION && own < 0 && past == present) return;
  storage_t* const to =
    present + batch * present_view.batch + head * present_view.head + key * present_view.row + d * present_view.column;
  const storage_t* from = past + batch * past_view.batch + head * past_view.head;
  long long there = key;
  const View* view = &past_view;
  if (own >= 0) {
    from = added + added_view.offset + batch * added_view.batch + head * added_view.head;
    there = own;
    view = &added_view;
  }
#if ROTARY
  if (IS_KEY && own >= 0) {
    const RotatedRows rotated{{from, added_view}, a.cos + batch * a.rotary_batch, a.sin + batch * a.rotary_batch};
#pragma unroll 1
    for (int i = 0; i < VECTOR; ++i) from_compute(rotated(there, (int)d + i), to[i * present_view.column]);
    return;
  }
#endif
  Vector<storage_t, VECTOR> some;
  some.load_ordered(from + there * view->row + d * view->column);
  some.store(to);
}

extern "C" __global__ void __launch_bounds__(THREADS) present(const Arguments a) {
  grid_dependency_wait();
  const index_t item = (index_t)blockIdx.x * THREADS + threadIdx.x;
  const index_t rows = (index_t)a.present_rows, of_keys = rows * (HEAD_SIZE / VECTOR);
  if (item < of_keys)
    write<HEAD_SIZE, true>(a, item, a.k, a.k_view, a.past_key, a.past_key_view, a.present_key, a.present_key_view);
  else if (item - of_keys < rows * (VALUE_SIZE / VECTOR))
    write<VALUE_SIZE, false>(
      a, item - of_keys, a.v, a.v_view, a.past_value, a.past_value_view, a.present_value, a.present_value_view);
}
