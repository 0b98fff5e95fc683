// The CUDA C++ files, embedded in the library when it is built: cmake/kernels.cmake says which file each is.
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

extern const char kCommonSource[];
extern const char kPointwiseSource[];
extern const char kLayerNormSource[];
extern const char kNormTilesSource[];
extern const char kFusedPointwiseSource[];
extern const char kConvDirectSource[];
extern const char kConvGradSource[];
extern const char kWeightGradSource[];
extern const char kSumToSource[];
extern const char kPoolSource[];
extern const char kResizeSource[];
extern const char kLstmSource[];
extern const char kScatterSource[];
extern const char kScatterSortSource[];
extern const char kTransposeSource[];
extern const char kCopySource[];
extern const char kSizesSource[];
extern const char kDepthwiseSource[];
extern const char kGroupedSource[];
extern const char kStemSource[];
extern const char kConv1x1Source[];
extern const char kWgmmaSource[];
extern const char kGemmSource[];
extern const char kGemmNormSource[];
extern const char kPatchSource[];
extern const char kGemmEpilogueSource[];
extern const char kNchwFewSource[];
extern const char kNchwGemmSource[];
extern const char kClusterSource[];
extern const char kTmaSource[];
extern const char kSplitKSource[];
extern const char kGemvSource[];
extern const char kGemvMmaSource[];
extern const char kGemvNormSource[];
extern const char kPixelShuffleSource[];
extern const char kFewOutputChannelsSource[];
extern const char kPolyphaseSource[];
extern const char kMmaSource[];
extern const char kSoftmaxSource[];
extern const char kAttentionRowsSource[];
extern const char kDecodeSource[];
extern const char kPresentSource[];
extern const char kFlashSource[];
extern const char kFlashWgmmaSource[];
extern const char kAttentionSimtSource[];

}  // namespace ortplugin
