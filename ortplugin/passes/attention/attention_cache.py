"""A cache of keys and values becomes part of the attention that reads it:

    present_key = Concat(past_key, K)      present_value = Concat(past_value, V)
    y = FusedAttention(Q, present_key, present_value)

    becomes     y, present_key, present_value = FusedAttention(Q, K, V, past_key, past_value)

The Concats are along the sequence, and the new rows are those of the queries. K and V are then read from the tensors of
which they are views, as in fuse_attention.py.

Or the cache has all of its rows from the start, as Hugging Face's StaticCache, and UpdateSlice(past_key, K, position),
or ONNX's TensorScatter with a position for each text, is in the place of each Concat; then `position` is the last
input, and `cache` is "write". A mask that lets the one new row of a step see what stands up to its position is causal
"lower_right".
"""

import numpy as np
import onnx_graphsurgeon as gs

from ...graph import DOMAIN, ONE, Scope, dims, label, labelled, optional_input, show
from ...ops.attention import layout as layouts
from ..driver import Applied, Missed, Outcome, RulePass
from ..emit import integers
from .mask_operand import stripped
from .mask_values import ELEMENTS
from .node import is_attention, number_of_past
from .operands import layout_at, read_farther, remove_unused, sizes_of
from .scores import LARGE_NEGATIVE

_JOINS = ("Concat", "TensorScatter", f"{DOMAIN}::UpdateSlice")
# Of each: whether the key stays where it is true, and which operand the keys' numbers are.
_COMPARISONS = {"LessOrEqual": (True, 0), "GreaterOrEqual": (True, 1), "Greater": (False, 0), "Less": (False, 1)}


def draw_in(scope: Scope, node: gs.Node) -> Outcome:
  """Lets one attention read and write its cache."""
  if not is_attention(scope, node) or number_of_past(node) or "rotary" in node.attrs:
    return None
  key, value = (scope.producer(tensor, *_JOINS) for tensor in node.inputs[1:3])
  if key is None and value is None:
    return None
  if key is None or value is None or key is value:
    other = node.inputs[2 if value is None else 1]
    return Missed(node, f"'{other.name}' is no cache of its own, unlike the other one of K and V")
  if reason := _why_not(scope, node, key, value):
    return Missed(node, reason)
  layout, attributes = layout_at(node, 1), dict(node.attrs)
  if str(layout) != layouts.STANDARD:
    attributes["past_layout"] = str(layout)
  inputs = [node.inputs[0], key.inputs[1], value.inputs[1], *node.inputs[3:], key.inputs[0], value.inputs[0]]
  if key.op != "Concat":
    attributes["cache"] = "write"
    start = optional_input(key, 2)
    inputs.append(integers(scope, [0], "position") if start is None else start)
    if start is not None and _masks_what_follows(scope, node, key):
      del inputs[3], attributes["mask_dtype"]
      attributes["causal"] = "lower_right"
  new = gs.Node("FusedAttention", node.name, attributes, inputs, [], node.domain)
  labels: tuple[str, ...] = labelled(key, value)
  scope.replace([key, value, node], new, [*node.outputs, key.outputs[0], value.outputs[0]])
  views: dict[int, gs.Node] = {}
  for index in (1, 2):
    given = dims(scope, new.inputs[index])
    sizes = None if given is None else sizes_of(layout, given, int(new.attrs["kv_heads"]))
    if sizes is not None:
      views |= {id(each): each for each in read_farther(scope, new, index, new.inputs[index], sizes)}
  labels = (*labels, *(label(each) for each in views.values()))
  remove_unused(scope, views.values())
  return Applied(labels, new)


