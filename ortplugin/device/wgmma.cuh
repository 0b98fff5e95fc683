// Hopper's tensor cores (wgmma), for the kernels whose warpgroups, of 128 threads, work for themselves: a team each.
//
// In shared memory 64 elements of a sum are one matrix, [row][64], with the octets of row r at octet ^ (r % 8): neither
// copies nor the tensor cores meet conflicts. `multiply` and `await_products` are generated (wgmma.cc).

__device__ __forceinline__ void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N>
__device__ __forceinline__ void await_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
// What this thread wrote to shared memory is there for the tensor cores.
__device__ __forceinline__ void show_to_tensor_cores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void meet_team(int team) { asm volatile("bar.sync %0, 128;" ::"r"(team + 1) : "memory"); }
// For more products while these are made.
__device__ __forceinline__ void end_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void await_products_but_last() {
  asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
}

// The offset of an octet of channels in a matrix of `rows` rows, in elements.
__device__ __forceinline__ int place_of(int row, int octet, int rows) {
  return (octet / 8 * rows + row) * 64 + (octet % 8 ^ row % 8) * 8;
}
// A descriptor of its lower half: eight rows are 1024 bytes, swizzled over 128.
__device__ __forceinline__ unsigned long long whole(unsigned lower) { return 1ull << 62 | 64ull << 32 | lower; }
// Such a matrix for `multiply`, from its first 16 channels or later ones.
__device__ __forceinline__ unsigned long long descriptor(const storage_t* matrix) {
  constexpr unsigned kOffset = (1 << 18) - 1;  // an address in a cluster has the block's number above it
  return whole(((unsigned)__cvta_generic_to_shared(matrix) & kOffset) >> 4 | 1u << 16);
}
// The right one where its rows lie side by side: matrices [64 elements of a sum][64 rows], one behind the other, from
// their first 16 elements or later ones.
__device__ __forceinline__ unsigned long long descriptor_of_columns(const storage_t* matrix) {
  return descriptor(matrix) ^ (1ull ^ 512ull) << 16;
}
