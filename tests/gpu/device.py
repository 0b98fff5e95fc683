"""Sessions, arrays and processes on the GPU, for the tests of every operator."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from layer_norm_cases import Array, bits, output_name

import ortplugin
from ortplugin.ops.decompose import ONNX_DTYPES
from ortplugin.session import CUDA, onnxruntime

cupy = pytest.importorskip("cupy")


def make(model: bytes, **provider: str) -> Any:
    """A session in which every node must run on the GPU."""
    ort = onnxruntime()
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    ortplugin.register(options)
    return ort.InferenceSession(model, options, providers=[(CUDA, provider)], enable_fallback=0)


def host(results: dict[str, Any]) -> list[Array]:
    return [cupy.asnumpy(array) for array in results.values()]


def run(session: Any, case: Any) -> list[Array]:
    return host(ortplugin.run(session, case.feeds()))


def same_bits(got: Sequence[Array], wanted: Sequence[Array]) -> bool:
    return all((bits(a) == bits(b)).all() for a, b in zip(got, wanted, strict=True))


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs Python code in a process of its own that imports what this one does."""
    start = f"import sys; sys.path[:] = {sys.path!r}\n"
    return subprocess.run(
        [sys.executable, "-c", start + code],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **environment},
    )


def at_offset(array: Array, elements: int) -> Any:
    """The array on the device, so many elements behind an address that is a multiple of 256."""
    raw = cupy.empty(array.nbytes + (elements + 1) * array.itemsize, np.uint8)
    start = elements * array.itemsize
    raw[start : start + array.nbytes] = cupy.asarray(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    return cupy.ndarray(array.shape, array.dtype, memptr=raw.data + start)


def bind(session: Any, case: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> Any:
    """A binding of device arrays to a session's inputs and outputs."""
    binding = session.io_binding()
    for parameter, array in zip(case.program.parameters, inputs, strict=True):
        kind = ONNX_DTYPES[parameter.dtype]
        binding.bind_input(parameter.name, "cuda", 0, kind, list(array.shape), array.data.ptr)
    for result, array in zip(case.program.results, outputs, strict=True):
        kind = ONNX_DTYPES[result.dtype]
        name = output_name(case.program, result)
        binding.bind_output(name, "cuda", 0, kind, list(array.shape), array.data.ptr)
    return binding
