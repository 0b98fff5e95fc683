"""Where optimized models run: the CPU provider, CUDA, CUDA under a graph."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any

import onnx

import ortplugin

from .emulate import emulated
from .evaluate import make_session, run


class Provider:
    """The CPU."""

    is_cpu = True
    captured = False  # whether the last run was that of a CUDA graph

    def session(self, model: onnx.ModelProto, optimize: bool) -> Any:
        """A session of a model. UnfitError where this provider can't have one for a reason of its own."""
        return make_session(emulated(model).SerializeToString(), optimize=optimize)

    def run(self, session: Any, feeds: dict[str, Any]) -> dict[str, Any]:
        """The outputs by name, as NumPy arrays."""
        return run(session, feeds)

    def original(self, case: Any, reference: Any) -> dict[str, Any]:
        """The original on this provider; the CPU has been asked already."""
        return {}

    def lacks(self, case: Any, reference: Any) -> bool:
        """Whether the original fails here, too."""
        return False


class Cuda(Provider):
    """CUDA; `graph`: what `ortplugin.run` runs is captured and replayed, where ONNX Runtime can capture the model.

    fp32 products are not rounded to TF32. An error after which the GPU is lost to this process ends it.
    """

    is_cpu = False

    def __init__(self, graph: bool = False) -> None:
        self.graph = graph

    def session(self, model: onnx.ModelProto, optimize: bool) -> Any:
        """A session on the GPU, silent, with the model, for one without a graph."""
        data = model.SerializeToString()
        if self.graph:
            try:
                return _Session(data, _cuda_session(data, True), True)
            except Exception as error:  # ONNX Runtime's own classes have no common base
                _check_gpu(error)  # what it can't capture runs without a graph
        try:
            return _Session(data, _cuda_session(data, False), False)
        except Exception as error:  # as above
            _check_gpu(error)
            raise

    def run(self, session: Any, feeds: dict[str, Any]) -> dict[str, Any]:
        """The outputs on the host; under a graph those of a second run, which replays what the first captured."""
        try:
            self.captured = session.graph
            return _on_gpu(session.ort, feeds, 2 if session.graph else 1)
        except Exception as error:  # as above
            _check_gpu(error)
            if not session.graph or "ortplugin" in str(error):
                raise
        self.captured = False
        return _on_gpu(_cuda_session(session.data, False), feeds, 1)

    def original(self, case: Any, reference: Any) -> dict[str, Any]:
        """The original there, in its own dtype."""
        session = _cuda_session(case.model.SerializeToString(), False)
        return _on_gpu(session, case.narrowed(reference.feeds), 1)

    def lacks(self, case: Any, reference: Any) -> bool:
        """Whether the original fails here, too."""
        try:
            self.original(case, reference)
        except Exception as error:  # as above
            _check_gpu(error)
            return True
        return False


@dataclass(frozen=True)
class _Session:
    data: bytes
    ort: Any
    graph: bool


LOST = ("illegal memory access", "cudaErrorIllegalAddress", "unspecified launch failure", "misaligned address",
        "device-side assert", "CUDNN_STATUS_EXECUTION_FAILED", "CUBLAS_STATUS_EXECUTION_FAILED",
        "CUDA_ERROR_ILLEGAL_ADDRESS", "CUDA error 700", "CUDA failure 700")  # fmt: skip


def _check_gpu(error: Exception) -> None:
    """Ends the process if no later call could succeed; whoever asked sees a crash, and starts another process."""
    if any(words in str(error) for words in LOST):
        print(f"the GPU is lost: {error}", file=sys.stderr, flush=True)
        os._exit(70)


def _cuda_session(model: bytes, graph: bool) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    settings = {"use_tf32": "0", "cudnn_conv_algo_search": "HEURISTIC", "arena_extend_strategy": "kSameAsRequested"}
    return ortplugin.session(model, [("cuda", settings)], cuda_graph=graph, session_options=options)


def _on_gpu(session: Any, feeds: dict[str, Any], times: int) -> dict[str, Any]:
    import cupy

    taken = {each.name for each in [*session.get_inputs(), *session.get_overridable_initializers()]}
    given = {name: value for name, value in feeds.items() if name in taken}
    for _ in range(times):
        made = ortplugin.run(session, given, copy=True)
    return {name: cupy.asnumpy(value) if isinstance(value, cupy.ndarray) else value for name, value in made.items()}
