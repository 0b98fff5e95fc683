// Convolutions of cuDNN 9's graph interface, with a pointwise program as epilogue. The library is opened when the first
// plan is asked for. Plans are found by cuDNN's heuristics or rebuilt from their text, and shared by all sessions of
// the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ortplugin/runtime/gpu/cuda.h"
#include "ortplugin/runtime/program/program.h"

namespace ortplugin::cudnn {

// dims in the order N, C, spatial.. (of weights M, C/groups, kernel..) whatever the layout in memory is, which the
// strides say, in elements. An operand of an epilogue has the rank of the convolution's value, 1 where it broadcasts.
struct Tensor {
  std::vector<int64_t> dims, strides;
};
Tensor ChannelsFirst(std::vector<int64_t> dims);
Tensor ChannelsLast(std::vector<int64_t> dims);  // dims still N, C, spatial..; in memory N, spatial.., C

enum class Direction : uint8_t { kForward, kDataGradient, kWeightGradient };

// forward:         y = conv(x, w)
// data gradient:   x = the gradient of the input from y's gradient and w: a transposed convolution of y
// weight gradient: w = the gradient of the weights from x and y's gradient
// x, w and y are the tensors of the forward convolution in every direction; one of them is the convolution's value.
// 1 to 3 spatial dimensions. fp16, bf16 and fp32 are accumulated in fp32, fp64 in fp64.
struct Problem {
  Direction direction = Direction::kForward;
  DType dtype = DType::kFloat;  // of x, w and y
  bool allow_tf32 = false;  // only fp32 cares: products of operands rounded to 10 bits of mantissa
  Tensor x, w, y;
  std::vector<int64_t> pads_begin, pads_end, strides, dilations;  // one each for a spatial dimension
  int64_t groups = 1;
  int64_t alignment = 16;  // bytes, of every address in a run; less makes plans slower

  // The epilogue, none where `program` is null. The program's first parameter is the convolution's value, which is then
  // not rounded and not stored; `operands` belong to the other parameters, `results` to its results. Every result has
  // the value's dims. A result may lie where an operand of the same dims, strides and dtype does. A program that does
  // nothing is an identity (PlanText), not none.
  std::shared_ptr<const Program> program;
  std::vector<Tensor> operands, results;

  // "forward convolution of float16 x[8,64,56,56] w[..] ..., epilogue (..)", for messages.
  std::string ToString() const;
};

// Throws Error with the value at fault where ranks, dims, strides or counts contradict each other.
void Check(const Problem& problem);

// Why cuDNN has no pointwise operation for a part of the program; empty where it has all of them. Needs no cuDNN.
std::string RefusalOf(const Program& program);

// Whether it has Erf, also as Gelu: which only kernels have that cuDNN compiles, and slowly. Needs no cuDNN.
bool HasErf(const Program& program);

// "engine=3;k2=1;k14=4": the engine's number and its knobs, each by number, in ascending order.
// "engine=4;k24=1;identity": a plan for a problem without an epilogue, in whose graph an operation that changes nothing
// follows the convolution: other kernels of cuDNN's take such a graph.
struct PlanText {
  int64_t engine;
  std::vector<std::pair<int64_t, int64_t>> knobs;
  bool has_identity = false;
  std::string ToString() const;
  // Throws Error with what was found and what was expected.
  static PlanText Parse(const std::string& text);
};

// Device addresses for a run, in the problem's order; no address is null.
struct Arguments {
  // forward: x, w. data gradient: y, w. weight gradient: x, y.
  const void* inputs[2];
  const void* const* operands;  // one for each of Problem::operands
  void* const* results;  // one for each of Problem::results, or, without an epilogue, one: the value
  void* workspace;  // workspace_bytes() of a plan, aligned to 256 bytes; may be null where that is 0
};

class Plan {
 public:
  virtual ~Plan() = default;
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  virtual const PlanText& text() const = 0;
  virtual size_t workspace_bytes() const = 0;
  virtual bool is_deterministic() const = 0;  // the same bits in every run
  // Whether its kernels were compiled for it at run time. Such plans take epilogues of every kind, but a plan that is
  // not, without the epilogue or with the bias and Relu of it, and a pointwise kernel after it, is often as fast.
  virtual bool is_compiled_here() const = 0;
  // Asynchronous, on ORT's stream; any thread. Nothing is allocated on the device or compiled, so it may be captured in
  // a CUDA graph once the plan has run outside of one. Throws Error with the problem and cuDNN's own words.
  virtual void Run(cuda::Stream stream, const Arguments& arguments) const = 0;
  virtual bool is_captured() const = 0;  // whether a CUDA graph has captured a run of it

 protected:
  Plan() = default;
};

// Plans that need more memory than this besides the tensors are left out by operators.
constexpr size_t kMostWorkspace = size_t{256} << 20;

// How many answers of FindPlan a process keeps for a device, unless more are held or captured.
constexpr size_t kMostAnswers = 1024;

struct Found {
  std::shared_ptr<const Plan> plan;  // null where cuDNN has none
  std::string refusal;  // then why, for a report
};

// The first plan that can be built and whose workspace is at most `workspace_limit` bytes, in the order that
// docs/architecture.md has ("Convolutions on cuDNN"); last of all, only without an epilogue, cuDNN's reference engine,
// which is tens of times slower. With `text`, only that plan. Kept for the process: equal questions, from any thread
// and whatever their programs' names, have one answer that is worked out once.
// Throws Error where cuDNN can't be opened or is older than 9. Don't ask while a graph is being captured.
Found FindPlan(
  const DeviceFacts& device, const Problem& problem, size_t workspace_limit, const PlanText* text = nullptr);

// Starts FindPlan in the background: sessions with many convolutions build their plans at the same time. Errors wait
// for the FindPlan that follows.
void Prepare(const DeviceFacts& device, const Problem& problem, size_t workspace_limit, const PlanText* text = nullptr);

// At most `most` of the plans that cuDNN's heuristics propose, in the order in which FindPlan tries them: those that
// can be built, and are, and that give the same bits in every run. Without an epilogue in fp16 and bf16 also at most
// `most` with an identity, in turn with the others; for a data gradient of stride 1 these include tiles proposed for
// the forward convolution of the same sums.
std::vector<PlanText> ListPlans(const DeviceFacts& device, const Problem& problem, size_t workspace_limit, size_t most);

// "cuDNN 9.19.0"; throws as FindPlan.
std::string Version();

}  // namespace ortplugin::cudnn
