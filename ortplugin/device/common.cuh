// What every kernel stands on: storage types, conversions and wide accesses. No CUDA header is included, so that NVRTC
// needs nothing but itself. Tensors hold half_t, bfloat_t, float, double, bool_t or integers; arithmetic runs in float,
// double, bool or the integer type itself.
#pragma once

#define DEVICE __device__ __forceinline__  // a function within kernels

// The first thing in every kernel that has no reason to do it later: it may have been launched while the kernel before
// it still runs (launch.cc). Until it has waited it may read what no kernel writes, such as constant weights, or what
// a prefetch alone goes by, and must write nothing.
DEVICE void grid_dependency_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel become resident beside this one. `next_waits`: the kernel's last parameter, which is 0 unless
// that next kernel is known to be one of ours: one of another library may not wait.
DEVICE void let_next_start(unsigned next_waits) {
#if __CUDA_ARCH__ >= 900
  if (next_waits) asm volatile("griddepcontrol.launch_dependents;");
#endif
}

struct half_t {
  unsigned short bits;
};
struct bfloat_t {
  unsigned short bits;
};
struct bool_t {
  unsigned char bits;
};

DEVICE float to_compute(half_t x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}
DEVICE float to_compute(bfloat_t x) { return __uint_as_float((unsigned)x.bits << 16); }
DEVICE float to_compute(float x) { return x; }
DEVICE double to_compute(double x) { return x; }
DEVICE bool to_compute(bool_t x) { return x.bits != 0; }

