"""Masks as FusedAttention takes them: causal and window where they are constant, one operand for all that is left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ortplugin.graph.facts import Scope
from ortplugin.graph.lengths import ONE, Length, dims, product
from ortplugin.passes.attention.axes import Atom, flat
from ortplugin.passes.attention.mask_values import (
  ABSORBING,
  ELEMENTS,
  LOWEST,
  Array,
  causal_window,
  mask_values,
  selection,
  without_repeats,
)
from ortplugin.passes.attention.scores import LARGE_NEGATIVE, Mask

Names = Mapping[str, Sequence[Atom]]  # b, h, s, t


@dataclass(frozen=True)
class Part:
  """A mask of rank 4: a constant, or a tensor and how it gets there."""

  mask: Mask
  values: Array | None = None
  expanded: tuple[int, ...] | None = None
  shape: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Masking:
  """What masks do."""

  causal: str = "none"
  window: int = 0
  parts: tuple[Part, ...] = ()
  """What the attributes don't say: their sum."""


def plan_masks(scope: Scope, masks: Sequence[Mask], names: Names) -> Masking | str:
  """The masks without any edit, or why they are none that FusedAttention takes.

  A conjunction of a constant and another mask, such as a triangle and a padding, is two masks if that leaves one
  operand: all that is false is -inf.
  """
  # Of two numbers that are filled in one after the other the later stays; a sum of masks has both of them.
  filled = [mask for mask in masks if mask.filling is not None]
  finite = next((mask for mask in filled if mask.filling != -np.inf), None)
  if len(filled) > 1 and finite is not None:
    return f"'{finite.tensor.name}' fills in {finite.filling}, and another mask fills in as well"
  reason = _lost_number(scope, masks)
  if reason:
    return reason
  read = [_selecting(scope, mask) for mask in masks]
  divided = [part for mask in read for part in _conjuncts(scope, mask)]
  if len(divided) > len(read):
    masking = _planned(scope, divided, names)
    if isinstance(masking, Masking) and len(masking.parts) <= len(read):
      return masking
  return _planned(scope, read, names)


def _lost_number(scope: Scope, masks: Sequence[Mask]) -> str:
  """Why LOWEST would decide otherwise than a finite number that is filled in and may mask a row whole; or ''.

  A constant bias behind it, Where(m, s, -1e4) + b, decides the weights of that row. A mask before it, Where(m, s +
  mask, -1e4), does so no more. What is no constant is taken for another mask behind it, as GPT-2's of padding is,
  and for a bias before it, as that of positions is, unless a Where makes it. `masks`: from the Softmax back.
  """
  for place, mask in enumerate(masks):
    values = mask_values(scope, mask)
    if mask.filling in (None, -np.inf) or (values is not None and selection(values) is not None):
      continue
    behind = next((each for each in masks[:place] if _is_bias(scope, each)), None)
    if behind is not None and mask.filling > LOWEST / 100:
      return f"'{behind.tensor.name}' is a bias of scores that a finite number has taken the place of"
    before = next((each for each in masks[place + 1 :] if _hides(scope, each)), None)
    if before is not None:
      return f"a finite number takes the place of scores that '{before.tensor.name}' masks"
  return ""


def _is_bias(scope: Scope, mask: Mask) -> bool:
  """Whether a constant that is added is more than a mask."""
  values = mask_values(scope, mask)
  return mask.filling is None and values is not None and not ((values == 0) | (values <= LARGE_NEGATIVE)).all()


def _hides(scope: Scope, mask: Mask) -> bool:
  """Whether a mask is known to put large negative numbers on scores."""
  values, node = mask_values(scope, mask), scope.producer(mask.tensor)
  if values is not None:
    return bool((values <= LARGE_NEGATIVE).any())
  numbers = [] if node is None or scope.op(node) != "Where" else [scope.scalar(each) for each in node.inputs[1:]]
  return mask.filling is not None or any(each is not None and each <= LARGE_NEGATIVE for each in numbers)


def _planned(scope: Scope, masks: Sequence[Mask], names: Names) -> Masking | str:
  parts: list[Part] = []
  for mask in masks:
    part = _part(scope, mask, names)
    if isinstance(part, str):
      return part
    parts.append(part)
  constant = [part for part in parts if part.values is not None]
  rest = [part for part in parts if part.values is None]
  if not constant:
    return Masking(parts=tuple(rest))
  total = constant[0].values
  for part in constant[1:]:
    total = total + part.values  # type: ignore[operator]
  assert total is not None
  total = without_repeats(total)
  selected = selection(total)
  if selected is None:
    return Masking(parts=(Part(constant[0].mask, total), *rest))
  if selected.all():
    return Masking(parts=tuple(rest))
  triangle = causal_window(selected)
  if triangle is not None:
    return Masking(*triangle, tuple(rest))
  return Masking(parts=(Part(constant[0].mask, selected), *rest))


