// Loads and copies that the engines share: predicated global loads, vectors from shared memory, cp.async. No load is
// moved in front of grid_dependency_wait(), as one through the read-only path could be: the asm statements stay in
// order.

#define LOAD_IF(T, type, registers, address, condition, ...) \
  DEVICE void load_if(bool exists, T& x, const void* p) { \
    asm volatile("{\n\t.reg .pred exists;\n\tsetp.ne.b32 exists, " condition ", 0;\n\t@exists ld.global." type \
                 " " registers ", [" address "];\n\t}" \
      : __VA_ARGS__ \
      : "l"(p), "r"((int)exists)); \
  }
LOAD_IF(uint4, "v4.u32", "{%0, %1, %2, %3}", "%4", "%5", "+r"(x.x), "+r"(x.y), "+r"(x.z), "+r"(x.w))
LOAD_IF(uint2, "v2.u32", "{%0, %1}", "%2", "%3", "+r"(x.x), "+r"(x.y))
LOAD_IF(unsigned, "u32", "%0", "%1", "%2", "+r"(x))
LOAD_IF(unsigned short, "u16", "%0", "%1", "%2", "+h"(x))
#undef LOAD_IF

// N neighbouring elements of a tensor, or zeros where they do not exist.
template <typename T, int N>
DEVICE void load_if(bool exists, Vector<T, N>& x, const T* p) {
#pragma unroll
  for (int i = 0; i < (x.kBytes + 3) / 4; ++i) x.words[i] = 0;
#pragma unroll
  for (int i = 0; i < x.kBytes / x.kStep; ++i)
    load_if(exists, x.chunks[i], (const typename Vector<T, N>::chunk_t*)p + i);
}

template <typename T, int N>
DEVICE void load_shared(Vector<T, N>& x, const T* p) {
#pragma unroll
  for (int i = 0; i < x.kBytes / x.kStep; ++i) x.chunks[i] = ((const typename Vector<T, N>::chunk_t*)p)[i];
}

#if __CUDA_ARCH__ >= 800
// 16 bytes to shared memory, or zeros where they do not exist, which ends with the group that is committed next.
// `to`: an address in shared memory.
DEVICE void copy_async(unsigned to, const void* from, bool exists) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(exists ? 16 : 0) : "memory");
}
DEVICE void copy_async(void* to, const void* from, bool exists) {
  copy_async((unsigned)__cvta_generic_to_shared(to), from, exists);
}
DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N>
DEVICE void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
#endif
