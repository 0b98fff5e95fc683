"""Passes around convolutions, transposed convolutions and their gradients."""
