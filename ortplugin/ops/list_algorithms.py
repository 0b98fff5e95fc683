"""Asks the native library (list_algorithms.cc) for the algorithms of a node: only it sees the GPU and its cuDNN."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from ortplugin.errors import ModelError
from ortplugin.graph.shapes import TensorType

_ANSWER = ctypes.CFUNCTYPE(None, ctypes.c_char_p)


def lists(values: Sequence[Sequence[int]]) -> list[int]:
    """The lists as numbers, each after its length."""
    return [number for each in values for number in (len(each), *each)]


def known_shapes(inputs: Sequence[TensorType]) -> list[list[int]] | None:
    """Their shapes; None where one is not known."""
    shapes = [[dim for dim in each.shape or () if isinstance(dim, int)] for each in inputs]
    whole = all(each.shape is not None and len(each.shape) == len(shape)
                for each, shape in zip(inputs, shapes, strict=True))  # fmt: skip
    return shapes if whole else None


def ask(function: str, where: str, numbers: Sequence[int], program: str, device_id: int = 0) -> list[str]:
    """The lines that the library's `function` answers for a GPU, where `numbers` and `program` describe a node.

    Raises ModelError that begins with `where` if the library can't tell, as without cuDNN.
    """
    from ortplugin.session import library_path, onnxruntime

    onnxruntime()  # which loads cuDNN from its wheel
    call = getattr(ctypes.CDLL(library_path()), function)
    call.argtypes = [ctypes.POINTER(ctypes.c_int64), ctypes.c_size_t, ctypes.c_char_p, _ANSWER]
    call.restype = ctypes.c_int
    answers: list[bytes] = []
    given = [device_id, *numbers]
    failed = call((ctypes.c_int64 * len(given))(*given), len(given), program.encode(), _ANSWER(answers.append))
    text = answers[0].decode(errors="replace")
    if failed:
        raise ModelError(f"{where}: its algorithms can't be listed: {text}")
    return text.splitlines()
