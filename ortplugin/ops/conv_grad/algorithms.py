"""The algorithms that a GPU has for the gradients of a convolution, as --tune times them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx

from ortplugin.graph.shapes import TensorType
from ortplugin.ops.conv_grad.gradient import Gradient
from ortplugin.ops.list_algorithms import ask, known_shapes, lists
from ortplugin.program import FLOATING

ATTRIBUTES = {"dX": "data_algorithm", "dW": "weight_algorithm"}


def variants(
    node: onnx.NodeProto, gradient: Gradient, inputs: Sequence[TensorType], device_id: int = 0
) -> Sequence[Mapping[str, Any]]:
    """{"data_algorithm": text} and {"weight_algorithm": text} for each one that a GPU offers for inputs of these
    shapes; none where one is unknown.

    Raises ModelError that names the node where the library can't tell, as without cuDNN.
    """
    given = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
    shapes = known_shapes(inputs)
    wanted = [ATTRIBUTES[name] for name in gradient.gradients if name in ATTRIBUTES]
    if shapes is None or not wanted:
        return ()
    numbers = [int(name in gradient.gradients) for name in ("dX", "dW", "dB", "dZ")]
    numbers += [int(name in gradient.operands) for name in ("X", "W")]
    numbers += [int(gradient.transposed), int(gradient.channels_last), int(given.get("allow_tf32", 0))]
    numbers += [gradient.group, FLOATING.index(gradient.weight_dtype)]
    windows = (gradient.kernel_shape, gradient.strides, gradient.dilations, gradient.pad_begin, gradient.pad_end,
               gradient.output_padding)  # fmt: skip
    numbers += [*lists(windows), len(shapes), *lists(shapes)]
    where = f"node '{node.name}' ({node.op_type})"
    answer = ask("OrtPluginListConvGradAlgorithms", where, numbers, str(gradient.program), device_id)
    lines = [line.partition("=") for line in answer]
    return [
        {name: text}
        for name in wanted
        for text in ("auto", *(text for listed, _, text in lines if listed == name))
        if text != given.get(name, b"auto").decode()
    ]
