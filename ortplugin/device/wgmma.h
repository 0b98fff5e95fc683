// What kernels on Hopper's tensor cores share: the generated part of wgmma.cuh.
#pragma once

#include <string>

#include "ortplugin/runtime/program/program.h"

namespace ortplugin {

// The text in front of a kernel that multiplies tiles of fp16, bf16 or, of kFloat, TF32 and accumulates in fp32:
//   wgmma(sums, left, right, adds): 64 rows of A = `left` by n rows of B = `right`, 32 bytes along K, onto the
//     accumulators sums[n / 2] of each thread, or in their place where `adds` is false. B is K-major; with
//     `b_is_mn_major` it is MN-major (descriptor_mn_major), in 16 bits only
//   wait_wgmma<LEFT>(sums): until all groups but the last LEFT are there, with which the accumulators are
// and what stands in wgmma.cuh.
std::string WgmmaSource(DType dtype, int n, bool b_is_mn_major = false);

// Its parts, for a kernel with two kinds of MMAs under names of its own. name(sums, left, right, adds) is wgmma as
// above; with A in registers it is name(sums, a0, a1, a2, a3, right), which adds. wait_name<LEFT>(sums) is wait_wgmma.
enum class WgmmaA { kShared, kRegisters };
std::string WgmmaFunction(const std::string& name, DType dtype, int n, WgmmaA a, bool b_is_mn_major);
std::string WgmmaWait(const std::string& name, int n);

}  // namespace ortplugin
