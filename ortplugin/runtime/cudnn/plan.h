// The search for a plan of a problem.
#pragma once

#include <functional>

#include "ortplugin/runtime/cudnn/cudnn.h"
#include "ortplugin/runtime/cudnn/graph.h"
#include "ortplugin/runtime/cudnn/library.h"

namespace ortplugin::cudnn {

// What plans are made for: a device, which lives as long as the process.
struct Target {
  const DeviceFacts& device;
  abi::Handle handle;
};

// The proposals of cuDNN's heuristics in the order in which they are tried: calls `visit` until it returns true.
void ForEachCandidate(
  const Graph& graph, const std::function<bool(const PlanText& text, bool is_compiled_here)>& visit);

// FindPlan, not remembered.
Found Search(const Target& target, const Problem& problem, size_t workspace_limit, const PlanText* text);

}  // namespace ortplugin::cudnn
