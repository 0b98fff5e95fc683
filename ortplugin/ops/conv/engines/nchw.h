// Pointwise (1x1) convolutions of stride 1 with channels first: y[n, m, p] = sum over c of w[m, c] x[n, c, p], p being
// the pixels. So are products written that mix what is not the last axis: the tokens of MLP-Mixer, ResMLP and gMLP, the
// heads of CaiT.
#pragma once

#include "ortplugin/ops/conv/engines/engine.h"

namespace ortplugin {

// The problem for ConvPreamble: an image's rows are the filters, its columns, as channels last, the pixels. Empty where
// an operand tells pixels apart by some of their axes alone, or the problem is another.
std::optional<Contraction> WithPixelsLast(const Contraction& problem);

// Of few channels and filters, on CUDA cores: memory-bound.
EngineTest FitsNchwFew;
EngineMake MakeNchwFew;

// Of more, on Hopper's tensor cores.
struct NchwGemmConfig {
  int tile_n;  // pixels of a tile: 64 or 128
  int consumers;  // warpgroups of a block, each with 64 filters
};
EngineTest FitsNchwGemm;
NchwGemmConfig ConfigureNchwGemm(const Contraction& problem, const DeviceFacts& device);
EngineMake MakeNchwGemm;

}  // namespace ortplugin
