"""Faults of ONNX Runtime itself that end the process (1.32, CPU provider): what random graphs leave out.

Each was found as a worker that died before the optimizer had run, and is made small here. A worker that dies so of
anything else is always printed (`worker.ALONE`), with its seed: explain it, and add it.

    GRU, X of no steps, batch or columns, [0, 4, 1]: std::terminate
    LSTM, X of no batch, [4, 0, 1]: std::terminate
    ConvTranspose in three dimensions, of which the first or second has no element, [1, 2, 1, 0, 1]: segmentation fault
    InstanceNormalization in fp16 of no pixels, [1, 1, 1, 0]: segmentation fault
    RoiAlign of no pixels, [1, 1, 1, 0]: it reads what is not there, which ends some processes
    MatMul in fp16 of what a Transpose rotates, perm=[1, 2, 0] or [1, 0, 2], under its own optimizations

RNN takes the first two, FusedConvTranspose the third.

Two more end only a run. It draws a Transpose through a cubic Resize to one row, [1, C, 1, W] by sizes, since Transposes
of that are free, and its kernel refuses what has its channels last. It draws one through the Shape and Gather that a
CenterCropPad with `axes` is made of, and the Gather's index is none of the Shape.

Without its optimizations it leaves out a Cast to fp16 of a Cast from it that bodies alone read; its own Cast there has
no input then.

On CUDA its LayerNormalization (1.31) reads a scale and a bias as long as what it normalizes, also where they are
shorter and broadcast: [1] of [2].
"""

import re

import numpy as np
import onnx

from ortplugin.graph import walk_nodes

_FAULTS = {
  "GRU": "a GRU of no elements",
  "LSTM": "an LSTM of no batch",
  "ConvTranspose": "a ConvTranspose of an empty volume",
  "InstanceNormalization": "an InstanceNormalization of no pixels in fp16",
  "RoiAlign": "a RoiAlign of no pixels",
}


def of_node(op, inputs):
  """Why ONNX Runtime dies of a node with these inputs; "" if it is not known to."""
  if op not in _FAULTS or not inputs or not isinstance(inputs[0], np.ndarray):
    return ""
  x = inputs[0]
  taken = op != "InstanceNormalization" or x.dtype == np.float16
  return _words(op) if taken and 0 in _fatal(op, x.shape) else ""


def of_model(model, feeds):
  """Why it may die of a model with these feeds: what one of the operators takes is empty, or may be: some feed is."""
  if all(np.size(each) for each in feeds.values()):
    return ""
  nodes = [node for node in walk_nodes(model) if node.op_type in _FAULTS and not _is_flat(node)]
  shapes = _shapes(model, feeds) if nodes else {}
  outermost = {node.output[0] for node in model.graph.node if node.output}  # names in bodies may be others' again
  for node in nodes:
    shape = shapes.get(node.input[0]) if node.output[0] in outermost else None
    if shape is None or not {0, None}.isdisjoint(_fatal(node.op_type, shape)):
      return _words(node.op_type)
  return ""


def _fatal(op, shape):
  """The lengths of the first input of which none may be 0."""
  return {
    "GRU": shape,
    "LSTM": shape[1:2],
    "ConvTranspose": shape[2:4] if len(shape) == 5 else (),
    "InstanceNormalization": shape[2:],
    "RoiAlign": shape[2:],
  }[op]


def _words(op):
  return f"ONNX Runtime dies of {_FAULTS[op]}"


def _shapes(model, feeds):
  """Of the outermost graph's values, as far as they follow from those of the feeds."""
  made = onnx.ModelProto()
  made.CopyFrom(model)
  del made.graph.value_info[:]
  for value in made.graph.input:
    kind = value.type.tensor_type
    if value.name in feeds and value.type.HasField("tensor_type"):
      dims = [onnx.TensorShapeProto.Dimension(dim_value=n) for n in np.shape(feeds[value.name])]
      kind.shape.CopyFrom(onnx.TensorShapeProto(dim=dims))
  try:
    graph = onnx.shape_inference.infer_shapes(made, data_prop=True).graph
  except Exception:  # onnx raises several classes here
    return {}
  kinds = {each.name: each.type.tensor_type for each in [*graph.input, *graph.value_info]}
  return {
    name: [dim.dim_value if dim.HasField("dim_value") else None for dim in kind.shape.dim]
    for name, kind in kinds.items()
    if kind.HasField("shape")
  }


def of_scale(model, feeds):
  """Whether a LayerNormalization reads beyond its scale or bias on CUDA."""
  nodes = [node for node in model.graph.node if (node.domain, node.op_type) == ("", "LayerNormalization")]
  shapes = _shapes(model, feeds) if nodes else {}
  shapes.update((each.name, list(each.dims)) for each in model.graph.initializer)
  for node in nodes:
    axis = next((each.i for each in node.attribute if each.name == "axis"), -1)
    x, *others = (shapes.get(name) for name in node.input)
    if x is not None and any(each is not None and each != x[axis:] for each in others):
      return True
  return False


def of_rotation(model):
  """Whether ONNX Runtime's own optimizations may die of a model that was cast to fp16."""
  nodes = list(walk_nodes(model))
  casts = any(_casts_to_half(node) for node in nodes)
  perms = [list(node.attribute[0].ints) for node in nodes if node.op_type == "Transpose" and node.attribute]
  rotates = any(len(perm) > 2 and perm[:-2] == list(range(1, len(perm) - 1)) for perm in perms)
  return casts and rotates and any(node.op_type == "MatMul" for node in nodes)


def of_cubic(model):
  """Whether ONNX Runtime's own optimizations may draw a Transpose through a cubic Resize, whose run fails then."""
  nodes = list(walk_nodes(model))
  cubic = any(node.op_type == "Resize" and any(each.s == b"cubic" for each in node.attribute) for node in nodes)
  return cubic and any(node.op_type == "Transpose" for node in nodes)


def of_crop(model):
  """Whether ONNX Runtime's own optimizations may draw a Transpose into a CenterCropPad, whose run fails then."""
  nodes = list(walk_nodes(model))
  pads = (node for node in nodes if node.op_type == "CenterCropPad")
  crops = any(each.name == "axes" for node in pads for each in node.attribute)
  return crops and any(node.op_type == "Transpose" for node in nodes)


def _casts_to_half(node):
  """Whether it is a Cast to fp16, or has one in its program."""
  if node.op_type == "Cast":
    return bool(node.attribute[0].i == onnx.TensorProto.FLOAT16)
  return any(each.name == "program" and b"Cast<to=float16>" in each.s for each in node.attribute)


def of_cast(message):
  """Whether a run failed by a Cast of ONNX Runtime's own without an input."""
  return re.search("InsertedPrecisionFreeCast.*Missing Input", message) is not None


def of_conv(model, message):
  """Whether a run on a GPU failed by ONNX Runtime's own Conv or ConvTranspose in three dimensions: in 16 bits they may
  fail to make their plan ("Integer overflow", CUDNN_FE 7) or its workspace, also of shapes that they do in float32."""
  failed = re.search(r"while running (Conv|ConvTranspose) node", message)
  return failed is not None and any(
    (node.domain, node.op_type) == ("", failed[1]) and not _is_flat(node) for node in walk_nodes(model)
  )


def _is_flat(node):
  """Whether it is a convolution in one or two dimensions, as its kernel_shape says."""
  return any(each.name == "kernel_shape" and len(each.ints) < 3 for each in node.attribute)
