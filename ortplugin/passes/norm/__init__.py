"""Passes that make FusedLayerNorm of normalisations and draw what is pointwise around them into it."""
