// The CUDA C++ files, embedded in the library when it is built (cmake/embed.cmake).
#pragma once

namespace ortplugin {

extern const char kCommonSource[];          // device/common.cuh
extern const char kPointwiseSource[];       // device/pointwise.cuh
extern const char kLayerNormSource[];       // ops/layer_norm/layer_norm.cu
extern const char kFusedPointwiseSource[];  // ops/pointwise/pointwise.cu
extern const char kConvDirectSource[];      // ops/conv/engines/direct.cu
extern const char kConvGradSource[];        // ops/conv_grad/conv_grad.cu
extern const char kWeightGradSource[];      // ops/conv_grad/weight_grad.cu
extern const char kSumToSource[];           // ops/sum_to/sum_to.cu
extern const char kPoolSource[];            // ops/pool/pool.cu
extern const char kResizeSource[];          // ops/pool/pool_resize.cu
extern const char kScatterSource[];         // ops/scatter/scatter.cu
extern const char kScatterSortSource[];     // ops/scatter/scatter_sort.cu
extern const char kChannelsLastSource[];    // device/channels_last.cu
extern const char kOwnKernelSource[];       // device/own_kernels.cuh
extern const char kDepthwiseSource[];       // ops/conv/engines/depthwise.cu
extern const char kStemSource[];            // ops/conv/engines/stem.cu
extern const char kOneTapSource[];          // ops/conv/engines/one_tap.cu
extern const char kWgmmaSource[];           // device/wgmma.cuh
extern const char kFewPixelsSource[];       // ops/conv/engines/few_pixels.cu
extern const char kVectorConvSource[];      // ops/conv/engines/vector.cu
extern const char kPixelShuffleSource[];    // ops/conv/engines/pixel_shuffle.cu
extern const char kFewFiltersSource[];      // ops/conv/engines/few_filters.cu
extern const char kPolyphaseSource[];       // ops/conv/engines/polyphase.cu

}  // namespace ortplugin
