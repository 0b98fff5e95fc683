// The engines for attention on CUDA: how they are asked for. table.cc has their table.
//
// FusedAttention asks once for each combination of shapes:
//
//   const std::vector<AttentionLaunch> launches = PlanAttention(problem, aligned, device);
//
// Arguments begin with the addresses of Q, K, V, the mask, cos and sin, past_key, past_value and position if there are
// any, and of the outputs; with a cache follows cache_is_there: whether no kernel that may still run writes the last
// three of the inputs. Kernels wait for the kernel before them (griddepcontrol.wait) before they touch memory, need
// no workspace and give the same bits in every run.
#pragma once

#include <optional>
#include <vector>

#include "ortplugin/ops/attention/attention.h"
#include "ortplugin/runtime/gpu/engine_kernel.h"

namespace ortplugin {

// A line of the table.
struct AttentionEngine {
  const char* name;
  // Whether its kernel computes this problem on this GPU, and is better there than those below. `aligned`: every
  // address is a multiple of 16 bytes; views may still begin and step anywhere.
  bool (*fits)(const AttentionProblem& problem, bool aligned, const cuda::DeviceFacts& device);
  // Empty where no tile configuration fits the GPU's memory.
  std::optional<EngineKernel> (*make)(const AttentionProblem& problem, const cuda::DeviceFacts& device);
  const char* reason;  // what it is for, and why it stands where it stands
};

const std::vector<AttentionEngine>& AttentionEngines();

// A kernel, and whose addresses it takes: the numbers of these among those of the node's inputs, then outputs, then
// cache_is_there.
struct AttentionLaunch {
  EngineKernel kernel;
  std::vector<size_t> addresses;
};

// One kernel or, for a cache that no engine takes in, a copy to what is present before attention over that. Y has
// elements, or what is present has.
std::vector<AttentionLaunch> PlanAttention(
  const AttentionProblem& problem, bool aligned, const cuda::DeviceFacts& device);
// The kernel of the first engine that fits. The output has elements. Throws Error where none does.
EngineKernel MakeAttention(const AttentionProblem& problem, bool aligned, const cuda::DeviceFacts& device);

// ---- What the engines share

// CUDA C++ in front of a kernel: storage_t, compute_t, mask_t, the attributes as macros (HEAD_SIZE, VALUE_SIZE, MASK,
// IS_BOOL_MASK, IS_CAUSAL, HAS_WINDOW, HAS_SOFTCAP, HAS_PAST, HAS_POSITION, ROTARY; with it PAIRS, IS_INTERLEAVED,
// ROTATES_KEYS and table_t), and struct Arguments, whose numbers AttentionArguments gives.
std::string AttentionPreamble(const AttentionProblem& problem);
// What engines on tensor cores have behind it: MMA_TYPE, SCALE_IS_POSITIVE and softmax.cuh.
std::string AttentionSoftmaxSource(const AttentionProblem& problem);
std::vector<uint64_t> AttentionArguments(const AttentionProblem& problem);

}  // namespace ortplugin
