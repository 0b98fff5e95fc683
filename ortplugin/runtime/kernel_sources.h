// The CUDA C++ files, embedded in the library when it is built (cmake/embed.cmake).
#pragma once

namespace ortplugin {

extern const char kCommonSource[];          // runtime/common.cuh
extern const char kPointwiseSource[];       // runtime/pointwise.cuh
extern const char kLayerNormSource[];       // ops/layer_norm/layer_norm.cu
extern const char kFusedPointwiseSource[];  // ops/pointwise/pointwise.cu
extern const char kConvDirectSource[];      // ops/conv/direct.cu
extern const char kConvGradSource[];        // ops/conv_grad/conv_grad.cu
extern const char kWeightGradSource[];      // ops/conv_grad/weight_grad.cu
extern const char kSumToSource[];           // ops/sum_to/sum_to.cu
extern const char kPoolSource[];            // ops/pool/pool.cu
extern const char kResizeSource[];          // ops/pool/pool_resize.cu
extern const char kScatterSource[];         // ops/scatter/scatter.cu
extern const char kScatterSortSource[];     // ops/scatter/scatter_sort.cu
extern const char kChannelsLastSource[];    // ops/conv/channels_last.cu
extern const char kOwnKernelSource[];       // ops/conv/own_kernels.cuh
extern const char kDepthwiseSource[];       // ops/conv/depthwise.cu
extern const char kStemSource[];            // ops/conv/stem.cu
extern const char kOneTapSource[];          // ops/conv/one_tap.cu
extern const char kWgmmaSource[];           // ops/conv/wgmma.cuh
extern const char kFewPixelsSource[];       // ops/conv/few_pixels.cu
extern const char kVectorConvSource[];      // ops/conv/vector.cu
extern const char kPixelShuffleSource[];    // ops/conv_transpose/pixel_shuffle.cu
extern const char kFewFiltersSource[];      // ops/conv_transpose/few_filters.cu
extern const char kPolyphaseSource[];       // ops/conv_transpose/polyphase.cu

}  // namespace ortplugin
