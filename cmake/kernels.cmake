# Sets `embedded` to a C++ source with every CUDA file of the project as a string, made when one of them changes.
# Expects `root`, the project's folder.
set(kernel_files
  kCommonSource=device/common.cuh
  kPointwiseSource=device/pointwise.cuh
  kLayerNormSource=ops/layer_norm/layer_norm.cu
  kNormTilesSource=ops/layer_norm/norm_tiles.cu
  kConvDirectSource=ops/conv/engines/direct.cu
  kScatterSource=ops/scatter/scatter.cu
  kScatterSortSource=ops/scatter/scatter_sort.cu
  kFusedPointwiseSource=ops/pointwise/pointwise.cu
  kSumToSource=ops/sum_to/sum_to.cu
  kCopySource=device/copy.cuh
  kSizesSource=device/sizes.cuh
  kDepthwiseSource=ops/conv/engines/depthwise.cu
  kGroupedSource=ops/conv/engines/grouped.cu
  kStemSource=ops/conv/engines/stem.cu
  kConv1x1Source=ops/conv/engines/conv_1x1.cu
  kGemmSource=ops/conv/engines/gemm.cu
  kGemmNormSource=ops/conv/engines/gemm_norm.cuh
  kPatchSource=ops/conv/engines/patch.cu
  kGemmEpilogueSource=device/gemm_epilogue.cuh
  kNchwFewSource=ops/conv/engines/nchw_few.cu
  kNchwGemmSource=ops/conv/engines/nchw_gemm.cu
  kClusterSource=device/cluster.cuh
  kTmaSource=device/tma.cuh
  kWgmmaSource=device/wgmma.cuh
  kSplitKSource=ops/conv/engines/split_k.cu
  kGemvSource=ops/conv/engines/gemv.cu
  kGemvMmaSource=ops/conv/engines/gemv_mma.cu
  kGemvNormSource=ops/conv/engines/gemv_norm.cuh
  kPixelShuffleSource=ops/conv/engines/pixel_shuffle.cu
  kFewOutputChannelsSource=ops/conv/engines/few_output_channels.cu
  kPolyphaseSource=ops/conv/engines/polyphase.cu
  kConvGradSource=ops/conv_grad/conv_grad.cu
  kWeightGradSource=ops/conv_grad/weight_grad.cu
  kPoolSource=ops/pool/pool.cu
  kResizeSource=ops/pool/pool_resize.cu
  kTransposeSource=ops/transpose/transpose.cu
  kLstmSource=ops/lstm/lstm.cu
  kMmaSource=device/mma.cuh
  kSoftmaxSource=ops/attention/engines/softmax.cuh
  kAttentionRowsSource=ops/attention/engines/rows.cuh
  kDecodeSource=ops/attention/engines/decode.cu
  kPresentSource=ops/attention/engines/present.cu
  kFlashSource=ops/attention/engines/flash.cu
  kFlashWgmmaSource=ops/attention/engines/flash_wgmma.cu
  kAttentionSimtSource=ops/attention/engines/simt.cu)
list(TRANSFORM kernel_files REPLACE "=" "=${root}/ortplugin/")
set(embedded ${CMAKE_CURRENT_BINARY_DIR}/kernel_sources.cc)
list(JOIN kernel_files "," kernel_inputs)
list(TRANSFORM kernel_files REPLACE "^[^=]*=" "" OUTPUT_VARIABLE kernel_paths)
add_custom_command(
  OUTPUT ${embedded}
  COMMAND ${CMAKE_COMMAND} -Doutput=${embedded} -Dinputs=${kernel_inputs} -P ${root}/cmake/embed.cmake
  DEPENDS ${kernel_paths} ${root}/cmake/embed.cmake)