def _selecting(scope: Scope, mask: Mask) -> Mask:
  """What is added as Where(bools, 0, number), if the number hides the score that it is added to, as these bools."""
  node = scope.producer(mask.tensor)
  if mask.filling is not None or node is None or scope.op(node) != "Where":
    return mask
  condition = scope.constant(node.inputs[0], ELEMENTS)
  if condition is not None and (condition.all() or not condition.any()):
    return _selecting(scope, Mask(node.inputs[1 if condition.all() else 2], mask.axes))
  hides = {"float16": ABSORBING}.get(scope.dtype(mask.tensor) or "", LOWEST / 100)
  for index, kept in ((2, True), (1, False)):
    filling = scope.scalar(node.inputs[index])
    if filling is not None and filling <= hides and scope.scalar(node.inputs[3 - index]) == 0:
      return Mask(node.inputs[0], mask.axes, filling, kept)
  return mask


def _conjuncts(scope: Scope, mask: Mask) -> list[Mask]:
  """The bools of an And with a constant, each on its own, where false is -inf."""
  node = scope.producer(mask.tensor)
  if mask.filling != -np.inf or not mask.kept or node is None or scope.op(node) != "And":
    return [mask]
  if not any(scope.is_constant(each) for each in node.inputs):
    return [mask]
  return [Mask(each, mask.axes, mask.filling, True) for each in node.inputs]


def _part(scope: Scope, mask: Mask, names: Names) -> Part | str:
  """The mask brought to rank 4."""
  given = dims(scope, mask.tensor)
  order = [id(leaf) for name in "bhst" for leaf in names[name] if leaf.size != ONE]
  terms = flat(mask.axes)
  if given is None or terms is None or len(given) > len(mask.axes):
    return f"the rank of the mask '{mask.tensor.name}' is unknown"
  if [id(term.atom) for term in terms if term.size != ONE] != order:
    return f"the axes of the scores to which '{mask.tensor.name}' is added are not batch, heads, rows and columns"
  aligned: list[Length] = [*[ONE] * (len(mask.axes) - len(given)), *given]
  present = {
    id(term.atom) for axis, dim in zip(mask.axes, aligned, strict=True) if dim != ONE for term in flat((axis,)) or ()
  }
  sizes, final, mixed = [], [], False
  for name in "bhst":
    leaves = [leaf for leaf in names[name] if leaf.size != ONE]
    own = [leaf for leaf in leaves if id(leaf) in present]
    mixed |= bool(own) and len(own) != len(leaves)
    final.append(_product(leaves) if own else 1)
  for axis, dim in zip(mask.axes, aligned, strict=True):
    leaves = [term.atom for term in axis if term.atom is not None]
    repeats = mixed and dim == ONE and any(_shares(names, leaf, present) for leaf in leaves)
    sizes.append(_product(leaves) if repeats else -1 if dim.known is None else dim.known)
  whole = [[id(term.atom) for term in flat((axis,)) or () if term.size != ONE] for axis in mask.axes]
  plain = len(mask.axes) == 4 and whole == [[id(x) for x in names[n] if x.size != ONE] for n in "bhst"]
  values = mask_values(scope, mask)
  if values is not None:
    values = values.reshape([1] * (len(mask.axes) - values.ndim) + list(values.shape))
    if mixed:
      if any(size < 0 for size in sizes) or np.prod(sizes, dtype=object) > ELEMENTS:
        return f"'{mask.tensor.name}' is repeated for each window, and is too large for that: {sizes}"
      values = np.broadcast_to(values, sizes)
    return Part(mask, values.reshape(final) if final.count(-1) <= 1 else values)
  if plain or (len(given) <= 2 and not mixed and len(mask.axes) - 2 >= 1 and _trailing(whole, names)):
    return Part(mask)
  if final.count(-1) > 1 or (mixed and any(size < 0 for size in sizes)):
    return f"the lengths of the mask '{mask.tensor.name}', which is viewed otherwise than the scores, are unknown"
  if 0 in final:  # which copies a length that is something else, to a Reshape
    return f"the mask '{mask.tensor.name}' has no elements"
  return Part(mask, None, tuple(sizes) if mixed else None, tuple(final))


def _trailing(whole: list[list[int]], names: Names) -> bool:
  return whole[-2:] == [[id(leaf) for leaf in names[name] if leaf.size != ONE] for name in "st"]


def _shares(names: Names, leaf: Atom, present: set[int]) -> bool:
  """Whether a part of the same batch or head is among those that index the mask."""
  return any(leaf in atoms and any(id(each) in present for each in atoms) for atoms in names.values())


def _product(leaves: Sequence[Atom]) -> int:
  known = product([leaf.size for leaf in leaves]).known
  return -1 if known is None else known
