"""Where optimized models run: the CPU provider, CUDA, CUDA under a graph."""

from __future__ import annotations

from typing import Any

import onnx

import ortplugin

from .emulate import emulated
from .evaluate import make_session, run


class Provider:
    """The CPU."""

    is_cpu = True

    def session(self, model: onnx.ModelProto, optimize: bool) -> Any:
        """A session of a model. UnfitError where this provider can't have one for a reason of its own."""
        return make_session(emulated(model).SerializeToString(), optimize=optimize)

    def run(self, session: Any, feeds: dict[str, Any]) -> dict[str, Any]:
        """The outputs by name, as NumPy arrays."""
        return run(session, feeds)

    def original(self, case: Any, reference: Any) -> dict[str, Any]:
        """The original on this provider; the CPU has been asked already."""
        return {}

    def lacks(self, error: Exception, model: onnx.ModelProto) -> bool:
        """Whether an error is about the provider and not about the optimized model."""
        return False


class Cuda(Provider):
    """CUDA; `graph`: what `ortplugin.run` runs is captured and replayed.

    fp32 products are not rounded to TF32. Where the original does not run there either, nothing is said.
    """

    is_cpu = False

    def __init__(self, graph: bool = False) -> None:
        self.graph = graph

    def session(self, model: onnx.ModelProto, optimize: bool) -> Any:
        """A session on the GPU, silent."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        return ortplugin.session(
            model.SerializeToString(),
            [("cuda", {"use_tf32": "0", "cudnn_conv_algo_search": "HEURISTIC"})],
            cuda_graph=self.graph,
            session_options=options,
        )

    def run(self, session: Any, feeds: dict[str, Any]) -> dict[str, Any]:
        """Two runs under a graph: one that captures, one that replays."""
        import cupy

        taken = {each.name for each in [*session.get_inputs(), *session.get_overridable_initializers()]}
        given = {name: value for name, value in feeds.items() if name in taken}
        made = ortplugin.run(session, given, copy=self.graph)
        if self.graph:
            made = ortplugin.run(session, given, copy=True)
        return {name: cupy.asnumpy(value) if hasattr(value, "get") else value for name, value in made.items()}

    def original(self, case: Any, reference: Any) -> dict[str, Any]:
        """The original there, in its own dtype."""
        plain = Cuda()
        session = plain.session(case.model, False)
        return plain.run(session, case.narrowed(reference.feeds))

    def lacks(self, error: Exception, model: onnx.ModelProto) -> bool:
        """Whether the original has the same trouble: no kernel, or operators that a CUDA graph can't hold."""
        if self.graph and any(word in str(error) for word in ("CUDA graph", "captur", "cudaGraph", "graph capture")):
            return True
        try:
            self.session(model, False)
        except Exception:  # ONNX Runtime's own classes have no common base
            return True
        return "NOT_IMPLEMENTED" in str(error)