// Rounds to nearest, ties to even; a NaN stays one.
DEVICE void from_compute(float x, half_t& y) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x)); }
DEVICE void from_compute(float x, bfloat_t& y) {
#if __CUDA_ARCH__ >= 800
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
#else
  const unsigned bits = __float_as_uint(x);
  y.bits = x != x ? 0x7fff : (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
#endif
}
DEVICE void from_compute(float x, float& y) { y = x; }
DEVICE void from_compute(double x, double& y) { y = x; }
DEVICE void from_compute(bool x, bool_t& y) { y.bits = x; }

// The rest of the basics for each integer type, which is stored as it is computed: no conversion, and element j of the
// words of a vector.
#define INTEGER_TYPE(T, taken) \
  DEVICE T to_compute(T x) { return x; } \
  DEVICE void from_compute(T x, T& y) { y = x; } \
  DEVICE void take(const unsigned* words, int j, T& x) { x = (T)(taken); }
#define TAKE_BYTE (words[j / 4] >> j % 4 * 8)
#define TAKE_SHORT (words[j / 2] >> j % 2 * 16)
#define TAKE_LONG ((unsigned long long)words[2 * j + 1] << 32 | words[2 * j])
INTEGER_TYPE(signed char, TAKE_BYTE)
INTEGER_TYPE(unsigned char, TAKE_BYTE)
INTEGER_TYPE(short, TAKE_SHORT)
INTEGER_TYPE(unsigned short, TAKE_SHORT)
INTEGER_TYPE(int, words[j])
INTEGER_TYPE(unsigned int, words[j])
INTEGER_TYPE(long long, TAKE_LONG)
INTEGER_TYPE(unsigned long long, TAKE_LONG)
#undef INTEGER_TYPE
#undef TAKE_BYTE
#undef TAKE_SHORT
#undef TAKE_LONG

// N elements that lie side by side, held as they lie in memory and taken apart only where they are used: a row that is
// loaded ahead then costs half the registers, and nothing waits for it early. Memory is reached in accesses of up to 16
// bytes; an address must be a multiple of 16, or of N * sizeof(T) where that is less.
template <int BYTES>
struct Chunk;
template <>
struct Chunk<16> {
  typedef uint4 type;
};
template <>
struct Chunk<8> {
  typedef uint2 type;
};
template <>
struct Chunk<4> {
  typedef unsigned type;
};
template <>
struct Chunk<2> {
  typedef unsigned short type;
};
template <>
struct Chunk<1> {
  typedef unsigned char type;
};

// Data that is read once must leave L1 to the operands that every row shares: it is marked as the first to leave the
// caches or, where a kernel defines LOADS_PASS_L1, not put into L1 at all.
#if LOADS_PASS_L1
DEVICE void load_once(uint4& x, const void* p) {
  asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
    : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
    : "l"(p));
}
DEVICE void load_once(uint2& x, const void* p) {
  asm("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "l"(p));
}
#else
DEVICE void load_once(uint4& x, const void* p) { x = __ldcs((const uint4*)p); }
DEVICE void load_once(uint2& x, const void* p) { x = __ldcs((const uint2*)p); }
#endif
template <typename T>
DEVICE void load_once(T& x, const void* p) {
  x = __ldg((const T*)p);
}

// Data that this kernel may overwrite once it has read it, so not through the read-only path: these stay in front of
// the stores that follow them.
#define ORDERED_LOAD(T, outputs, type, ...) \
  DEVICE void load_ordered(T& x, const void* p) { \
    asm volatile("ld.global." type " " outputs ";" : __VA_ARGS__ : "l"(p) : "memory"); \
  }
ORDERED_LOAD(uint4, "{%0, %1, %2, %3}, [%4]", "v4.u32", "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w))
ORDERED_LOAD(uint2, "{%0, %1}, [%2]", "v2.u32", "=r"(x.x), "=r"(x.y))
ORDERED_LOAD(unsigned, "%0, [%1]", "u32", "=r"(x))
ORDERED_LOAD(unsigned short, "%0, [%1]", "u16", "=h"(x))
#undef ORDERED_LOAD
DEVICE void load_ordered(unsigned char& x, const void* p) {
  unsigned wide;
  asm volatile("ld.global.u8 %0, [%1];" : "=r"(wide) : "l"(p) : "memory");
  x = (unsigned char)wide;
}

// Results that fill the cache many times over are marked as the first to leave it.
DEVICE void store_once(void* p, const uint4& x) { __stcs((uint4*)p, x); }
DEVICE void store_once(void* p, const uint2& x) { __stcs((uint2*)p, x); }
template <typename T>
DEVICE void store_once(void* p, const T& x) {
  *(T*)p = x;
}

// Element j of the words of a vector.
DEVICE void take(const unsigned* words, int j, half_t& x) { x.bits = words[j / 2] >> j % 2 * 16; }
DEVICE void take(const unsigned* words, int j, bfloat_t& x) { x.bits = words[j / 2] >> j % 2 * 16; }
DEVICE void take(const unsigned* words, int j, bool_t& x) { x.bits = words[j / 4] >> j % 4 * 8; }
DEVICE void take(const unsigned* words, int j, float& x) { x = __uint_as_float(words[j]); }
DEVICE void take(const unsigned* words, int j, double& x) {
  x = __hiloint2double((int)words[2 * j + 1], (int)words[2 * j]);
}

template <typename T, int N>
struct Vector {
  static const int kBytes = N * (int)sizeof(T);
  static const int kStep = kBytes < 16 ? kBytes : 16;
  typedef typename Chunk<kStep>::type chunk_t;
  union {
    chunk_t chunks[kBytes / kStep];
    unsigned words[(kBytes + 3) / 4];
    T elements[N];
  };

  DEVICE Vector() {}
  DEVICE T operator[](int j) const {
    T x;
    take(words, j, x);
    return x;
  }
  DEVICE void set(int j, T x) { elements[j] = x; }

  DEVICE void load_once(const T* p) {
#pragma unroll
    for (int i = 0; i < kBytes / kStep; ++i) ::load_once(chunks[i], (const chunk_t*)p + i);
  }
  DEVICE void load(const T* p) {
#pragma unroll
    for (int i = 0; i < kBytes / kStep; ++i) chunks[i] = __ldg((const chunk_t*)p + i);
  }
  DEVICE void load_ordered(const T* p) {
#pragma unroll
    for (int i = 0; i < kBytes / kStep; ++i) ::load_ordered(chunks[i], (const chunk_t*)p + i);
  }
  DEVICE void store_once(T* p) const {
#pragma unroll
    for (int i = 0; i < kBytes / kStep; ++i) ::store_once((chunk_t*)p + i, chunks[i]);
  }
  DEVICE void store(T* p) const {
#pragma unroll
    for (int i = 0; i < kBytes / kStep; ++i) ((chunk_t*)p)[i] = chunks[i];
  }
};

// Division of an index by a number that is known at launch, as a product and a shift (Granlund and Montgomery,
// "Division by invariant integers using multiplication", 1994). Exact for indices below 2^31, or 2^63.
struct Divider {
  unsigned long long multiplier, shift;
};
DEVICE unsigned quotient(unsigned index, const Divider& by) {
  return (__umulhi(index, (unsigned)by.multiplier) + index) >> (unsigned)by.shift;
}
DEVICE unsigned long long quotient(unsigned long long index, const Divider& by) {
  return (__umul64hi(index, by.multiplier) + index) >> (unsigned)by.shift;
}

// A summand of an offset: a coordinate, which repeats after `period`, times `stride`.
struct IndexTerm {
  unsigned long long period, stride;
};
