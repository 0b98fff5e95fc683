"""Sessions on the CPU provider, for the tests of every operator."""

from __future__ import annotations

from typing import Any

import onnxruntime
from node_cases import Array

import ortplugin

CPU_ONLY = ["CPUExecutionProvider"]


def options(threads: int = 0) -> onnxruntime.SessionOptions:
    """Registered, and quiet where an error is wanted. `threads`: 0 is as many as there are cores."""
    made = onnxruntime.SessionOptions()
    made.log_severity_level = 4
    made.intra_op_num_threads = threads
    ortplugin.register(made)
    return made


def make(model: bytes, threads: int = 0) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(model, options(threads), providers=CPU_ONLY)


def run(session: Any, case: Any) -> list[Array]:
    return list(ortplugin.run(session, case.feeds()).values())  # NumPy lacks bfloat16, so not session.run
