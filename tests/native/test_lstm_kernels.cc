// The kernels of FusedLSTM, in the variants that nodes can take: no local memory, and no launch asks for what the GPU
// lacks.

#include "ortplugin/ops/lstm/lstm.h"
#include "tests/native/kernel_main.h"

using namespace ortplugin;
using namespace test;

void TestKernels(const std::string& architecture, const DeviceFacts& gpu) {
  using Direction = LstmAttributes::Direction;
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kFloat})
    for (const int64_t hidden : {5, 16, 48, 96, 112, 128, 144, 4096})
      for (const Direction direction : {Direction::kReverse, Direction::kBidirectional})
        for (const bool is_usual : {true, false}) {
          const LstmAttributes attributes{hidden, dtype, direction, false, true, 3, true};
          const LstmConfig config = ConfigureLstm(attributes, gpu, is_usual);
          const bool has_tiles = hidden % 16 == 0 && hidden <= (dtype == DType::kFloat ? 96 : 128);
          CHECK(config.uses_mma == (has_tiles && is_usual && gpu.has_mma_m16n8k16()));
          const std::string text = Joined(architecture, " ", NameOf(dtype), " ", hidden, " directions ",
            attributes.directions(), " mma ", config.uses_mma, " threads ", config.threads);
          if ((!is_usual && hidden != 48) || !IsTaken(architecture, text)) continue;
          Compiled compiled(LstmSource(attributes, config), architecture);
          compiled.Check(text);
          compiled.CheckLaunch(gpu, "lstm", config.threads);
          // Constant weights are read early, those of 16 bits in pairs.
          if (architecture == "sm_90") compiled.CheckWaits(config.uses_mma ? "ld\\.global\\.nc\\.[uf]32" : "none");
        }
  for (const std::optional<bool> said : {std::optional<bool>(), std::optional<bool>(false)})  // else of the session
    CHECK(!ConfigureLstm({48, DType::kFloat, Direction::kForward, false, false, 1, said}, gpu, true).uses_mma);
  LstmAttributes huge{4097, DType::kFloat16, Direction::kForward, false, false, 1, {}};
  CHECK(Contains(ErrorOf([&] { ConfigureLstm(huge, gpu, true); }), "'hidden_size' is 4097"));
}
