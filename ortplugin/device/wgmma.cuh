// Hopper's tensor cores (wgmma), for kernels whose warpgroups (128 threads) each issue their own MMAs.
//
// Tiles in shared memory are K-major with a 128-byte swizzle: 64 elements of 16 bits along K are one matrix [row][64],
// and the octet o of row r stands at octet o ^ (r % 8); of fp32 they are 32 elements and their quads. Neither copies
// nor tensor cores meet bank conflicts. `wgmma` and `wait_wgmma` are generated (wgmma.cc).

// Makes what this thread wrote to shared memory visible to the tensor cores.
DEVICE void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
DEVICE void sync_warpgroup(int warpgroup) { asm volatile("bar.sync %0, 128;" ::"r"(warpgroup + 1) : "memory"); }
// Ends a group of MMAs, which a wait names. An empty group is no no-op: ptxas issues an MMA for it, which waits for
// those of other warpgroups that were issued before.
DEVICE void commit_wgmma() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
DEVICE void fence_wgmma() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void wait_wgmma_but_last() { asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory"); }
// Registers of each thread of a warpgroup, all of whose warps execute this, from now on: consumers take what producers
// give away.
template <int COUNT>
DEVICE void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT>
DEVICE void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// The swizzled offset of an octet of channels (of fp32 a quad) in a tile of `rows` rows, in elements.
DEVICE int swizzled_offset(int row, int octet, int rows) {
  return ((octet / 8 * rows + row) * 8 + (octet % 8 ^ row % 8)) * (16 / (int)sizeof(storage_t));
}
// A matrix descriptor from its lower half: eight rows are 1024 bytes, with the 128-byte swizzle.
DEVICE unsigned long long full_descriptor(unsigned lower) { return 1ull << 62 | 64ull << 32 | lower; }
// The descriptor of a K-major tile, from its first 16 channels or later ones. `address`: in shared memory.
DEVICE unsigned long long descriptor_at(unsigned address) {
  constexpr unsigned kOffset = (1 << 18) - 1;  // an address in a cluster has the block's number above it
  return full_descriptor((address & kOffset) >> 4 | 1u << 16);
}
DEVICE unsigned long long descriptor(const storage_t* matrix) {
  return descriptor_at((unsigned)__cvta_generic_to_shared(matrix));
}
// The descriptor of an MN-major B: matrices [rows along K][64 along N] so many bytes apart, from their first 16
// elements along K or later ones.
DEVICE unsigned long long descriptor_mn_major_at(unsigned address, unsigned matrix_bytes) {
  return descriptor_at(address) ^ (1ull ^ matrix_bytes >> 4) << 16;
}
// The same of matrices [64 along K][64 along N], one behind the other.
DEVICE unsigned long long descriptor_mn_major(const storage_t* matrix) {
  return descriptor(matrix) ^ (1ull ^ 512ull) << 16;
}
// Of this warpgroup's threads, where a block's warpgroups share what a launch gave each thread.
template <int COUNT, bool MORE>
DEVICE void set_registers() {
  if (MORE)
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
  else
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
