"""The passes, one file each, in folders by what they work on. Their order is TABLE of optimizer/pipeline.py.

base       the contract of a pass; driver: passes made of rules; emit, operands, conditions: what their rules share
simplify   standard ONNX becomes simpler standard ONNX
norm       LayerNormalization and RMSNormalization
pointwise  sets of pointwise operators, and sums of them
conv       convolutions, transposed convolutions, their gradients, and linear layers that become convolutions
layout     NHWC (channels last): which operators have it, and what that allows
scatter    ScatterND, ScatterElements and what becomes UpdateSlice

A folder may use those below it here: layout, conv, pointwise. The others stand alone (tests/unit/test_packages.py).
A file that defines a pass has the pass's name; a file that does not repeats its folder's name no more.
"""
