// The instructions of the machine, by CPUID itself: what __builtin_cpu_supports says is the compiler's runtime
// library's to fill, and that of Zig's clang, which builds the wheel, leaves it 0.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>

#include <cstdint>

namespace ortplugin {

// The x86-64 level whose instructions the evaluator may use: 4 has AVX-512 (F, BW, DQ, VL) and 3, 3 has AVX2, FMA and
// F16C, 2 none of these. An instruction is there if the processor has it and the system saves its registers.
inline int X86Level() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  const auto has = [](unsigned word, unsigned bits) { return (word & bits) == bits; };
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || !has(c, bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C)) return 2;
  uint32_t saved = 0, upper = 0;
  __asm__("xgetbv" : "=a"(saved), "=d"(upper) : "c"(0));
  constexpr unsigned kYmm = 0x06, kZmm = 0xe6;  // XMM and YMM; besides, masks and both halves of ZMM
  if (!has(saved, kYmm) || __get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || !has(b, bit_AVX2)) return 2;
  return has(saved, kZmm) && has(b, bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL) ? 4 : 3;
}

// The highest that the evaluator takes. A test that runs it at each level has this function of its own.
int MostX86Level();

}  // namespace ortplugin
#endif
