"""FusedAttention in NumPy, in float64."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .layout import Layout

Array = npt.NDArray[Any]


def view(x: Array, layout: Layout, heads: int) -> Array:
  """The tensor as [b, h, s, d], of `heads` heads."""
  lengths = []
  for axis, size in zip(layout.axes, x.shape, strict=True):
    known = math.prod(atom.length(heads) or 1 for atom in axis)
    lengths += [atom.length(heads) if atom.name in "h/" else size // known for atom in axis]
  taken = x.reshape([int(length or 0) for length in lengths])
  index: list[int | slice] = [
    atom.first if atom.name == "/" else slice(atom.first, atom.first + heads) if atom.name == "h" else slice(None)
    for atom in layout.atoms
  ]
  return np.asarray(taken[tuple(index)].transpose([layout.order.index(name) for name in "bhsd"]))


def laid_out(y: Array, layout: Layout) -> Array:
  """What `view` gives back: [b, h, s, d] as the layout says."""
  sizes = dict(zip("bhsd", y.shape, strict=True))
  shape = [math.prod(sizes[atom.name] for atom in axis) for axis in layout.axes]
  return np.ascontiguousarray(y.transpose(["bhsd".index(name) for name in layout.order])).reshape(shape)


def first_of(start: Array, rows: int) -> Array:
  """Of positions that may count from the end, those from the front."""
  return np.where(start < 0, start + rows, start)


def written(cache: Array, start: Array, x: Array) -> Array:
  """The cache [b, h, t, d] with x [b, h, s, d] in the place of its rows from `start` on, one or one for each b."""
  y: Array = cache.copy()
  for batch, first in enumerate(np.broadcast_to(first_of(start, cache.shape[2]).reshape(-1), (len(y),))):
    y[batch, :, first : first + x.shape[2]] = x[batch]
  return y


@dataclass(frozen=True)
class Scores:
  """What becomes of the products of Q and K."""

  scale: float
  softcap: float
  causal: str
  window: int
  zero: bool  # rows of which every score is -inf are 0
  position: Array | None = None  # from which row on a cache is written: one, or one for each batch


def seen(queries: int, keys: int, how: Scores) -> Array:
  """[queries, keys], or with positions [b or 1, 1, queries, keys]: whether query i sees key j."""
  if how.causal == "none":
    return np.ones((queries, keys), np.bool_)
  behind = np.array(keys - queries) if how.position is None else how.position.reshape(-1, 1, 1, 1)
  last = np.arange(queries)[:, None] + (behind if how.causal == "lower_right" else 0)
  key = np.arange(keys)[None, :]
  return np.asarray((key <= last) & ((key > last - how.window) | (how.window == 0)))


def scores(q: Array, k: Array, mask: Array | None, how: Scores) -> Array:
  """Of q [b, h, s, d] and k [b, h, t, d], in float64."""
  with np.errstate(all="ignore"):
    s = np.einsum("bhsd,bhtd->bhst", q.astype(np.float64), k.astype(np.float64)) * how.scale
    if how.softcap > 0:
      s = how.softcap * np.tanh(s / how.softcap)
    if mask is not None:
      s = np.where(mask, s, -np.inf) if mask.dtype == np.bool_ else s + mask.astype(np.float64)
  return np.where(seen(s.shape[2], s.shape[3], how), s, -np.inf)


def softmax(s: Array, zero: bool) -> Array:
  """Over the last axis. A row of -inf alone is NaN or, with `zero`, 0."""
  with np.errstate(all="ignore"):
    e = np.exp(s - np.max(s, axis=-1, keepdims=True, initial=-np.inf))
    p = e / e.sum(axis=-1, keepdims=True)
  return np.where((s == -np.inf).all(axis=-1, keepdims=True), 0.0, p) if zero else p


def rotated(x: Array, cos: Array, sin: Array, rotary: str) -> Array:
  """x [b, h, s, d] with its first elements rotated, in x's dtype; cos, sin [s, pairs] or [b, s, pairs]."""
  pairs = cos.shape[-1]
  first, second = (
    (slice(0, pairs), slice(pairs, 2 * pairs)) if rotary == "half" else (slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2))
  )
  c, s = (each.astype(np.float64)[..., None, :, :] for each in (cos, sin))
  a, b = x[..., first].astype(np.float64), x[..., second].astype(np.float64)
  y: Array = x.copy()
  with np.errstate(all="ignore"):
    y[..., first] = (a * c - b * s).astype(x.dtype)
    y[..., second] = (b * c + a * s).astype(x.dtype)
  return y


def attention(q: Array, k: Array, v: Array, mask: Array | None, how: Scores) -> Array:
  """softmax(scores) v, in float64: of tensors [b, h, s, d], k and v with the heads that they have.

  p is not rounded before the second product. A term with p = 0 is 0 whatever V holds.
  """
  group = q.shape[1] // k.shape[1]
  keys, values = np.repeat(k, group, axis=1), np.repeat(v.astype(np.float64), group, axis=1)
  p = softmax(scores(q, keys, mask, how), how.zero)
  with np.errstate(all="ignore"):
    if np.isfinite(values).all():
      return np.asarray(np.einsum("bhst,bhte->bhse", p, values))
    terms = np.where(p[..., None] == 0, 0.0, p[..., None] * values[:, :, None])
    return np.asarray(terms.sum(axis=3))
