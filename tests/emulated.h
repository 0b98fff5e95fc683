// What tests/emulator.py puts in front of a kernel's text, to run it on the CPU: CUDA's names, and PTX's instructions as
// functions. A thread is a fiber, which gives way to the next one where it waits; the blocks of a cluster run together,
// others one after the other. Shared memory is NaN until it is written.
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <vector>

#define __device__
#define __constant__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#define __align__(bytes) alignas(bytes)

struct uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
struct Index { unsigned x = 0, y = 0, z = 0; };
inline Index threadIdx, blockIdx, gridDim, blockDim;

namespace emulated {

[[noreturn]] inline void Fail(const char* what) {
  std::fprintf(stderr, "%s: block %u, thread %u\n", what, blockIdx.x, threadIdx.x);
  std::_Exit(1);
}

// An address of shared memory has the block's rank in its cluster above kRank bits.
constexpr size_t kShared = 232448, kStack = 256 << 10, kRank = 20;

struct Barrier { unsigned arrived = 0, phase = 0; };
struct Mbarrier {
  int count, pending;
  long long bytes = 0;
  unsigned phase = 0;
};
struct Block {
  unsigned number;
  char* shared;
  size_t used;
  unsigned ended = 0;
  std::map<int, void*> named;
  std::map<int, Barrier> barriers;  // those of bar.sync, and from 100 and 200 on of warps and warpgroups
};
struct Fiber {
  ucontext_t context;
  Block* block;
  unsigned thread, cluster_phase;  // in which it arrived at the cluster's barrier
  bool has_ended = false;
  std::vector<char> stack = std::vector<char>(kStack);
};
// As print_kernels.cc writes them.
struct TensorMap {
  uint64_t word, address, size, offset, box[2];  // size: of an element; box: rows, and matrices of them
  long long sizes[4], steps[4];
  struct { long long lower, upper, stride; } pixels[2];
  char* data;
};

inline std::vector<Block> blocks;  // of the cluster
inline std::vector<Fiber> fibers;
inline std::vector<TensorMap> maps;
inline std::map<unsigned, Mbarrier> mbarriers;
inline Barrier of_cluster;
inline size_t current, live;
inline ucontext_t home;
inline void (*kernel)();

inline Block& Mine() { return *fibers[current].block; }
inline unsigned Rank() { return unsigned(&Mine() - blocks.data()); }
inline size_t GoToNext() {
  do current = (current + 1) % fibers.size();
  while (fibers[current].has_ended);
  threadIdx.x = fibers[current].thread;
  blockIdx.x = Mine().number;
  return current;
}
inline void Yield() {
  static uint64_t waits = 0;
  if (++waits > 1000000000) Fail("waits for ever");
  const size_t own = current, next = GoToNext();
  if (next != own) swapcontext(&fibers[own].context, &fibers[next].context);
}
inline void Arrive(Barrier& barrier, size_t count) {
  if (++barrier.arrived >= count) barrier = {0, barrier.phase + 1};
}
inline void Meet(int name, size_t count) {
  Barrier& barrier = Mine().barriers[name];
  const unsigned phase = barrier.phase;
  Arrive(barrier, count);
  while (barrier.phase == phase) Yield();
}
inline void SyncWarp() { Meet(100 + int(threadIdx.x / 32), 32); }

template <typename T>
T& Shared(int name, size_t alignment) {
  Block& block = Mine();
  void*& at = block.named[name];
  if (at == nullptr) {
    block.used = (block.used + alignment - 1) / alignment * alignment;
    at = block.shared + block.used;
    if ((block.used += sizeof(T)) > kShared) Fail("too much shared memory");
  }
  return *static_cast<T*>(at);
}
inline unsigned InBlock(unsigned address, unsigned rank) { return (address & ((1u << kRank) - 1)) | rank << kRank; }
inline char* At(unsigned address, size_t bytes) {
  const size_t rank = address >> kRank, offset = InBlock(address, 0);
  if (rank >= blocks.size() || offset + bytes > kShared || offset % bytes != 0) Fail("shared memory is missed");
  return blocks[rank].shared + offset;
}

// What each lane shows its warp.
template <typename T>
std::array<T, 32> Exchange(const T& own) {
  static std::array<T, 1024> shown[16];
  auto& mine = shown[Rank()];
  mine[threadIdx.x] = own;
  SyncWarp();
  std::array<T, 32> lanes;
  std::copy_n(&mine[threadIdx.x / 32 * 32], 32, lanes.begin());
  SyncWarp();
  return lanes;
}

inline void Entry() {
  kernel();
  fibers[current].has_ended = true;
  ++Mine().ended;
  if (--live == 0) setcontext(&home);
  if (of_cluster.arrived >= live) of_cluster = {0, of_cluster.phase + 1};
  setcontext(&fibers[GoToNext()].context);
}

// Reads arrays and the launch as emulator.py writes them, runs it and writes the arrays.
inline int Main(void* arguments, size_t bytes, unsigned cluster, void (*run)()) {
  const auto read = [](void* to, size_t count) {
    if (std::fread(to, 1, count, stdin) != count) Fail("the input is too short");
  };
  const auto number = [&] {
    uint64_t x;
    read(&x, sizeof x);
    return x;
  };
  std::vector<uint64_t> sizes(number());
  const uint64_t count = number(), threads = number(), dynamic = number();
  std::vector<uint64_t> words(number());
  for (uint64_t& size : sizes) size = number();
  for (uint64_t& word : words) word = number();
  std::vector<char*> arrays;
  for (const uint64_t size : sizes) arrays.push_back((char*)std::aligned_alloc(256, (size + 256) / 256 * 256));
  for (size_t i = 0; i < arrays.size(); ++i) words[i] = uint64_t(arrays[i]);
  maps.resize(number());
  for (size_t i = 0; i < maps.size(); ++i) {
    TensorMap& map = maps[i];
    read(&map, offsetof(TensorMap, data));
    map.size = map.size == 0 ? 2 : 4;
    map.data = arrays[map.address] + map.offset * map.size;
    words[map.word] = i;
  }
  for (size_t i = 0; i < arrays.size(); ++i) read(arrays[i], sizes[i]);
  if (words.size() * 8 > bytes) Fail("there are too many arguments");
  std::memcpy(arguments, words.data(), words.size() * 8);

  kernel = run;
  gridDim.x = unsigned(count);
  blockDim.x = unsigned(threads);
  std::vector<char> memory(cluster * (kShared + 1024) + 1024);
  fibers = std::vector<Fiber>(cluster * threads);
  for (unsigned first = 0; first < count; first += cluster) {
    std::fill(memory.begin(), memory.end(), char(0xff));
    blocks.assign(cluster, {});
    for (unsigned rank = 0; rank < cluster; ++rank) {
      char* const from = memory.data() + rank * (kShared + 1024);
      blocks[rank].number = first + rank;
      blocks[rank].shared = from + (1024 - uintptr_t(from) % 1024) % 1024;
      blocks[rank].used = dynamic;
    }
    for (size_t i = 0; i < fibers.size(); ++i) {
      Fiber& fiber = fibers[i];
      fiber.block = &blocks[i / threads];
      fiber.thread = unsigned(i % threads);
      fiber.has_ended = false;
      getcontext(&fiber.context);
      fiber.context.uc_stack.ss_sp = fiber.stack.data();
      fiber.context.uc_stack.ss_size = kStack;
      makecontext(&fiber.context, Entry, 0);
    }
    live = fibers.size();
    of_cluster = {};
    mbarriers.clear();
    current = live - 1;
    swapcontext(&home, &fibers[GoToNext()].context);
  }
  for (size_t i = 0; i < arrays.size(); ++i) std::fwrite(arrays[i], 1, sizes[i], stdout);
  return 0;
}

template <typename To, typename From>
To Bits(const From& from) {
  To to;
  static_assert(sizeof to == sizeof from, "as many bits");
  std::memcpy(&to, &from, sizeof to);
  return to;
}

// What factors of products are made of, from where they lie.
struct Of_f16 {
  typedef unsigned short Word;
  static float Value(Word x) { return float(Bits<_Float16>(x)); }
  static Word Of(float x) { return Bits<Word>(_Float16(x)); }
};
struct Of_bf16 {
  typedef unsigned short Word;
  static float Value(Word x) { return Bits<float>(unsigned(x) << 16); }
  static Word Of(float x) { return x != x ? 0x7fff : (Bits<unsigned>(x) + 0x7fff + (Bits<unsigned>(x) >> 16 & 1)) >> 16; }
};
struct Of_tf32 {
  typedef unsigned Word;
  static float Value(Word x) { return Bits<float>(x & 0xffffe000u); }
};

// Registers of an MMA's factors, of which a lane has the K elements 2 (lane % 4) and the next one, and those 8 behind.
template <typename Element>
float Part(unsigned word, unsigned k) {
  return Element::Value(typename Element::Word(word >> k % (4 / sizeof(typename Element::Word)) * 16));
}
template <typename Element, int REGISTERS>
void Mma(float& c0, float& c1, float& c2, float& c3, std::array<unsigned, 6> factors) {
  const auto lanes = Exchange(factors);
  const unsigned lane = threadIdx.x % 32, per = 4 / sizeof(typename Element::Word);
  float* const sums[] = {&c0, &c1, &c2, &c3};
  for (unsigned i = 0; i < 4; ++i) {
    double sum = *sums[i];
    for (unsigned k = 0; k < 4 * per * REGISTERS; ++k) {
      const unsigned from = k / per % 4, half = k / per / 4;
      sum += double(Part<Element>(lanes[lane / 4 * 4 + from][i / 2 + half * 2], k)) *
        double(Part<Element>(lanes[(lane % 4 * 2 + i % 2) * 4 + from][4 + half], k));
    }
    *sums[i] = float(sum);
  }
}

// Where the 128-byte swizzle has an address; an element (row, k) of a matrix that a descriptor describes.
inline unsigned Swizzled(unsigned address) { return address ^ (address >> 7 & 7) << 4; }
template <typename Element>
float ElementAt(uint64_t descriptor, bool is_mn_major, unsigned row, unsigned k) {
  const auto field = [&](int bit) { return unsigned(descriptor >> bit & 0x3fff) << 4; };
  const size_t size = sizeof(typename Element::Word);
  const unsigned address = field(0) +
    (is_mn_major ? row / 64 * field(16) + k / 8 * field(32) + k % 8 * 128 + row % 64 * 2
                 : row / 8 * field(32) + row % 8 * 128 + k * unsigned(size));
  return Element::Value(*(typename Element::Word*)At(InBlock(Swizzled(address), Rank()), size));
}
// The thread's sums of its warpgroup's MMA: 64 rows, N columns.
template <int N, typename Element, typename Left>
void Multiply(float* const* sums, bool adds, uint64_t right, bool is_mn_major, const Left& left) {
  const unsigned lane = threadIdx.x % 32;
  for (unsigned i = 0; i < N / 2; ++i) {
    double sum = adds ? *sums[i] : 0;
    for (unsigned k = 0; k < 32 / sizeof(typename Element::Word); ++k)
      sum += double(left(lane / 4 + i / 2 % 2 * 8, k)) *
        double(ElementAt<Element>(right, is_mn_major, i / 4 * 8 + lane % 4 * 2 + i % 2, k));
    *sums[i] = float(sum);
  }
}
template <int N, typename Element>
void Wgmma(float* const* sums, bool is_mn_major, uint64_t left, uint64_t right, int adds) {
  Multiply<N, Element>(sums, adds, right, is_mn_major,
    [&](unsigned row, unsigned k) { return ElementAt<Element>(left, false, threadIdx.x / 32 % 4 * 16 + row, k); });
}
template <int N, typename Element>
void Wgmma(float* const* sums, bool is_mn_major, unsigned a0, unsigned a1, unsigned a2, unsigned a3, uint64_t right) {
  const auto lanes = Exchange(std::array<unsigned, 4>{a0, a1, a2, a3});
  const unsigned per = 4 / sizeof(typename Element::Word);
  Multiply<N, Element>(sums, true, right, is_mn_major, [&](unsigned row, unsigned k) {
    return Part<Element>(lanes[row % 8 * 4 + k / per % 4][row / 8 + k / per / 4 * 2], k);
  });
}

inline void Arrive(unsigned address, int arrivals, long long bytes) {
  if (mbarriers.count(address) == 0) Fail("no barrier is there");
  Mbarrier& barrier = mbarriers[address];
  barrier.pending -= arrivals;
  barrier.bytes += bytes;
  if (barrier.pending < 0) Fail("too many arrive at a barrier");
  if (barrier.pending > 0 || barrier.bytes != 0) return;
  barrier.pending = barrier.count;
  ++barrier.phase;
}

// The row `row` of a box in shared memory, from or to the element (x, y, z, w) on.
inline void CopyRow(unsigned shared, unsigned row, const TensorMap& map, std::array<long long, 4> at, bool stores) {
  for (unsigned i = 0; i < 128u / map.size; ++i, ++at[0]) {
    char* const here = At(Swizzled(shared + row * 128 + i * unsigned(map.size)), map.size);
    long long offset = 0;
    bool exists = true;
    for (int dim = 0; dim < 4; ++dim) {
      offset += at[dim] * map.steps[dim];
      exists = exists && at[dim] >= 0 && at[dim] < map.sizes[dim];
    }
    char* const there = map.data + offset * (long long)map.size;
    if (!stores) std::memset(here, 0, map.size);
    if (exists) std::memcpy(stores ? there : here, stores ? here : there, map.size);
  }
}
inline const TensorMap& MapAt(const void* map) { return maps[*static_cast<const uint64_t*>(map)]; }
inline void CopyBox(unsigned to, const void* from, int x, int y, int z, int w, unsigned barrier, unsigned ranks) {
  const TensorMap& map = MapAt(from);
  for (unsigned rank = 0; rank < blocks.size(); ++rank) {
    if (!(ranks >> rank & 1)) continue;
    for (unsigned row = 0; row < map.box[0] * map.box[1]; ++row)
      CopyRow(InBlock(to, rank), row, map, {x, y + row % map.box[0], z + row / map.box[0], w}, false);
    Arrive(InBlock(barrier, rank), 0, -128ll * (long long)(map.box[0] * map.box[1]));
  }
}

}  // namespace emulated

