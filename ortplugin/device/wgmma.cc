#include "ortplugin/device/wgmma.h"

#include <sstream>

#include "ortplugin/runtime/gpu/kernel_sources.h"

namespace ortplugin {

std::string WgmmaSource(DType dtype, int n, bool b_is_mn_major) {
  const char* const type = dtype == DType::kFloat16 ? "f16" : "bf16";
  const int sums = n / 2;
  std::ostringstream text, registers, operands;
  for (int i = 0; i < sums; ++i) {
    registers << (i > 0 ? ", %" : "%") << i;
    operands << (i > 0 ? ", " : "") << "\"+f\"(sums[" << i << "])";
  }
  // Their operands are one by one in the text, so it is made here.
  text << "__device__ __forceinline__ void wgmma(float (&sums)[" << sums
       << "], unsigned long long left, unsigned long long right, bool adds) {\n"
          "  asm volatile(\"{\\n\\t.reg .pred adds;\\n\\tsetp.ne.b32 adds, %"
       << sums + 2 << ", 0;\\n\\twgmma.mma_async.sync.aligned.m64n" << n << "k16.f32." << type << "." << type << " {"
       << registers.str() << "}, %" << sums << ", %" << sums + 1 << ", adds, 1, 1, 0, " << b_is_mn_major
       << ";\\n\\t}\" : " << operands.str() << " : \"l\"(left), \"l\"(right), \"r\"((int)adds));\n}\n"
       << "__device__ __forceinline__ void wait_wgmma(float (&sums)[" << sums
       << "]) {\n  asm volatile(\"wgmma.commit_group.sync.aligned;\\n\\twgmma.wait_group.sync.aligned 0;\" : "
       << operands.str() << " : : \"memory\");\n}\n\n"
       << kWgmmaSource;
  return text.str();
}

}  // namespace ortplugin
