// Matrix products of a warp on tensor cores (mma.sync, from sm_80 on), their matrices from shared memory (ldmatrix).
// MMA_TYPE is "f16" or "bf16", or "tf32" with the MMA_K of 32 bytes then.

#ifndef MMA_K
#define MMA_K "16"
#endif

DEVICE void mma(float (&sums)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k" MMA_K ".row.col.f32." MMA_TYPE "." MMA_TYPE
      ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
    : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#define LOAD_MATRICES(name, form) \
  DEVICE void name(unsigned (&x)[4], const storage_t* from) { \
    asm volatile("ldmatrix.sync.aligned.m8n8.x4" form ".shared.b16 {%0, %1, %2, %3}, [%4];" \
      : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) \
      : "r"((unsigned)__cvta_generic_to_shared(from)) \
      : "memory"); \
  }
LOAD_MATRICES(load_matrices, "")
LOAD_MATRICES(load_transposed, ".trans")
#undef LOAD_MATRICES

// To the nearest number of TF32: the tensor cores would cut off.
DEVICE unsigned to_tf32(float x) {
  unsigned y;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
  return y;
}

// A number of fp32 in two of TF32, for products in three MMAs (3xTF32): rest * high + high * rest + high * high. High
// is cut off, as rounded the largest numbers would be infinite. Of what isn't finite the rest is NaN: see rests_of.
DEVICE void split_tf32(float x, unsigned& high, unsigned& rest) {
  high = __float_as_uint(x) & 0xffffe000u;
  rest = __float_as_uint(x - __uint_as_float(high));
}

// The sum of products with rests, without their NaN: where a factor is not finite that of high * high says what is.
DEVICE float rests_of(float sum) { return fmaxf(sum, -3.402823466e38f); }
