# Sets `sources` to the C++ files of the library but for the embedded kernels. Expects `root`, the project's folder.
set(sources
  device/wgmma.cc
  runtime/host_memory.cc
  runtime/cudnn/cudnn.cc
  runtime/cudnn/graph.cc
  runtime/cudnn/library.cc
  runtime/cudnn/plan.cc
  runtime/cudnn/pointwise.cc
  runtime/cudnn/problem.cc
  runtime/gpu/cuda.cc
  runtime/gpu/cuda_driver.cc
  runtime/gpu/engine_kernel.cc
  runtime/gpu/kernel_cache.cc
  runtime/gpu/launch.cc
  runtime/gpu/packed_kernel.cc
  runtime/ort/node_text.cc
  runtime/ort/ort.cc
  runtime/ort/registry.cc
  runtime/ort/scratch.cc
  runtime/ort/standard_operator.cc
  runtime/most_x86_level.cc
  runtime/program/epilogue.cc
  runtime/program/evaluator.cc
  runtime/program/operand_lanes.cc
  runtime/program/operands.cc
  runtime/program/program.cc
  runtime/program/program_sweep.cc
  target/target.cc
  ops/contraction.cc
  ops/list_algorithms.cc
  ops/attention/attention.cc
  ops/attention/attention_cpu.cc
  ops/attention/attention_cuda.cc
  ops/attention/engines/decode.cc
  ops/attention/engines/flash.cc
  ops/attention/engines/flash_wgmma.cc
  ops/attention/engines/present.cc
  ops/attention/engines/simt.cc
  ops/attention/engines/table.cc
  ops/conv/algorithm.cc
  ops/conv/aligned_copies.cc
  ops/conv/conv.cc
  ops/conv/conv_cuda.cc
  ops/conv/conv_plan.cc
  ops/conv/geometry.cc
  ops/conv/cpu/nchwc_conv.cc
  ops/conv/cpu/conv_cpu.cc
  ops/conv/cpu/layout.cc
  ops/conv/cpu/fused_activation.cc
  ops/conv/engines/depthwise.cc
  ops/conv/engines/direct.cc
  ops/conv/engines/few_output_channels.cc
  ops/conv/engines/grouped.cc
  ops/conv/engines/split_k.cc
  ops/conv/engines/conv_1x1.cc
  ops/conv/engines/engine.cc
  ops/conv/engines/pixel_shuffle.cc
  ops/conv/engines/polyphase.cc
  ops/conv/engines/stem.cc
  ops/conv/engines/gemm.cc
  ops/conv/engines/gemv.cc
  ops/conv/engines/nchw.cc
  ops/conv/engines/table.cc
  ops/conv_grad/cpu_gemm.cc
  ops/conv_grad/conv_grad.cc
  ops/conv_grad/conv_grad_cuda.cc
  ops/conv_grad/grad_engines.cc
  ops/conv_grad/grad_plan.cc
  ops/conv_grad/weight_grad.cc
  ops/conv_transpose/conv_transpose.cc
  ops/conv_transpose/conv_transpose_cuda.cc
  ops/layer_norm/layer_norm.cc
  ops/layer_norm/layer_norm_cuda.cc
  ops/layer_norm/norm_tiles.cc
  ops/lstm/lstm.cc
  ops/lstm/lstm_cpu.cc
  ops/lstm/lstm_cuda.cc
  ops/matmul/matmul.cc
  ops/matmul/matmul_cpu.cc
  ops/matmul/matmul_cuda.cc
  ops/matmul/matmul_norm.cc
  ops/matmul/matmul_norm_cuda.cc
  ops/pointwise/pointwise.cc
  ops/pointwise/pointwise_cuda.cc
  ops/pool/pool.cc
  ops/pool/pool_cpu.cc
  ops/pool/pool_cuda.cc
  ops/pool/pool_resize_cpu.cc
  ops/scatter/scatter.cc
  ops/scatter/scatter_cpu.cc
  ops/scatter/scatter_cuda.cc
  ops/sum_to/sum_to.cc
  ops/sum_to/sum_to_cuda.cc
  ops/transpose/transpose.cc
  ops/transpose/transpose_cpu.cc
  ops/transpose/transpose_cuda.cc)
list(TRANSFORM sources PREPEND ${root}/ortplugin/)

# What runs once for a model, a shape or a kernel, and neither computes nor launches: at -O1, in two thirds of the time.
set(computing "_cpu|/cpu/[a-z_]+|cpu_gemm|conv_grad|layer_norm|sum_to|pointwise|evaluator|operands|lanes|sweep|memory")
set(launching "_cuda|ort|scratch|launch|_kernel")
set(planning ${sources})
list(FILTER planning EXCLUDE REGEX "(${computing}|${launching})[.]cc")
list(REMOVE_ITEM sources ${planning})
# Of these folders GCC reads all files at once: what they instantiate is compiled once.
foreach(file IN LISTS planning)
  if(NOT file MATCHES "conv/engines" AND file MATCHES "/(attention|conv|conv_grad|cudnn|gpu|ort|program)/")
    set_source_files_properties(${file} PROPERTIES UNITY_GROUP ${CMAKE_MATCH_1})
  endif()
endforeach()

# evaluator.cc's loops become the same vectors at -O2, which takes GCC two thirds of the time of -O3.
set(evaluator_options
  "$<$<CXX_COMPILER_ID:GNU>:-O2;-ftree-vectorize;-fvect-cost-model=dynamic;-fno-thread-jumps;-fno-gcse>")
