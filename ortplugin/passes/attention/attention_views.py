"""Attention whose Q, K, V or Y lie columns first reads and writes what lies by rows, through Transposes beside it.

    k = Transpose(x)  # "b (h d) s" of "b s (h d)"        becomes      FusedAttention reads x, "b s (h d)"

Projections by 1x1 convolutions leave such Transposes once their layout is NHWC. The kernels for tensor cores need the
elements of a head one after the other in memory.
"""

import onnx_graphsurgeon as gs

from ...graph import Scope, dims, label
from ...ops.attention import layout as layouts
from ..driver import Applied, Outcome, RulePass
from .axes import Atom, length
from .layouts import Layout, layout_of, restored_shape
from .node import is_attention, replaced, reshaped
from .operands import OPERANDS, indexed, layout_at, remove_unused, sizes_of
from .views import FAR, Read, forward, reads


def rewrite(scope: Scope, node: gs.Node) -> Outcome:
  """Joins one attention with the Transposes around it."""
  if not is_attention(scope, node):
    return None
  old = {id(each): each for index in range(len(OPERANDS)) for each in _read(scope, node, index)}
  labels = [label(node), *map(label, old.values())]
  remove_unused(scope, old.values())
  new, after = _written(scope, node)
  return Applied((*labels, *map(label, after)), new) if old or after else None


def _ends_with_columns(layout: layouts.Layout) -> bool:
  return layout.axes[-1][-1].name == "d"


def _read(scope: Scope, node: gs.Node, index: int) -> list[gs.Node]:
  """Lets Q, K or V be read by rows; the views left out, none where it is or can't be."""
  x, layout, heads = node.inputs[index], layout_at(node, index), int(node.attrs[OPERANDS[index][1]])
  given = dims(scope, x)
  sizes = None if given is None else sizes_of(layout, given, heads)
  if sizes is None or _ends_with_columns(layout):
    return []
  atoms, axes = indexed(layout, sizes, heads)
  views = reads(scope, x, axes, False)
  for read in reversed(views[1:]):
    names = {letter: atom.leaves() for letter, atom in atoms.items()}
    found = None if read.repeated else _by_rows(read, names)
    if found is not None and scope.dtype(read.tensor) == scope.dtype(x):
      node.inputs[index] = reshaped(scope, node, read.tensor, found)
      node.attrs[OPERANDS[index][0]] = found.text
      made = (scope.producer(each.tensor) for each in views[: read.depth])
      return [each for each in made if each is not None]
  return []


def _by_rows(read: Read, names: dict[str, list[Atom]], output: bool = False) -> Layout | None:
  """How the tensor lies, if by rows and if a layout says it."""
  found = layout_of(read.axes, [length(axis) for axis in read.axes], names, output)
  return found if found is not None and _ends_with_columns(layouts.parse(found.text, is_output=output)) else None


def _written(scope: Scope, node: gs.Node) -> tuple[gs.Node, list[gs.Node]]:
  """The node that writes Y by rows, and the views left out; the same and none where it does or can't."""
  layout = layouts.parse(str(node.attrs.get("y_layout", layouts.STANDARD)), is_output=True)
  heads, y = int(node.attrs["heads"]), node.outputs[0]
  given, joined = dims(scope, y), any(sum(atom.name in "bsd" for atom in axis) > 1 for axis in layout.axes)
  sizes = None if given is None or joined else sizes_of(layout, given, heads)
  if sizes is None or len(node.outputs) > 1:
    return node, []
  atoms, axes = indexed(layout, sizes, heads)
  views = [Read(y, axes)]
  while len(views) < FAR and (view := forward(scope, views[-1])) is not None:
    views.append(view)
  for read in reversed(views[1:]):
    found = _by_rows(read, {letter: atom.leaves() for letter, atom in atoms.items()}, output=True)
    shape = None if found is None or found.shape is None else restored_shape([length(axis) for axis in read.axes])
    if found is None or scope.dtype(read.tensor) != scope.dtype(y) or (found.shape is not None and shape is None):
      continue
    made = [scope.producer(each.tensor) for each in views[1 : read.depth + 1]]
    if _ends_with_columns(layout) and not any(each is not None and scope.op(each) == "Transpose" for each in made):
      break  # a view alone moves nothing
    new = gs.Node(node.op, node.name, {**node.attrs, "y_layout": found.text}, list(node.inputs), [], node.domain)
    after = [each for each in made if each is not None]
    replaced(scope, [node, *after], new, read.tensor, shape, read.tensor.dtype)
    return new, after
  return node, []


ATTENTION_VIEWS = RulePass(
  "attention-views", "a FusedAttention behind or before Transposes reads and writes what lies by rows", rewrite
)
