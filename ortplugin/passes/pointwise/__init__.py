"""Passes that make FusedPointwise and FusedSumTo of pointwise operators and sums."""
