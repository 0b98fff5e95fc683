// What attention's engines on tensor cores share: exponentials of base 2, rows of accumulators, and which keys a query
// sees. MMA_TYPE is "f16" or "bf16", or "tf32", of which nothing is packed.

#define LOG2_E 1.44269504088896340736f
#define INFINITE __int_as_float(0x7f800000)
// Where nothing comes between product and exponential, the scale is a factor of the exponent.
#define SCALE_IS_LATE (!MASK && !HAS_SOFTCAP && SCALE_IS_POSITIVE)

DEVICE float exp2_of(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The score as an exponent of 2. float32's lowest number, which masks are made of, stays finite: a row that is masked
// whole by it has equal weights, and one of -inf has none.
DEVICE float exponent_of(float score) {
  const float exponent = score * LOG2_E;
#if MASK && !IS_BOOL_MASK
  if (exponent == -INFINITE && score != -INFINITE) return -3.4e38f;
#endif
  return exponent;
}

DEVICE unsigned pack(float low, float high) {
  unsigned both;
  asm("cvt.rn." MMA_TYPE "x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}

// The largest of a row, of which four neighbouring threads have a part each; and the sum.
DEVICE float max_of_row(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
DEVICE float sum_of_row(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// Which keys a query sees: from first(row) to before last(row).
struct Keys {
  int keys, behind, window;  // behind: query i sees the keys up to i + behind
  DEVICE explicit Keys(const Arguments& a, long long batch = 0)
    : keys((int)a.keys), behind((int)LAST_SEEN(a, batch)), window((int)a.window) {}
  DEVICE int last(int row) const { return IS_CAUSAL ? max(0, min(keys, row + behind + 1)) : keys; }
  DEVICE int first(int row) const { return HAS_WINDOW ? max(0, row + behind + 1 - window) : 0; }
};
