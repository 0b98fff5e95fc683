"""Which values of a model are arithmetic on shapes, lengths and loop counters.

ONNX Runtime computes these on the CPU, also beside a GPU: what follows a Shape or Size, and what tells another operator
a shape, a length or a condition. An operator of ours among them would bring copies between the two.
"""

import onnx_graphsurgeon as gs

from ..program import OPERATORS
from .convert import all_graphs, local_functions
from .domains import DEFAULT_DOMAINS
from .shapes import element_count

SMALL = 64  # elements; what has more is no shape

# The inputs that an operator reads as shapes, lengths, indices or conditions.
_OPERANDS: dict[str, tuple[int, ...]] = {
    "Reshape": (1,), "Expand": (1,), "Tile": (1,), "ConstantOfShape": (0,), "Slice": (1, 2, 3, 4), "Range": (0, 1, 2),
    "Squeeze": (1,), "Unsqueeze": (1,), "Split": (1,), "Pad": (1, 3), "Resize": (1, 2, 3), "Upsample": (1,),
    "TopK": (1,), "OneHot": (1,), "CenterCropPad": (1,), "Col2Im": (1, 2), "DFT": (1, 2), "Trilu": (1,),
    "CumSum": (1,), "If": (0,), "Loop": (0, 1), "ReduceSum": (1,), "ReduceMean": (1,), "ReduceMax": (1,),
    "ReduceMin": (1,), "ReduceProd": (1,), "ReduceL1": (1,), "ReduceL2": (1,), "RandomUniform": (0,),
    "NonMaxSuppression": (2, 3, 4), "SequenceAt": (1,), "SplitToSequence": (1,),
}  # fmt: skip

# Operators that make of shapes what is still part of one, beside the pointwise ones.
_CARRY = """
    Gather Slice Concat Squeeze Unsqueeze Reshape Split Identity ReduceProd ReduceSum ReduceMax ReduceMin Flatten
    Transpose ScatterElements ScatterND GatherElements GatherND Mean Sum
"""
CARRY = frozenset(_CARRY.split())


def shape_values(graph: gs.Graph) -> frozenset[int]:
  """The ids of the tensors that are arithmetic on shapes, in the graph and its bodies. `graph`: the outermost one.

  Those that come from a Shape, a Size or a loop's counter and condition, and those of at most SMALL elements, integer
  or bool, that an operator takes a shape, a length or a condition from, or that a loop's body gives out as one.
  """
  functions = local_functions(graph)
  found: set[int] = set()  # what comes from a shape
  fixed: set[int] = set()  # what comes from constants alone
  wanted: set[int] = set()  # what is asked for as one
  nodes: list[tuple[str, gs.Node]] = []
  for each in all_graphs(graph):
    for node in each.nodes:
      standard = (node.domain or "") in DEFAULT_DOMAINS and ("", node.op) not in functions
      nodes.append((str(node.op) if standard else "", node))
      if node.op == "Loop" and isinstance(node.attrs.get("body"), gs.Graph):
        found.update(id(tensor) for tensor in node.attrs["body"].inputs[:2])
        wanted.update(id(tensor) for tensor in node.attrs["body"].outputs[:1])
  for op, node in nodes:
    if op in ("Shape", "Size"):
      found.update(id(tensor) for tensor in node.outputs)
    elif _carries(op):
      given = [t for t in node.inputs if not t.is_empty() and not _is_constant(t) and id(t) not in fixed]
      data = given[:1] if op in ("Reshape", "Slice", "Gather") else given
      if all(id(tensor) in found for tensor in data):
        (found if data else fixed).update(id(tensor) for tensor in node.outputs)
  for op, node in reversed(nodes):
    operands = _OPERANDS.get(op, ())
    asked = [tensor for index, tensor in enumerate(node.inputs) if index in operands]
    if _carries(op) and any(id(tensor) in wanted for tensor in node.outputs):
      asked += node.inputs
    wanted.update(id(tensor) for tensor in asked if _is_small(tensor))
  return frozenset(found | wanted)


def _is_constant(tensor: gs.Tensor) -> bool:
  return isinstance(tensor, gs.Constant) or any(node.op == "Constant" for node in tensor.inputs)


def _carries(op: str) -> bool:
  return op in CARRY or (op in OPERATORS and not OPERATORS[op].core)


def _is_small(tensor: gs.Tensor) -> bool:
  """Whether the tensor may be a shape: integers or bools, and few of them as far as is known."""
  if tensor.dtype is None or tensor.dtype == object or tensor.dtype.kind not in "iub":
    return False
  count = element_count(None if tensor.shape is None else tuple(tensor.shape))
  return count is None or count <= SMALL
