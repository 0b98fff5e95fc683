// Hopper's copy engine (TMA) and the barriers in shared memory that its copies arrive at. Addresses of shared memory
// are 32-bit; a barrier's phase alternates between 0 and 1.

// A CUtensorMap, which the host encodes for each launch (packed_kernel.h).
struct __align__(64) TensorMap {
  unsigned long long words[16];
};

DEVICE unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

DEVICE void init_barrier(unsigned barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Makes barriers visible to the copy engine.
DEVICE void fence_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// One arrival, and so many bytes more to come in this phase.
DEVICE void expect_bytes(unsigned barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
DEVICE void arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
DEVICE void wait_barrier(unsigned barrier, unsigned phase) {
  asm volatile(
    "{\n\t.reg .pred done;\n\tWAIT:\n\tmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
    "@!done bra WAIT;\n\t}" ::"r"(barrier),
    "r"(phase)
    : "memory");
}

// A place in a ring of COUNT stages, and how often it has been gone round.
template <int COUNT>
struct Ring {
  int stage = 0;
  unsigned phase = 0;
  DEVICE void step() {
    if (++stage < COUNT) return;
    stage = 0;
    phase ^= 1;
  }
  DEVICE void skip(int count) {
    stage += count;
    phase ^= stage / COUNT & 1;
    stage %= COUNT;
  }
};

// The box of a matrix that begins at (column, row), which arrives at the barrier.
DEVICE void copy_box(unsigned to, const TensorMap* from, int column, int row, unsigned barrier) {
  asm volatile(
    "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
    "l"(from), "r"(column), "r"(row), "r"(barrier)
    : "memory");
}
// That of a tensor [batch, head, row, column].
DEVICE void copy_box(unsigned to, const TensorMap* from, int column, int row, int head, int batch, unsigned barrier) {
  asm volatile(
    "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], "
    "[%6];" ::"r"(to),
    "l"(from), "r"(column), "r"(row), "r"(head), "r"(batch), "r"(barrier)
    : "memory");
}
// The same, to this place of each block of the cluster that `blocks` has a bit of, and to its barrier at this address.
DEVICE void copy_box_to_blocks(
  unsigned blocks, unsigned to, const TensorMap* from, int column, int row, int head, int batch, unsigned barrier) {
  asm volatile(
    "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
    "[%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(to),
    "l"(from), "r"(column), "r"(row), "r"(head), "r"(batch), "r"(barrier), "h"((unsigned short)blocks)
    : "memory");
}
// As many pixels of images [batch, row, column, channel] as the map's boxes have (Im2col in packed_kernel.h), as
// results see them by the tap at `tap_x`, `tap_y` of theirs; (x, y) of the image n is where the first one's first tap
// is.
DEVICE void copy_pixels(
  unsigned to, const TensorMap* from, int channel, int x, int y, int n, int tap_x, int tap_y, unsigned barrier) {
  asm volatile(
    "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], "
    "[%6], {%7, %8};" ::"r"(to),
    "l"(from), "r"(channel), "r"(x), "r"(y), "r"(n), "r"(barrier), "h"((unsigned short)tap_x),
    "h"((unsigned short)tap_y)
    : "memory");
}
// From shared memory to the box, as far as the tensor has it; a thread's stores are committed as groups.
DEVICE void store_box(const TensorMap* to, int column, int row, int head, int batch, unsigned from) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%1, %2, %3, %4}], [%5];" ::"l"(to),
    "r"(column), "r"(row), "r"(head), "r"(batch), "r"(from)
    : "memory");
}
DEVICE void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Until they have read shared memory.
DEVICE void wait_stores() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
DEVICE void prefetch_map(const TensorMap* map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }
