// Heights and widths: constants, or with OPEN_SIZES arguments of the kernel (engine.h).

#if OPEN_SIZES
// With what divides by it in three instructions. Numbers that are divided are not negative. engine.cc makes it.
struct Size {
  unsigned value, reciprocal;  // 2^(31 + L) / value, rounded up, where L is log2 of the value, rounded up
  DEVICE operator int() const { return (int)value; }
};
// Exact: the reciprocal is too large by less than 2^-31 of itself, and `x` is below 2^31.
DEVICE int operator/(int x, const Size& size) {
  return (int)(__umulhi(2u * (unsigned)x, size.reciprocal) >> (32 - __clz((int)size.value - 1)));
}
DEVICE int operator%(int x, const Size& size) { return x - x / size * (int)size.value; }
#define TILES_H a.tiles_h
#define TILES_W a.tiles_w
#else
typedef unsigned long long Size;
#define TILES_H ((OUT_H + TILE_H - 1) / TILE_H)
#define TILES_W ((OUT_W + TILE_W - 1) / TILE_W)
#endif
// That no tile reaches past the edge, for sure.
#define WHOLE_TILES_H (!OPEN_SIZES && OUT_H % TILE_H == 0)
#define WHOLE_TILES_W (!OPEN_SIZES && OUT_W % TILE_W == 0)
