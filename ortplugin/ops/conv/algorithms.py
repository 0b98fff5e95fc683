"""The algorithms that a GPU has for a convolution, asked of the native library: only it sees cuDNN and the GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import onnx

from ortplugin.errors import ModelError
from ortplugin.ops.base import TensorType
from ortplugin.ops.conv_epilogue import read_epilogue
from ortplugin.ops.conv_geometry import AUTO_PADS, read_attributes

_CAPACITY = 1 << 16  # of the answer, in bytes


def device_variants(
    node: onnx.NodeProto, inputs: Sequence[TensorType], constant: Sequence[bool], transposed: bool = False
) -> Sequence[Mapping[str, Any]]:
    """{"algorithm": text} for each one that the first GPU offers for inputs of these shapes; none where one is unknown.

    Raises ModelError that names the node where the library can't tell, as without cuDNN.
    """
    attributes = read_attributes(node, transposed)
    program = read_epilogue(node, own_inputs=2)
    given = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
    shapes: list[list[int]] = []
    for each in inputs:
        if each.shape is None or not all(isinstance(dim, int) for dim in each.shape):
            return ()
        shapes.append([int(dim) for dim in each.shape if isinstance(dim, int)])
    lists = (attributes.kernel_shape, attributes.strides, attributes.dilations, attributes.pads,
             attributes.output_padding, attributes.output_shape)  # fmt: skip
    numbers = [0, int(transposed), AUTO_PADS.index(attributes.auto_pad), int(attributes.layout == "NHWC")]
    numbers += [int(attributes.input_layout != attributes.layout), int(attributes.output_layout != attributes.layout)]
    numbers += [attributes.group, int(given.get("allow_tf32", 0)), int(constant[1])]
    for values in (*(list(each or ()) for each in lists),):
        numbers += [len(values), *values]
    numbers.append(len(shapes))
    for shape in shapes:
        numbers += [len(shape), *shape]
    failed, answer = _ask(numbers, str(program))
    if failed:
        raise ModelError(f"{attributes.where}: its algorithms can't be listed: {answer}")
    current = given.get("algorithm", b"auto").decode()
    return [{"algorithm": text} for text in ("auto", *answer.split()) if text != current]


def _ask(numbers: Sequence[int], program: str) -> tuple[bool, str]:
    """Whether the library failed, and its answer: an algorithm a line, or the message."""
    from ortplugin.session import library_path, onnxruntime

    onnxruntime()  # which loads cuDNN from its wheel
    ask = ctypes.CDLL(library_path()).OrtPluginListConvAlgorithms
    ask.argtypes = [ctypes.POINTER(ctypes.c_int64), ctypes.c_size_t, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]
    ask.restype = ctypes.c_int
    text = ctypes.create_string_buffer(_CAPACITY)
    failed = ask((ctypes.c_int64 * len(numbers))(*numbers), len(numbers), program.encode(), text, _CAPACITY)
    return failed != 0, text.value.decode(errors="replace")
