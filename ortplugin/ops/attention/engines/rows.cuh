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

// Which row of K and V a key is; negative: of past.
template <typename T>
struct AddedRows {
#if HAS_PAST && HAS_POSITION
  const T count;
  T first;
  DEVICE AddedRows(const Arguments& a, long long batch) : count((T)a.added) {
    const long long position = position_of(a, batch);
    first =
      (T)(position < 0 || position > a.past - a.added ? a.past : position);  // no key is new where they do not fit
  }
  DEVICE T of(T key) const { return key - first < count ? key - first : -1; }
#elif HAS_PAST
  const T first, count;
  DEVICE AddedRows(const Arguments& a, long long) : first((T)a.past), count((T)a.added) {}
  DEVICE T of(T key) const { return key - first; }
#else
  static const T first = 0;
  DEVICE AddedRows(const Arguments&, long long) {}
  DEVICE T of(T key) const { return key; }
#endif
  // Offsets of 32 bits count from here, for keys from `key` on.
  DEVICE T base(T key) const { return max(key, first) - first; }
};