def _why_not(scope: Scope, node: gs.Node, key: gs.Node, value: gs.Node) -> str | None:
  """Why K and V are no past rows and new ones; None if they are."""
  layout = layout_at(node, 1)
  if layout_at(node, 2) != layout:
    return f"the caches of K and V lie in different ways, '{layout}' and '{layout_at(node, 2)}'"
  try:
    layouts.parse(str(layout), is_output=True)
  except ValueError as error:
    return f"the cache lies as '{layout}': {error}"
  along = [number for number, axis in enumerate(layout.axes) if [atom.name for atom in axis] == ["s"]]
  given = dims(scope, node.inputs[0])
  rows = None if given is None else sizes_of(layout_at(node, 0), given, int(node.attrs["heads"]))
  starts = [each for each in (optional_input(key, 2), optional_input(value, 2)) if each is not None]
  alike = key.op == value.op and (key.op == "Concat" or len(starts) != 1)
  if not alike or (key.op != "Concat" and starts and not scope.same_value(*starts)):
    return f"K and V are not written to their caches alike: {label(key)} and {label(value)}"
  for concat in (key, value):
    if not _is_along(scope, concat, along, layout):
      return f"{label(concat)} is none of two tensors along the sequence of '{layout}'"
    added = dims(scope, concat.inputs[1])
    if rows is None or added is None or added[along[0]] != rows["s"]:
      shapes = f"{show(scope.shape(concat.inputs[1]))} and {show(scope.shape(node.inputs[0]))}"
      return f"'{concat.inputs[1].name}' is not known to have a row for each query: {shapes}"
    for tensor in (node.inputs[0], *node.inputs[3:], *key.inputs, *value.inputs):
      if scope.depends_on(tensor, concat):
        return f"'{tensor.name}' is made of what {label(concat)} joins"
  past = [dims(scope, concat.inputs[0]) for concat in (key, value)]
  if past[0] is None or past[1] is None or past[0][along[0]] != past[1][along[0]]:
    shapes = " and ".join(show(scope.shape(concat.inputs[0])) for concat in (key, value))
    return f"the caches are not known to have as many rows: {shapes}"
  return None


def _is_along(scope: Scope, join: gs.Node, along: list[int], layout: layouts.Layout) -> bool:
  """Whether it joins two tensors along this axis, or writes rows of it that have all of the others."""
  rank = len(layout.axes)
  if join.op == "Concat":
    return [int(join.attrs.get("axis", 0)) % rank] == along and len(join.inputs) == 2
  cache, added = (dims(scope, tensor) for tensor in join.inputs[:2])
  whole = cache is not None and added is not None and len(added) == rank
  whole = whole and all(
    a == b for axis, (a, b) in enumerate(zip(cache or (), added or (), strict=True)) if [axis] != along
  )
  if join.op == "UpdateSlice":
    return whole and list(join.attrs["axes"]) == along and list(join.attrs.get("steps", [1])) == [1]
  start = optional_input(join, 2)
  fits = start is None or scope.shape(start) == (1,) or [atom.name for atom in layout.axes[0]] == ["b"]
  axis = int(join.attrs.get("axis", -2)) % rank
  return whole and fits and [axis] == along and join.attrs.get("mode", "linear") == "linear"


def _masks_what_follows(scope: Scope, node: gs.Node, write: gs.Node) -> bool:
  """Whether the mask of the one query is: the number of the key is at most the position at which it is written."""
  if "mask_dtype" not in node.attrs or "causal" in node.attrs or scope.shape(write.inputs[2]) not in ((), (1,)):
    return False
  given = dims(scope, node.inputs[0])
  rows = None if given is None else sizes_of(layout_at(node, 0), given, int(node.attrs["heads"]))
  if rows is None or rows["s"] != ONE:
    return False
  mask, kept = node.inputs[3], True
  if node.attrs["mask_dtype"] != "bool":
    where = scope.producer(mask, "Where")
    added = [] if where is None else [scope.scalar(each) for each in where.inputs[1:]]
    if where is None or 0 not in added or not any(each is not None and each <= LARGE_NEGATIVE for each in added):
      return False
    mask, kept = where.inputs[0], added[0] == 0
  mask, kept = stripped(scope, mask, kept)
  compared = scope.producer(mask, *_COMPARISONS)
  if compared is None:
    return False
  is_kept, keys = _COMPARISONS[scope.op(compared)]
  numbers = scope.constant(compared.inputs[keys], ELEMENTS)
  if kept != is_kept or numbers is None or not numbers.ndim or numbers.size != numbers.shape[-1]:
    return False
  position = compared.inputs[1 - keys]
  while not scope.same_value(position, write.inputs[2]):
    view = scope.producer(position, "Unsqueeze", "Squeeze", "Reshape", "Identity")
    if view is None:
      return False
    position = view.inputs[0]
  cache = scope.shape(write.inputs[0])
  along = next(iter(write.attrs["axes"])) if write.op == "UpdateSlice" else int(write.attrs.get("axis", -2))
  return cache is not None and cache[along] == numbers.size and bool((numbers.ravel() == np.arange(numbers.size)).all())


ATTENTION_CACHE = RulePass("attention-cache", "a cache of keys and values becomes part of FusedAttention", draw_in)
