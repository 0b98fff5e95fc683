"""The algorithms that a GPU has for a convolution, as --tune times them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx

from ortplugin.graph.conv_geometry import AUTO_PADS, read_attributes
from ortplugin.graph.shapes import TensorType
from ortplugin.ops.conv_epilogue import read_epilogue
from ortplugin.ops.list_algorithms import ask, known_shapes, lists


def device_variants(
    node: onnx.NodeProto,
    inputs: Sequence[TensorType],
    constant: Sequence[bool],
    device_id: int = 0,
    transposed: bool = False,
) -> Sequence[Mapping[str, Any]]:
    """{"algorithm": text} for each one that a GPU offers for inputs of these shapes; none where one is unknown.

    Raises ModelError that names the node where the library can't tell, as without cuDNN.
    """
    attributes = read_attributes(node, transposed)
    program = read_epilogue(node, own_inputs=2)
    given = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
    shapes = known_shapes(inputs)
    if shapes is None:
        return ()
    numbers = [int(transposed), AUTO_PADS.index(attributes.auto_pad), int(attributes.layout == "NHWC")]
    numbers += [int(attributes.input_layout != attributes.layout), int(attributes.output_layout != attributes.layout)]
    numbers += [attributes.group, int(given.get("allow_tf32", 0)), int(constant[1])]
    optional = (attributes.kernel_shape, attributes.strides, attributes.dilations, attributes.pads,
                attributes.output_padding, attributes.output_shape)  # fmt: skip
    numbers += [*lists([each or () for each in optional]), len(shapes), *lists(shapes)]
    found = ask("OrtPluginListConvAlgorithms", attributes.where, numbers, str(program), device_id)
    current = given.get("algorithm", b"auto").decode()
    return [{"algorithm": text} for text in ("auto", *found) if text != current]
