// The CUDA C++ files, embedded in the library when it is built (cmake/embed.cmake).
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>

namespace ortplugin {

// A line for each macro, to stand in front of them.
inline std::string Defines(std::initializer_list<std::pair<const char*, int64_t>> macros) {
  std::string text;
  for (const auto& [name, value] : macros) text += std::string("#define ") + name + " " + std::to_string(value) + "\n";
  return text;
}

extern const char kCommonSource[];  // device/common.cuh
extern const char kPointwiseSource[];  // device/pointwise.cuh
extern const char kLayerNormSource[];  // ops/layer_norm/layer_norm.cu
extern const char kNormTilesSource[];  // ops/layer_norm/norm_tiles.cu
extern const char kFusedPointwiseSource[];  // ops/pointwise/pointwise.cu
extern const char kConvDirectSource[];  // ops/conv/engines/direct.cu
extern const char kConvGradSource[];  // ops/conv_grad/conv_grad.cu
extern const char kWeightGradSource[];  // ops/conv_grad/weight_grad.cu
extern const char kSumToSource[];  // ops/sum_to/sum_to.cu
extern const char kPoolSource[];  // ops/pool/pool.cu
extern const char kResizeSource[];  // ops/pool/pool_resize.cu
extern const char kLstmSource[];  // ops/lstm/lstm.cu
extern const char kScatterSource[];  // ops/scatter/scatter.cu
extern const char kScatterSortSource[];  // ops/scatter/scatter_sort.cu
extern const char kTransposeSource[];  // ops/transpose/transpose.cu
extern const char kCopySource[];  // device/copy.cuh
extern const char kDepthwiseSource[];  // ops/conv/engines/depthwise.cu
extern const char kGroupedSource[];  // ops/conv/engines/grouped.cu
extern const char kStemSource[];  // ops/conv/engines/stem.cu
extern const char kConv1x1Source[];  // ops/conv/engines/conv_1x1.cu
extern const char kWgmmaSource[];  // device/wgmma.cuh
extern const char kGemmSource[];  // ops/conv/engines/gemm.cu
extern const char kGemmNormSource[];  // ops/conv/engines/gemm_norm.cuh
extern const char kGemmEpilogueSource[];  // device/gemm_epilogue.cuh
extern const char kNchwFewSource[];  // ops/conv/engines/nchw_few.cu
extern const char kNchwGemmSource[];  // ops/conv/engines/nchw_gemm.cu
extern const char kClusterSource[];  // device/cluster.cuh
extern const char kTmaSource[];  // device/tma.cuh
extern const char kSplitKSource[];  // ops/conv/engines/split_k.cu
extern const char kGemvSource[];  // ops/conv/engines/gemv.cu
extern const char kPixelShuffleSource[];  // ops/conv/engines/pixel_shuffle.cu
extern const char kFewOutputChannelsSource[];  // ops/conv/engines/few_output_channels.cu
extern const char kPolyphaseSource[];  // ops/conv/engines/polyphase.cu
extern const char kMmaSource[];  // device/mma.cuh
extern const char kSoftmaxSource[];  // ops/attention/engines/softmax.cuh
extern const char kAttentionRowsSource[];  // ops/attention/engines/rows.cuh
extern const char kDecodeSource[];  // ops/attention/engines/decode.cu
extern const char kPresentSource[];  // ops/attention/engines/present.cu
extern const char kFlashSource[];  // ops/attention/engines/flash.cu
extern const char kFlashWgmmaSource[];  // ops/attention/engines/flash_wgmma.cu
extern const char kAttentionSimtSource[];  // ops/attention/engines/simt.cu

}  // namespace ortplugin
