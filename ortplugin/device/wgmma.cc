#include "ortplugin/device/wgmma.h"

#include <sstream>

#include "ortplugin/runtime/gpu/kernel_sources.h"

namespace ortplugin {
namespace {

// What `text` makes of 0 to count - 1, one after the other. Operands of an asm statement are one by one in the text.
std::string List(int count, const std::string& before, const std::string& behind) {
  std::ostringstream text;
  for (int i = 0; i < count; ++i) text << (i > 0 ? ", " : "") << before << i << behind;
  return text.str();
}

std::string Accumulators(int n) { return List(n / 2, "\"+f\"(sums[", "])"); }

}  // namespace

std::string WgmmaFunction(const std::string& name, DType dtype, int n, WgmmaA a, bool b_is_mn_major) {
  const bool is_tf32 = dtype == DType::kFloat;
  const char* const type = is_tf32 ? "tf32" : dtype == DType::kFloat16 ? "f16" : "bf16";
  std::string signs = "1, 1";
  if (!is_tf32)
    signs += std::string(a == WgmmaA::kShared ? ", 0" : "") + (b_is_mn_major ? ", 1" : ", 0");  // transposed
  const int sums = n / 2;
  std::ostringstream text, form;
  form << "wgmma.mma_async.sync.aligned.m64n" << n << (is_tf32 ? "k8" : "k16") << ".f32." << type << "." << type << " {"
       << List(sums, "%", "") << "}";
  text << "DEVICE void " << name << "(float (&sums)[" << sums << "], ";
  if (a == WgmmaA::kRegisters)
    text << "unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned long long right) {\n  asm volatile(\""
         << form.str() << ", {%" << sums << ", %" << sums + 1 << ", %" << sums + 2 << ", %" << sums + 3 << "}, %"
         << sums + 4 << ", 1, " << signs << ";\" : " << Accumulators(n) << " : " << List(4, "\"r\"(a", ")")
         << ", \"l\"(right));\n}\n";
  else
    text << "unsigned long long left, unsigned long long right, bool adds) {\n"
            "  asm volatile(\"{\\n\\t.reg .pred adds;\\n\\tsetp.ne.b32 adds, %"
         << sums + 2 << ", 0;\\n\\t" << form.str() << ", %" << sums << ", %" << sums + 1 << ", adds, " << signs
         << ";\\n\\t}\" : " << Accumulators(n) << " : \"l\"(left), \"l\"(right), \"r\"((int)adds));\n}\n";
  return text.str();
}

std::string WgmmaWait(const std::string& name, int n) {
  return Joined("template <int LEFT>\nDEVICE void wait_", name, "(float (&sums)[", n / 2,
    "]) {\n  asm volatile(\"wgmma.wait_group.sync.aligned %", n / 2, ";\" : ", Accumulators(n),
    " : \"n\"(LEFT) : \"memory\");\n}\n");
}

std::string WgmmaSource(DType dtype, int n, bool b_is_mn_major) {
  return Joined(
    WgmmaFunction("wgmma", dtype, n, WgmmaA::kShared, b_is_mn_major), WgmmaWait("wgmma", n), "\n", kWgmmaSource);
}

}  // namespace ortplugin
