# Sets `embedded` to a C++ source with every CUDA file of the project as a string, made when one of them changes.
# Expects `root`, the project's folder.
set(kernel_files
  kCommonSource=${root}/ortplugin/device/common.cuh
  kPointwiseSource=${root}/ortplugin/device/pointwise.cuh
  kLayerNormSource=${root}/ortplugin/ops/layer_norm/layer_norm.cu
  kNormTilesSource=${root}/ortplugin/ops/layer_norm/norm_tiles.cu
  kConvDirectSource=${root}/ortplugin/ops/conv/engines/direct.cu
  kScatterSource=${root}/ortplugin/ops/scatter/scatter.cu
  kScatterSortSource=${root}/ortplugin/ops/scatter/scatter_sort.cu
  kFusedPointwiseSource=${root}/ortplugin/ops/pointwise/pointwise.cu
  kSumToSource=${root}/ortplugin/ops/sum_to/sum_to.cu
  kTransposeSource=${root}/ortplugin/device/transpose.cu
  kCopySource=${root}/ortplugin/device/copy.cuh
  kDepthwiseSource=${root}/ortplugin/ops/conv/engines/depthwise.cu
  kGroupedSource=${root}/ortplugin/ops/conv/engines/grouped.cu
  kStemSource=${root}/ortplugin/ops/conv/engines/stem.cu
  kConv1x1Source=${root}/ortplugin/ops/conv/engines/conv_1x1.cu
  kGemmSource=${root}/ortplugin/ops/conv/engines/gemm.cu
  kClusterSource=${root}/ortplugin/device/cluster.cuh
  kTmaSource=${root}/ortplugin/device/tma.cuh
  kWgmmaSource=${root}/ortplugin/device/wgmma.cuh
  kSplitKSource=${root}/ortplugin/ops/conv/engines/split_k.cu
  kGemvSource=${root}/ortplugin/ops/conv/engines/gemv.cu
  kPixelShuffleSource=${root}/ortplugin/ops/conv/engines/pixel_shuffle.cu
  kFewOutputChannelsSource=${root}/ortplugin/ops/conv/engines/few_output_channels.cu
  kPolyphaseSource=${root}/ortplugin/ops/conv/engines/polyphase.cu
  kConvGradSource=${root}/ortplugin/ops/conv_grad/conv_grad.cu
  kWeightGradSource=${root}/ortplugin/ops/conv_grad/weight_grad.cu
  kPoolSource=${root}/ortplugin/ops/pool/pool.cu
  kResizeSource=${root}/ortplugin/ops/pool/pool_resize.cu
  kMmaSource=${root}/ortplugin/device/mma.cuh
  kSoftmaxSource=${root}/ortplugin/ops/attention/engines/softmax.cuh
  kAttentionRowsSource=${root}/ortplugin/ops/attention/engines/rows.cuh
  kDecodeSource=${root}/ortplugin/ops/attention/engines/decode.cu
  kPresentSource=${root}/ortplugin/ops/attention/engines/present.cu
  kFlashSource=${root}/ortplugin/ops/attention/engines/flash.cu
  kFlashWgmmaSource=${root}/ortplugin/ops/attention/engines/flash_wgmma.cu
  kAttentionSimtSource=${root}/ortplugin/ops/attention/engines/simt.cu)
set(embedded ${CMAKE_CURRENT_BINARY_DIR}/kernel_sources.cc)
list(JOIN kernel_files "," kernel_inputs)
list(TRANSFORM kernel_files REPLACE "^[^=]*=" "" OUTPUT_VARIABLE kernel_paths)
add_custom_command(
  OUTPUT ${embedded}
  COMMAND ${CMAKE_COMMAND} -Doutput=${embedded} -Dinputs=${kernel_inputs} -P ${root}/cmake/embed.cmake
  DEPENDS ${kernel_paths} ${root}/cmake/embed.cmake)
