# Sets `sources` to the C++ files of the library but for the embedded kernels. Expects `root`, the project's folder.
file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${root}/ortplugin/*.cc)

# What plans, checks and asks for launches, and computes nothing itself: at -O1, in two thirds of the time.
set(computing "_cpu|/cpu/[a-z_]+|cpu_gemm|conv_grad|layer_norm|sum_to|pointwise|evaluator|operands|lanes|sweep|memory")
set(launching "/ort|scratch|launch|_kernel")
set(planning ${sources})
list(FILTER planning EXCLUDE REGEX "(${computing}|${launching})[.]cc")
list(REMOVE_ITEM sources ${planning})
# Of these GCC reads a group's files at once: what they instantiate is compiled once. Others have names in common.
foreach(file IN LISTS planning)
  if(file MATCHES "_cuda[.]cc")
    if(NOT file MATCHES "/(scatter|sum_to|transpose)_")
      set_source_files_properties(${file} PROPERTIES UNITY_GROUP cuda)
    endif()
  elseif(file MATCHES "/(matmul|scatter|contraction|list_algorithms|target|wgmma|most_x86_level)[.]cc")
    set_source_files_properties(${file} PROPERTIES UNITY_GROUP ops)
  elseif(file MATCHES "/conv/engines/[c-gpt]" AND NOT file MATCHES "/(gemm|patch)[.]cc")
    set_source_files_properties(${file} PROPERTIES UNITY_GROUP engines)
  elseif(NOT file MATCHES "/conv/engines/" AND file MATCHES "/(attention|conv|conv_grad|cudnn|gpu|ort|program)/")
    set_source_files_properties(${file} PROPERTIES UNITY_GROUP ${CMAKE_MATCH_1})
  endif()
endforeach()

# Loops of evaluator.cc and pools become the same vectors at -O2, in two thirds of GCC's time. (Those of attention and
# scatters are 4 and 5% slower then.)
set(vectors_at_o2 "$<$<CXX_COMPILER_ID:GNU>:-O2;-ftree-vectorize;-fvect-cost-model=dynamic>")
set(evaluator_options "${vectors_at_o2};$<$<CXX_COMPILER_ID:GNU>:-fno-thread-jumps;-fno-gcse>")
set_source_files_properties(${root}/ortplugin/ops/pool/pool_cpu.cc PROPERTIES COMPILE_OPTIONS "${vectors_at_o2}")