using std::max;
using std::min;
inline long long min(long long a, int b) { return a < b ? a : b; }
inline long long max(long long a, int b) { return a > b ? a : b; }

inline void __syncthreads() { emulated::Meet(0, blockDim.x - emulated::Mine().ended); }
inline void __syncwarp() { emulated::SyncWarp(); }
template <typename T>
T __shfl_xor_sync(unsigned, T x, int mask) { return emulated::Exchange(x)[threadIdx.x % 32 ^ unsigned(mask)]; }
template <typename T>
T __shfl_sync(unsigned, T x, int lane) { return emulated::Exchange(x)[lane % 32]; }
inline unsigned __cvta_generic_to_shared(const void* p) {
  for (const emulated::Block& block : emulated::blocks)
    if (p >= block.shared && p <= block.shared + emulated::kShared)
      return unsigned(&block - emulated::blocks.data()) << emulated::kRank | unsigned((const char*)p - block.shared);
  emulated::Fail("no address of shared memory");
}
template <typename T>
T __ldg(const T* p) { return *p; }
template <typename T>
T __ldcs(const T* p) { return *p; }
template <typename T>
void __stcs(T* p, T x) { *p = x; }
#define BITS(name, To, From) \
  inline To name(From x) { return emulated::Bits<To>(x); }
