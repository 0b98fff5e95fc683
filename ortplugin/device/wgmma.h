// What kernels for Hopper's tensor cores share (wgmma.cuh).
#pragma once

#include <string>

#include "ortplugin/runtime/program/program.h"

namespace ortplugin {

// The text in front of a kernel that multiplies matrices of `dtype`, of 16 bits, with its sums in float:
//   multiply(sums, left, right, adds): 64 rows of `left` by `columns` rows of `right`, 16 elements of each, onto
//     sums[columns / 2] of each thread, or in their place where `adds` is false; with `by_columns` the rows of `right`
//     lie side by side (descriptor_of_columns)
//   await_products(sums): until all of them are there
// and what stands in wgmma.cuh.
std::string WgmmaSource(DType dtype, int columns, bool by_columns = false);

}  // namespace ortplugin
