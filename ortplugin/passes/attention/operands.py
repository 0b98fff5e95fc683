"""What a FusedAttention node reads, as terms of its layouts again, so that it may read what that is a view of."""

from collections.abc import Iterable

import onnx_graphsurgeon as gs

from ...graph import Length, Scope
from ...ops.attention import layout as layouts
from .axes import Atom, Axes, Axis, Term, length, whole
from .layouts import layout_of
from .node import number_of_past
from .views import reads

OPERANDS = (("q_layout", "heads"), ("k_layout", "kv_heads"), ("v_layout", "kv_heads"))  # of Q, K and V
Sizes = dict[str, Length]


def layout_at(node: gs.Node, index: int) -> layouts.Layout:
  """How Q, K or V lies."""
  return layouts.parse(str(node.attrs.get(OPERANDS[index][0], layouts.STANDARD)))


def sizes_of(layout: layouts.Layout, given: list[Length], heads: int) -> Sizes | None:
  """The sizes of b, h, s and d of a tensor of these lengths, if they are known."""
  found = {"h": Length(heads)}
  for axis, of_axis in zip(layout.axes, given, strict=True):
    rest: Length | None = of_axis
    for atom in axis:
      rest = None if rest is None else rest.over(Length(atom.length(heads) or 1))
    name = next((atom.name for atom in axis if atom.name in "bsd"), None)
    if rest is None:
      return None
    if name is not None:
      found[name] = rest
  return found


def indexed(layout: layouts.Layout, sizes: Sizes, heads: int) -> tuple[dict[str, Atom], Axes]:
  """Atoms of these sizes, and the axes of a tensor that lies so, in which there may be other heads beside these."""
  atoms = {letter: Atom(size) for letter, size in sizes.items()}
  axes: list[Axis] = []
  for axis in layout.axes:
    terms = []
    for each in axis:
      total = Length(each.total or heads)
      if each.name == "/":
        terms.append(Term(None, each.first, total))
      else:
        terms.append(Term(atoms["h"], each.first, total) if each.name == "h" else whole(atoms[each.name]))
    axes.append(tuple(terms))
  return atoms, tuple(axes)


def read_farther(scope: Scope, node: gs.Node, index: int, x: gs.Tensor, sizes: Sizes) -> list[gs.Node]:
  """Lets the node read x, which lies as it says, or the farthest tensor that x is a view of; the views left out.

  A factor on the way belongs to the scale, but for V and for the new rows of a cache, which are results too.
  """
  name, heads = OPERANDS[index]
  atoms, axes = indexed(layout_at(node, index), sizes, int(node.attrs[heads]))
  node.inputs[index] = x
  views = reads(scope, x, axes, index == 0 or (index == 1 and not number_of_past(node)))
  for read in reversed(views[1:]):
    names = {letter: atom.leaves() for letter, atom in atoms.items()}
    found = None if read.repeated else layout_of(read.axes, [length(axis) for axis in read.axes], names)
    if found is not None and found.shape is None and scope.dtype(read.tensor) == node.attrs["qkv_dtype"]:
      node.inputs[index] = read.tensor
      node.attrs[name] = found.text
      node.attrs["scale"] = float(node.attrs.get("scale", 1.0)) * read.factor
      made = (scope.producer(each.tensor) for each in views[: read.depth])
      return [each for each in made if each is not None]
  return []


def remove_unused(scope: Scope, nodes: Iterable[gs.Node]) -> None:
  """Takes those out that nothing reads any more."""
  for each in sorted(nodes, key=lambda node: -scope.position[id(node)]):
    if not any(scope.used_beyond(tensor, []) for tensor in each.outputs):
      scope.remove(each)
