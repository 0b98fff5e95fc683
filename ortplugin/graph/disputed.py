"""Values of which ONNX Runtime believes another shape than it computes, since it infers shapes by onnx, too.

Where a value_info contradicts what it infers, ONNX Runtime keeps now the one and now the other, and two operands of one
node may end up with shapes that do not fit, which the node's kernel refuses. So nothing is said of such a value, nor of
what follows from it: a value_info is for ONNX Runtime's eyes and must not contradict it, even where it is right. And a
Reshape to the right shape stays, though it changes nothing: kernels behind it are made for the shape that it tells.

Where a node has another form of which both infer the same, it gets that form instead (`settle`).
"""

from weakref import WeakKeyDictionary

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import helper, numpy_helper

from .convert import all_graphs, node_proto, value_info
from .domains import DEFAULT_DOMAINS, DOMAIN
from .facts import CONSTANT_ELEMENTS, Scope, known_values, scopes, value_of
from .ort_shapes import POOLS, ceil_adds_nothing, is_hidden, pads_without_ceil, told

_KNOWN: WeakKeyDictionary[Scope, frozenset[str]] = WeakKeyDictionary()
INT32_MAX = 2**31 - 1  # from here on exporters mean the end


def settle(graph: gs.Graph) -> None:
  """Gives nodes of which onnx infers another shape, also in subgraphs, a form of which it infers the right one.

  An operator of ours behind them would be asked at load about a shape that no value has. A pool's ceil_mode goes
  where it adds no window, or where pads add the same; else a Reshape tells the lengths that are known. `graph` has
  the shapes that `annotate` found.
  """
  left: list[gs.Node] = []
  for node in (node for each in all_graphs(graph) for node in each.nodes):
    if not is_hidden(node):
      continue
    is_ceil = node.op in POOLS and node.attrs.get("ceil_mode")
    if is_ceil and ceil_adds_nothing(node):
      del node.attrs["ceil_mode"]
    elif _contradicts(node, graph.opset):
      pads = pads_without_ceil(node) if is_ceil else None
      if pads is None:
        left.append(node)
        continue
      del node.attrs["ceil_mode"]
      node.attrs.pop("auto_pad", None)
      node.attrs["pads"] = pads
  if left and any(node.domain == DOMAIN for each in all_graphs(graph) for node in each.nodes):
    for scope in scopes(graph):
      for node in (each for each in left if id(each) in scope.position):
        _tell_by_reshape(scope, node)


def _tell_by_reshape(scope: Scope, node: gs.Node) -> None:
  result, (kind, *_) = node.outputs[0], told(node)
  shape = kind.shape or ()
  lengths = [dim if isinstance(dim, int) else 0 for dim in shape]  # 0: as it comes
  if not any(lengths) or 0 in shape or max(lengths) >= 1 << 63:
    return
  readers = scope.consumers(result)
  if len(readers) == 1 and scope.op(readers[0]) == "Reshape" and _integers(readers[0], 1) == lengths:
    return
  made = scope.like(result, "made", shape)
  node.outputs[0] = made
  wanted = scope.add_constant(np.array(lengths, np.int64), f"{result.name}_shape")
  scope.insert_after(gs.Node("Reshape", scope.unique(f"{result.name}/Reshape"), {}, [made, wanted], [result]), node)


def disputed(graph: gs.Graph) -> frozenset[str]:
  """The names of these values among those that the graph's nodes make, which are in order."""
  found: set[str] = set()
  for node in graph.nodes:
    if not node.outputs:
      continue  # a pass has removed it, and is still at work
    follows = found and any(tensor.name in found for tensor in node.inputs)
    if follows or (is_hidden(node) and _contradicts(node, graph.opset)) or _keeps_a_name(node):
      found.update(tensor.name for tensor in node.outputs if tensor.name)
  return frozenset(found)


def disputed_now(scope: Scope) -> frozenset[str]:
  """`disputed` of the scope's graph as it is between edits; found once after each."""
  if scope.disputed is None:
    scope.disputed = disputed(scope.graph)
  return scope.disputed


def is_disputed(scope: Scope, tensor: gs.Tensor) -> bool:
  """Whether the tensor is such a value of the graph as it was when this was first asked of the scope."""
  if scope not in _KNOWN:
    _KNOWN[scope] = disputed(scope.graph)
  return tensor.name in _KNOWN[scope]


def _keeps_a_name(node: gs.Node) -> bool:
  """Whether it is a Slice whose result is said to have an open length of its input along an axis that it cuts.

  So onnx infers before opset 11, and models carry it further.
  """
  if node.op != "Slice" or (node.domain or "") not in DEFAULT_DOMAINS or len(node.inputs) < 3:
    return False
  before, after = node.inputs[0].shape, node.outputs[0].shape
  if before is None or after is None or len(before) != len(after):
    return False
  if not any(isinstance(dim, str) and dim == kept for dim, kept in zip(before, after, strict=True)):
    return False  # before constants are read
  starts, ends, axes, steps = (_integers(node, at) for at in (1, 2, 3, 4))
  axes = list(range(len(before))) if axes is None else axes
  unknown = [None] * len(axes)
  slices = zip(axes, starts or unknown, ends or unknown, steps or [1] * len(axes), strict=False)
  cut = (axis for axis, start, end, step in slices if (start, step) != (0, 1) or end is None or end < INT32_MAX)
  rank = len(before)
  return any(isinstance(before[axis], str) and before[axis] == after[axis] for axis in cut if -rank <= axis < rank)


def _integers(node: gs.Node, at: int) -> list[int] | None:
  values = known_values(node.inputs[at], CONSTANT_ELEMENTS) if at < len(node.inputs) else None
  return None if values is None else [int(each) for each in values.reshape(-1)]


def _contradicts(node: gs.Node, opset: int) -> bool:
  """Whether onnx infers another length than ONNX Runtime computes."""
  shape = told(node)[0].shape
  one = onnx.GraphProto(name="one", node=[node_proto(node)])
  one.output.append(onnx.ValueInfoProto(name=node.outputs[0].name))
  for tensor in node.inputs:
    values = value_of(tensor, CONSTANT_ELEMENTS) if isinstance(tensor, gs.Constant) else None
    if values is not None:
      one.initializer.append(numpy_helper.from_array(values, tensor.name))
    elif not tensor.is_empty():
      one.input.append(value_info(gs.Variable(tensor.name, tensor.dtype, tensor.shape)))
  model = helper.make_model(one, opset_imports=[helper.make_opsetid("", opset)])
  try:
    kind = onnx.shape_inference.infer_shapes(model).graph.output[0].type.tensor_type
  except Exception:  # onnx raises several classes here; ONNX Runtime takes that for unknown
    return False
  if shape is None or not kind.HasField("shape"):
    return False
  lengths = (each.dim_value if each.HasField("dim_value") else None for each in kind.shape.dim)
  return any(isinstance(a, int) and b is not None and a != b for a, b in zip(shape, lengths, strict=False))
