// Blocks that work together as a cluster of CLUSTER, by distributed shared memory; 1: each is alone.

// Tells the other blocks that this one has begun, so that they may write to its shared memory; nothing is there yet.
DEVICE void begin_cluster() {
#if CLUSTER > 1
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}

// All blocks of the cluster, or all threads of the only one: what they wrote before they arrived is there behind the
// wait.
DEVICE void arrive_cluster() {
#if CLUSTER > 1
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
DEVICE void wait_cluster() {
#if CLUSTER > 1
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
  __syncthreads();
#endif
}

// To a block of the cluster, at the address that it has in this one.
#if CLUSTER > 1
DEVICE unsigned address_in_block(unsigned address, unsigned block) {
  unsigned there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(block));
  return there;
}
DEVICE unsigned address_in_block(const float* p, unsigned block) {
  return address_in_block((unsigned)__cvta_generic_to_shared(p), block);
}
// Its four bytes arrive at that block's barrier, an mbarrier at this address of shared memory; nothing else that this
// thread has written is waited for.
DEVICE void give_to_block(float* to, unsigned block, float x, unsigned barrier) {
  asm volatile(
    "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(address_in_block(to, block)),
    "r"(__float_as_uint(x)), "r"(address_in_block(barrier, block))
    : "memory");
}
// Until all bytes that the barrier expects have arrived, for the first time.
DEVICE void wait_given(unsigned barrier) {
  asm volatile(
    "{\n\t.reg .pred done;\n\tWAIT:\n\tmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], 0;\n\t"
    "@!done bra WAIT;\n\t}" ::"r"(barrier)
    : "memory");
}
// One arrival at the barrier that a block has at this address, of a thread that has written nothing which another block
// reads: a release to the cluster would wait for the whole GPU.
DEVICE void arrive_in_block(unsigned barrier, unsigned block) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(address_in_block(barrier, block)) : "memory");
}
#else
DEVICE void give_to_block(float* to, unsigned, float x, unsigned) { *to = x; }
#endif
DEVICE void store_to_block(float* to, unsigned block, float x) {
#if CLUSTER > 1
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(address_in_block(to, block)), "f"(x) : "memory");
#else
  *to = x;
#endif
}
DEVICE void store_to_block(float* to, unsigned block, float first, float second) {
#if CLUSTER > 1
  asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(address_in_block(to, block)), "f"(first), "f"(second)
    : "memory");
#else
  *(float2*)to = make_float2(first, second);
#endif
}
#if CLUSTER > 1
DEVICE void store_to_block(float4* to, unsigned block, float4 x) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address_in_block((float*)to, block)), "f"(x.x),
    "f"(x.y), "f"(x.z), "f"(x.w)
    : "memory");
}
#endif
