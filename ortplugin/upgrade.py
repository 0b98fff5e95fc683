"""Models of old opsets in the form that passes and decompositions know.

The conversion is onnx.version_converter's, on a skeleton without the large weights; around it, what that loses or gets
wrong is put right:

- it drops documentation, metadata, annotations and the types of values: all but the nodes stays the original's;
- Upsample, and Resize before opset 11, place samples at x / scale, and ONNX Runtime rounds them down where it enlarges
  and up where it shrinks. The conversion leaves the new operator's defaults, half a pixel beside that;
- Scan before opset 9 had a batch dimension, in bodies too: refused;
- before IR version 4 initializers had to be inputs, though ONNX Runtime lets no caller override them: no longer.

What remains wrong shows when original and result are compared, which `optimize` does with verify=True.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx.version_converter
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from .errors import ModelError, one_line
from .modelcheck import check_structure, skeleton, walk_graphs
from .ops.decompose import MINIMUM_OPSET

OLDEST = 7  # the first opset that ONNX Runtime supports, and in which operators broadcast as NumPy does
IR_VERSION = 6  # the one of opset 11


def opset(model: ModelProto) -> int:
    """The version of the standard domain; 0 if the model does not import it."""
    return next((each.version for each in model.opset_import if each.domain in ("", "ai.onnx")), 0)


def upgrade(model: ModelProto) -> ModelProto:
    """The model with opset 11 if its own is older, else itself. It is not changed. Raises ModelError if it can't be."""
    found = opset(model)
    if found == 0 or found >= MINIMUM_OPSET:
        return model
    if found < OLDEST:
        raise ModelError(
            f"its opset {found} is older than {OLDEST}, the oldest that ONNX Runtime supports; "
            f"export the model again with opset {MINIMUM_OPSET} or later"
        )
    try:
        _check_convertible(model, found)
        result = _converted(model)
        check_structure(result)
    except Exception as error:  # onnx raises its own and C++'s errors
        reason = one_line(error).rsplit(" failed: ", 1)[-1][:300]  # without the place in onnx's source
        raise ModelError(
            f"it can't be upgraded from opset {found} to {MINIMUM_OPSET}: {reason}; "
            f"export the model again with opset {MINIMUM_OPSET} or later"
        ) from error
    return result


def _check_convertible(model: ModelProto, found: int) -> None:
    if model.functions or model.training_info:
        raise ModelError("it has local functions or training information, which the conversion does not know")
    scan = next((node for node in _nodes(model.graph) if node.op_type == "Scan" and found < 9), None)
    if scan is not None:
        raise ModelError(f"node '{scan.name}' (Scan) has the batch dimension that Scan lost in opset 9")


def _converted(model: ModelProto) -> ModelProto:
    light = skeleton(model)
    light.ir_version = max(light.ir_version, IR_VERSION)
    converted = onnx.version_converter.convert_version(light, MINIMUM_OPSET)
    scales = _constants(model)
    originals = {name: node for node in _nodes(model.graph) for name in node.output if name}
    for node in _nodes(converted.graph):
        original = next((originals[name] for name in node.output if name in originals), None)
        if original is not None:
            _put_right(node, original, scales)

    result = ModelProto()
    result.CopyFrom(model)
    del result.graph.node[:]
    result.graph.node.extend(converted.graph.node)
    existing = {each.name for each in model.graph.initializer}
    given = {each.name for each in light.graph.input}
    added = [each for each in converted.graph.initializer if each.name not in existing and each.name not in given]
    result.graph.initializer.extend(added)
    if model.ir_version < 4:
        kept = [each for each in model.graph.input if each.name not in existing]
        del result.graph.input[:]
        result.graph.input.extend(kept)
    result.ir_version = max(result.ir_version, IR_VERSION)
    for each in result.opset_import:
        if each.domain in ("", "ai.onnx"):
            each.version = MINIMUM_OPSET
    return result


def _nodes(graph: GraphProto) -> Iterator[NodeProto]:
    for each in walk_graphs(graph):
        yield from each.node


def _constants(model: ModelProto) -> dict[str, TensorProto]:
    """The constants of the model by name."""
    inputs = {each.name for each in model.graph.input} if model.ir_version >= 4 else set()
    found = {each.name: each for graph in walk_graphs(model.graph) for each in graph.initializer}
    for node in _nodes(model.graph):
        if node.op_type == "Constant" and node.attribute and node.attribute[0].HasField("t"):
            found[node.output[0]] = node.attribute[0].t
    return {name: tensor for name, tensor in found.items() if name not in inputs}


def _put_right(node: NodeProto, original: NodeProto, constants: Mapping[str, TensorProto]) -> None:
    """Corrects a converted node by the one that it comes from."""
    node.name = original.name
    node.doc_string = original.doc_string
    if hasattr(node, "metadata_props"):  # since onnx 1.16
        del node.metadata_props[:]
        node.metadata_props.extend(original.metadata_props)
    if node.op_type == "Resize" and original.op_type in ("Resize", "Upsample"):
        node.attribute.append(helper.make_attribute("coordinate_transformation_mode", "asymmetric"))
        if original.op_type == "Upsample":
            node.attribute.append(helper.make_attribute("nearest_mode", "floor"))
        elif not any(each.name == "mode" and each.s == b"linear" for each in original.attribute):
            node.attribute.append(helper.make_attribute("nearest_mode", _rounding(original, constants)))


def _rounding(resize: NodeProto, constants: Mapping[str, TensorProto]) -> str:
    """How ONNX Runtime rounds the positions of a Resize of opset 10 to the nearest pixel."""
    tensor = constants.get(resize.input[1])
    if tensor is None:
        raise ModelError(f"node '{resize.name}' (Resize) has scales, '{resize.input[1]}', that are no constant")
    scales = numpy_helper.to_array(tensor)
    if (scales >= 1).all():
        return "floor"
    if (scales <= 1).all():
        return "ceil"
    raise ModelError(f"node '{resize.name}' (Resize) both enlarges and shrinks, by {scales.tolist()}")