BITS(__float_as_uint, unsigned, float)
BITS(__uint_as_float, float, unsigned)
BITS(__int_as_float, float, int)
BITS(__longlong_as_double, double, long long)
inline double __hiloint2double(int high, int low) {
  return emulated::Bits<double>((unsigned long long)(unsigned)high << 32 | (unsigned)low);
}
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned((unsigned long long)a * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)((unsigned __int128)a * b >> 64);
}
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(unsigned(x)); }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __fdividef(float a, float b) { return a / b; }
inline float rsqrt(float x) { return 1 / std::sqrt(x); }
inline double rsqrt(double x) { return 1 / std::sqrt(x); }
inline double normcdf(double x) { return 0.5 * std::erfc(-x * 0.70710678118654752); }
inline float normcdff(float x) { return float(normcdf(double(x))); }
float __int2float_rz(int), __uint2float_rz(unsigned), __ll2float_rz(long long), __ull2float_rz(unsigned long long);

// ---- PTX: inputs, then outputs. What is not there fails where a thread comes to it.

namespace emulated {

inline void cvt_f32_f16(unsigned short x, float& y) { y = Of_f16::Value(x); }
inline void cvt_rn_f16_f32(float x, unsigned short& y) { y = Of_f16::Of(x); }
inline void cvt_rn_bf16_f32(float x, unsigned short& y) { y = Of_bf16::Of(x); }
inline void cvt_rn_f16x2_f32(float high, float low, unsigned& y) {
  y = unsigned(Of_f16::Of(high)) << 16 | Of_f16::Of(low);
}
inline void cvt_rn_bf16x2_f32(float high, float low, unsigned& y) {
  y = unsigned(Of_bf16::Of(high)) << 16 | Of_bf16::Of(low);
}
inline void cvt_rn_f16_f32_cvt_f32_f16(float x, float& y) { y = float(_Float16(x)); }
inline void cvt_rna_tf32_f32(float x, unsigned& y) {
  const unsigned bits = __float_as_uint(x);
  y = std::isfinite(x) ? (bits + 0x1000) & 0xffffe000u : bits;
}
inline void cvt_rna_tf32_f32(unsigned& x) { cvt_rna_tf32_f32(__uint_as_float(x), x); }
inline void ex2_f32(float x, float& y) { y = std::exp2(x); }
inline void rcp_f32(float x, float& y) { y = 1 / x; }
inline void min_NaN_f32(float a, float b, float& y) { y = a != a || b != b ? NAN : min(a, b); }
inline void max_NaN_f32(float a, float b, float& y) { y = a != a || b != b ? NAN : max(a, b); }

// Of global memory; of shared memory.
template <typename... Words>
void ld(const void* from, int exists, Words&... to) {
  if (!exists) return;
  if (uintptr_t(from) % (sizeof(Words) + ...) != 0) Fail("a load is not aligned");
  const char* at = static_cast<const char*>(from);
  ((std::memcpy(&to, at, sizeof to), at += sizeof to), ...);
}
inline void ld_u8(const void* from, int, unsigned& to) { to = *static_cast<const unsigned char*>(from); }
template <typename... Words>
void ld(unsigned from, int, Words&... to) {
  ld((const void*)At(from, (sizeof(Words) + ...)), 1, to...);
}
template <typename... Words>
void st(unsigned to, Words... of) {
  char* at = At(to, (sizeof(Words) + ...));
  ((std::memcpy(at, &of, sizeof of), at += sizeof of), ...);
}
inline void st_v4_u32(unsigned x, unsigned y, unsigned z, unsigned w, void* to, int exists) {
  if (exists) *static_cast<uint4*>(to) = {x, y, z, w};
}
inline void cp_async_ca(unsigned to, const void* from, int bytes, int taken) {
  if (uintptr_t(from) % unsigned(bytes) != 0) Fail("a copy is not aligned");
  char* const at = At(to, size_t(bytes));
  std::memset(at, 0, size_t(bytes));
  std::memcpy(at, from, size_t(taken));
}
inline void cp_async_cg(unsigned to, const void* from, int taken) { cp_async_ca(to, from, 16, taken); }

// Matrices of eight rows of 16 bytes, to whose numbers the lanes have addresses.
inline char* MatrixRow(const std::array<unsigned, 32>& lanes, unsigned matrix, unsigned row) {
  return At(lanes[matrix * 8 + row], 16);
}
template <typename... Words>
void ldmatrix(unsigned from, Words&... to) {
  const auto lanes = Exchange(from);
  unsigned matrix = 0;
  ((std::memcpy(&to, MatrixRow(lanes, matrix++, threadIdx.x % 32 / 4) + threadIdx.x % 4 * 4, 4)), ...);
}
template <typename... Words>
void ldmatrix_trans(unsigned from, Words&... to) {
  const auto lanes = Exchange(from);
  const unsigned lane = threadIdx.x % 32;
  unsigned matrix = 0;
  const auto half = [&](unsigned row) {
    return unsigned(*(unsigned short*)(MatrixRow(lanes, matrix, lane % 4 * 2 + row) + lane / 4 * 2));
  };
  ((to = half(0) | half(1) << 16, ++matrix), ...);
}
inline void stmatrix(unsigned to, unsigned w0, unsigned w1, unsigned w2, unsigned w3) {
  const auto lanes = Exchange(to);
  unsigned matrix = 0;
  for (const unsigned word : {w0, w1, w2, w3})
    std::memcpy(MatrixRow(lanes, matrix++, threadIdx.x % 32 / 4) + threadIdx.x % 4 * 4, &word, 4);
  SyncWarp();
}

inline void bar_sync(int name, int count) { Meet(name, size_t(count)); }
inline void bar_arrive(int name, int count) {
  Arrive(Mine().barriers[name], size_t(count));
}
inline void wgmma_commit_group() { Meet(200 + int(threadIdx.x / 128), 128); }  // all have read then
inline void barrier_arrive() {
  fibers[current].cluster_phase = of_cluster.phase;
  Arrive(of_cluster, live);
}
inline void barrier_wait() {
  while (of_cluster.phase == fibers[current].cluster_phase) Yield();
}
inline void mapa_u32(unsigned address, unsigned rank, unsigned& there) { there = InBlock(address, rank); }
inline void mbarrier_init(unsigned barrier, int count) { mbarriers[barrier] = {count, count}; }
inline void mbarrier_arrive_expect_tx(unsigned barrier, int bytes) { Arrive(barrier, 1, bytes); }
inline void mbarrier_arrive(unsigned barrier) { Arrive(barrier, 1, 0); }
inline void mbarrier_try_wait_parity(unsigned barrier, unsigned parity = 0) {
  while (mbarriers[barrier].phase % 2 == parity) Yield();
}
inline void st_async_mbarrier_b32(unsigned to, unsigned x, unsigned barrier) {
  st(to, x);
  Arrive(barrier, 0, -4);
}
inline void cp_async_bulk_tensor_2d_mbarrier(unsigned to, const void* map, int x, int y, unsigned barrier) {
  CopyBox(to, map, x, y, 0, 0, barrier, 1u << Rank());
}
inline void cp_async_bulk_tensor_4d_mbarrier(
  unsigned to, const void* map, int x, int y, int z, int w, unsigned barrier) {
  CopyBox(to, map, x, y, z, w, barrier, 1u << Rank());
}
inline void cp_async_bulk_tensor_4d_mbarrier_multicast(
  unsigned to, const void* map, int x, int y, int z, int w, unsigned barrier, unsigned ranks) {
  CopyBox(to, map, x, y, z, w, barrier, ranks);
}
inline void cp_async_bulk_tensor_4d_im2col_mbarrier(
  unsigned to, const void* of, int c, int x, int y, int n, unsigned barrier, int tap_x, int tap_y) {
  const TensorMap& map = MapAt(of);
  for (unsigned row = 0; row < map.box[0]; ++row) {
    CopyRow(to, row, map, {c, x + tap_x, y + tap_y, n}, false);
    if ((x += map.pixels[0].stride) < map.sizes[1] + map.pixels[0].upper) continue;
    x = map.pixels[0].lower;
    if ((y += map.pixels[1].stride) < map.sizes[2] + map.pixels[1].upper) continue;
    y = map.pixels[1].lower;
    ++n;
  }
  Arrive(barrier, 0, -128ll * (long long)map.box[0]);
}
inline void cp_async_bulk_tensor_4d_bulk_group(const void* of, int x, int y, int z, int w, unsigned from) {
  const TensorMap& map = MapAt(of);
  for (unsigned row = 0; row < map.box[0]; ++row) CopyRow(from, row, map, {x, y + row, z, w}, true);
}

}  // namespace emulated
