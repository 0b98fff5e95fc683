"""Masks as FusedAttention takes them: causal and window where they are constant, one operand for all that is left."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...arrays import Array
from ...graph import ONE, Length, Scope, dims
from ...graph.lengths import product
from .axes import Atom, flat
from .mask_values import ELEMENTS, causal_window, filled_in, hiding, mask_values, selection, without_repeats
from .masked_rows import deciding
from .scores import Mask

Names = Mapping[str, Sequence[Atom]]  # b, h, s, t


@dataclass(frozen=True)
class Part:
  """A mask of rank 4: a constant, or a tensor and how it gets there."""

  mask: Mask
  values: Array | None = None
  """Of a constant: which scores stay if `mask` fills in, else what is added."""
  expanded: tuple[int, ...] | None = None
  shape: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Masking:
  """What masks do."""

  causal: str = "none"
  window: int = 0
  parts: tuple[Part, ...] = ()
  """What the attributes don't say, from the scores on: each is added, or takes the place of what is there."""


def plan_masks(scope: Scope, masks: Sequence[Mask], names: Names) -> Masking | str:
  """The masks without any edit, or why they are none that FusedAttention takes. `masks`: from the Softmax back.

  A conjunction of a constant and another mask, such as a triangle and a padding, is two masks if that leaves one
  operand: all that is false is -inf.
  """
  # Of two numbers that are filled in one after the other the later stays; a sum of masks has both of them.
  filled = [mask for mask in masks if mask.filling is not None]
  finite = next((mask for mask in filled if mask.filling != -np.inf), None)
  if len(filled) > 1 and finite is not None:
    return f"'{finite.tensor.name}' fills in {finite.filling}, and another mask fills in as well"
  reason = "" if finite is None else deciding(scope, masks, finite)
  if reason:
    return reason
  read = [_selecting(scope, mask, alone=len(masks) == 1) for mask in reversed(masks)]
  divided = [part for mask in read for part in _conjuncts(scope, mask)]
  if len(divided) > len(read):
    masking = _planned(scope, divided, names)
    if isinstance(masking, Masking) and len(masking.parts) <= len(read):
      return masking
  return _planned(scope, read, names)


def _planned(scope: Scope, masks: Sequence[Mask], names: Names) -> Masking | str:
  """`masks`: from the scores on."""
  parts: list[Part] = []
  for mask in masks:
    part = _part(scope, mask, names)
    if isinstance(part, str):
      return part
    parts.append(part)
  merged = _merged(parts)
  if not merged or merged[0].values is None:
    return Masking(parts=tuple(merged))
  first, *rest = merged
  assert first.values is not None
  total = without_repeats(first.values)
  if (selected := selection(total)) is not None and selected.all():
    return Masking(parts=tuple(rest))
  # Beside another mask a row may be masked whole by both, where a finite number is not what -inf is.
  replaces = any(part.mask.filling not in (None, -np.inf) for part in rest)
  if selected is None or replaces or (rest and np.isfinite(total[~selected]).any()):
    return Masking(parts=(replace(first, values=total), *rest))
  if (triangle := causal_window(selected)) is not None:
    return Masking(*triangle, tuple(rest))
  fills = Part(Mask(first.mask.tensor, first.mask.axes, -np.inf), selected)
  return Masking(parts=(*rest, fills))


def _merged(parts: Sequence[Part]) -> list[Part]:
  """The parts in an order that does the same and has few operands: constants come first, as one sum, if they may.

  What is added, and -inf that is filled in, may change places with each other. A finite number that is filled in is
  behind what is added before it, and before what is added to it.
  """
  finite = [index for index, part in enumerate(parts) if part.mask.filling not in (None, -np.inf)]
  at = finite[0] if finite else len(parts)
  ordered = [*_constants_first(parts[:at]), *parts[at : at + 1], *_constants_first(parts[at + 1 :])]
  merged: list[Part] = []
  for part in ordered:
    before = merged.pop() if merged else None
    if before is not None and (before.values is None or part.values is None or before.mask.filling is not None):
      merged.append(before)
      before = None
    if part.values is None or (before is None and part.mask.filling is not None and merged):
      merged.append(part)
      continue
    total: Array = np.zeros((1,) * part.values.ndim, np.float32)
    if before is not None and before.values is not None:
      total = before.values
    if part.mask.filling is None:
      total = total + part.values
    else:
      total = np.where(part.values, total, np.float32(filled_in(part.mask.filling)))
    merged.append(Part(Mask(part.mask.tensor, part.mask.axes), total))
  return merged


def _constants_first(parts: Sequence[Part]) -> list[Part]:
  """Constants, then what is added, then what is filled in."""
  return sorted(parts, key=lambda part: (part.values is None, part.mask.filling is not None))


def _selecting(scope: Scope, mask: Mask, alone: bool) -> Mask:
  """What is added as Where(bools, 0, number) as these bools, if the number hides the score that it is added to.

  A finite number does so where the mask is `alone`: another mask that is added makes a difference to it.
  """
  node = scope.producer(mask.tensor, "Where")
  if mask.filling is not None or node is None:
    return mask
  condition = scope.constant(node.inputs[0], ELEMENTS)
  if condition is not None and (condition.all() or not condition.any()):
    return _selecting(scope, Mask(node.inputs[1 if condition.all() else 2], mask.axes), alone)
  hides = hiding(scope, mask.tensor, alone)
  for index, kept in ((2, True), (1, False)):
    filling = scope.scalar(node.inputs[index])
    if filling is not None and filling <= hides and scope.scalar(node.inputs[3 - index]) == 0:
      return Mask(node.inputs[0], mask.axes, filling, kept)
  return mask


def _conjuncts(scope: Scope, mask: Mask) -> list[Mask]:
  """The bools of an And with a constant, each on its own, where false is -inf."""
  node = scope.producer(mask.tensor, "And")
  if mask.filling != -np.inf or not mask.kept or node is None:
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
  values = mask_values(scope, mask) if mask.filling is None else scope.constant(mask.tensor, ELEMENTS)
  if values is not None:
    if mask.filling is not None:
      values = values == mask.kept
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
