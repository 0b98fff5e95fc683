"""Operators of the standard domain for which ONNX Runtime's CUDA provider has kernels in the narrow dtypes.

Read from the kernels that onnxruntime-gpu 1.31 registers. What it lacks would run on the CPU in the middle of a model,
or, in bfloat16, not at all. Pointwise operators need no kernel of its own: they become FusedPointwise.
"""

from __future__ import annotations

_FLOAT16 = """
"""
_BFLOAT16 = """
"""
KERNELS: dict[str, frozenset[str]] = {"float16": frozenset(_FLOAT16.split()), "bfloat16": frozenset(_BFLOAT16.split())}
