// The engines for convolutions in one table, from the special to the general. Each says whether it fits and asks of the
// GPU at hand whether it is known to beat a library's engine (beats_library); of several that do, the first is taken,
// for the reason in its line.
//
// "By construction" in a reason: no measurement of a GPU is needed to know that it is faster there. All others are used
// by default only on GPUs that target/ has an entry of. On any other the library's engine is used, and --tune times
// ours beside it.
//
// cuDNN has no line. It comes behind the table (ConvPlanner::FindCudnn), for what no line is the fastest at, since its
// plans are no kernels of ours: they are searched for by threads while a session is created, may be refused with a
// reason, and have parts of their own (a GEMM and pixel_shuffle, the program fused or apart). What was measured of
// these is asked of target/ as well.

#include "ortplugin/ops/conv/engines/conv_1x1.h"
#include "ortplugin/ops/conv/engines/depthwise.h"
#include "ortplugin/ops/conv/engines/direct.h"
#include "ortplugin/ops/conv/engines/engine.h"
#include "ortplugin/ops/conv/engines/few_output_channels.h"
#include "ortplugin/ops/conv/engines/gemm.h"
#include "ortplugin/ops/conv/engines/gemv.h"
#include "ortplugin/ops/conv/engines/nchw.h"
#include "ortplugin/ops/conv/engines/grouped.h"
#include "ortplugin/ops/conv/engines/patch.h"
#include "ortplugin/ops/conv/engines/polyphase.h"
#include "ortplugin/ops/conv/engines/split_k.h"
#include "ortplugin/ops/conv/engines/stem.h"

namespace ortplugin {
namespace {

bool Always(const Program&, const Contraction&, const DeviceFacts&) { return true; }

template <EngineMake* make>
std::optional<EngineKernel> Make(const Program& program, const Contraction& problem, const DeviceFacts& device) {
  return make(program, problem, device);
}

// A 1x1 filter has one tap, which is one phase's: conv_1x1 knows what the others are.
bool FitsPolyphaseAlone(const Program& program, const Contraction& problem, const DeviceFacts& device) {
  return FitsPolyphase(program, problem, device) && !FitsConv1x1(program, problem, device);
}

}  // namespace

const std::vector<Engine>& EngineTable() {
  static const auto* const table = new std::vector<Engine>{
    {"few_output_channels", FitsFewOutputChannels, Always, Make<MakeFewOutputChannels>,
      "transposed, up to eight filters; first, as the narrowest. By construction: a GEMM's tile of 32 columns or more "
      "is empty for the most part, and the result may be NCHW without a kernel that transposes it"},
    {"depthwise", FitsDepthwise, Always, Make<MakeDepthwise>,
      "depthwise, in front of grouped, which takes those of large filters. By construction: a filter meets one "
      "channel, so there is no matrix to multiply; it is memory-bound and touches each element once, the program "
      "included"},
    {"grouped", FitsGrouped, IsGroupedFast, MakeGrouped,
      "groups, of which only gemm takes some, pointwise and wide. By construction where a group's channels or filters "
      "are no multiple of eight, for which a library's tensor cores have no kernel; else as measured"},
    {"stem", FitsStem, IsStemFast, Make<MakeStem>,
      "up to four input channels, which split_k and conv_1x1 do not take. By construction where the image is NCHW, "
      "which a library has transposed by a kernel in front; else as measured"},
    {"gemv", FitsGemv, IsGemvFast, Make<MakeGemv>,
      "1x1 on one pixel; before split_k, which divides sums for the same reason but in tiles of 64 pixels. By "
      "construction for one image: each weight is read and used once; else as measured"},
    {"split_k", FitsSplitK, IsSplitKFast, Make<MakeSplitK>,
      "little work for the GPU; before conv_1x1, whose few tiles leave multiprocessors idle there. As measured"},
    {"conv_1x1", FitsConv1x1, IsConv1x1Fast, Make<MakeConv1x1>,
      "pointwise (1x1) convolution, plain or transposed, memory-bound; before polyphase, for its one tap. As "
      "measured"},
    {"gemm", FitsGemm, IsGemmFast, Make<MakeGemm>,
      "matrix products, and pointwise (1x1) convolutions of stride 1; behind conv_1x1, which reads the weights once. "
      "As measured"},
    {"patch", FitsPatch, IsPatchFast, Make<MakePatch>,
      "stride 1, up to 64 channels, large images; before implicit_gemm, which reads a pixel once for each tap. As "
      "measured"},
    {"implicit_gemm", FitsImplicitGemm, IsImplicitGemmFast, Make<MakeImplicitGemm>,
      "convolutions of several taps, and with strides; behind all that know more of their filters. As measured"},
    {"polyphase", FitsPolyphaseAlone, IsPolyphaseFast, Make<MakePolyphase>,
      "transposed with strides, of any filter; the most general of the transposed ones. As measured"},
    {"nchw_few", FitsNchwFew, Always, Make<MakeNchwFew>,
      "pointwise (1x1) with channels first, few channels and filters; before nchw_gemm, whose tiles would be empty for "
      "the most part. By construction: memory-bound, and the image is read as it lies"},
    {"nchw_gemm", FitsNchwGemm, Always, Make<MakeNchwGemm>,
      "pointwise (1x1) with channels first. By construction: a library transposes the image in front and the result "
      "behind"},
    {"direct", FitsDirect, IsDirectFast, MakeDirect, "fp32, NCHW, few channels; behind what is pointwise. As measured"},
  };
  return *table;
}

std::optional<EngineKernel> FindEngineKernel(
  const Program& program, const Contraction& given, const DeviceFacts& device, bool only_where_fast) {
  const Contraction plane = WithTwoWindows(given);
  if (plane.windows.size() != 2) return std::nullopt;
  // A matrix product's rows, however many: they are in no kernel's text then.
  const bool is_product = plane.batch == 1 && plane.rows().size == 1 && IsPointwise(plane);
  const Contraction problem = is_product ? WithRowsAsBatch(plane) : plane;
  const std::vector<Engine>& table = EngineTable();
  for (const Engine& engine : table)
    if (engine.fits(program, problem, device) && engine.beats_library(program, problem, device))
      if (std::optional<EngineKernel> kernel = engine.make(program, problem, device)) return kernel;
  if (only_where_fast) return std::nullopt;
  for (auto engine = table.rbegin(); engine != table.rend(); ++engine)
    if (engine->fits(program, problem, device))
      if (std::optional<EngineKernel> kernel = engine->make(program, problem, device)) return kernel;
  return std::nullopt;
}

}  // namespace ortplugin
