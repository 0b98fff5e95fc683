// Elements of Q, K and V one by one, as they lie or rotated: for what is not worth wide loads. The text in front of
// this one is generated (table.cc).

// The rows of one head of Q, K or V.
struct Rows {
  const storage_t* head;
  const View& view;
  DEVICE compute_t operator()(long long row, int d) const { return to_compute(head[row * view.row + d * view.column]); }
};

#if ROTARY
// Those of Q or K: element d is rotated in the plane that it has with another element, and rounded.
struct RotatedRows {
  Rows rows;
  const table_t *cos, *sin;  // [row, pair] of the batch
  DEVICE compute_t operator()(long long row, int d) const {
    const compute_t x = rows(row, d);
    if (d >= 2 * PAIRS) return x;
    const bool is_second = IS_INTERLEAVED ? d % 2 : d >= PAIRS;
    const int step = IS_INTERLEAVED ? 1 : PAIRS;
    const long long at = row * PAIRS + (IS_INTERLEAVED ? d / 2 : d % PAIRS);
    const compute_t other = rows(row, is_second ? d - step : d + step), sine = (compute_t)to_compute(sin[at]);
    storage_t stored;
    from_compute(x * (compute_t)to_compute(cos[at]) + other * (is_second ? sine : -sine), stored);
    return to_compute(stored);
  }
};
#else
typedef Rows RotatedRows;
#endif
