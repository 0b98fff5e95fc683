"""Convolutions and their gradients in NumPy, in float64.

A convolution ties a small tensor s [N, A, o..] to a large one l [N, B, i..] through weights w [A, B/group, k..]:

    forward        s[n,a,o] = sum over b, k of l[n,b,o*stride+k*dilation-pad] w[a,b,k]
    data_gradient  l[n,b,i] = sum over a, o, k with o*stride+k*dilation-pad = i of s[n,a,o] w[a,b,k]
    weight         w[a,b,k] = sum over n, o of s[n,a,o] l[n,b,o*stride+k*dilation-pad]

Conv is the first, ConvTranspose the second, and each is the gradient of the other's input; both have the third as the
gradient of their weights.

All tensors here are channels first; elements of l beyond its edges are 0.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import numpy as np

from ...arrays import Array

Index = tuple[Any, ...]


@dataclass(frozen=True)
class Window:
  """How kernel positions meet the large tensor: one number for each spatial axis."""

  strides: Sequence[int]
  dilations: Sequence[int]
  pad_begin: Sequence[int]  # the padding before
  group: int

  def views(
    self, large: Sequence[int], small: Sequence[int], kernel: Sequence[int]
  ) -> Iterator[tuple[Index, Index, Index]]:
    """For each kernel position: which elements of [.., k..] it is, of [.., o..] it ties to which of [.., i..]."""
    for at in product(*(range(size) for size in kernel)):
      ours, theirs = [], []
      for axis, k in enumerate(at):
        stride, offset = self.strides[axis], k * self.dilations[axis] - self.pad_begin[axis]
        first = max(0, -(offset // stride))  # the first o with o * stride + offset >= 0
        last = min(small[axis], (large[axis] - 1 - offset) // stride + 1)
        if last <= first:
          break
        start = first * stride + offset
        ours.append(slice(first, last))
        theirs.append(slice(start, start + (last - first - 1) * stride + 1, stride))
      else:
        yield (..., *at), (..., *ours), (..., *theirs)


def _grouped(array: Array, group: int) -> Array:
  """[N, C, ..] as [N, group, C / group, ..]."""
  return array.reshape((array.shape[0], group, array.shape[1] // group, *array.shape[2:]))


def forward(large: Array, weight: Array, small: Sequence[int], window: Window) -> Array:
  """s from l and w; `small` is its spatial shape."""
  grouped = _grouped(np.asarray(large, np.float64), window.group)
  kernels = np.asarray(weight, np.float64).reshape((window.group, -1, *weight.shape[1:]))
  result = np.zeros((grouped.shape[0], window.group, kernels.shape[1], *small))
  for at, ours, theirs in window.views(large.shape[2:], small, weight.shape[2:]):
    result[ours] += np.einsum("ngb...,gab->nga...", grouped[theirs], kernels[at])
  return result.reshape((result.shape[0], weight.shape[0], *small))


def data_gradient(small: Array, weight: Array, large: Sequence[int], window: Window) -> Array:
  """l from s and w; `large` is its spatial shape."""
  grouped = _grouped(np.asarray(small, np.float64), window.group)
  kernels = np.asarray(weight, np.float64).reshape((window.group, -1, *weight.shape[1:]))
  result = np.zeros((grouped.shape[0], window.group, kernels.shape[2], *large))
  for at, ours, theirs in window.views(large, small.shape[2:], weight.shape[2:]):
    result[theirs] += np.einsum("nga...,gab->ngb...", grouped[ours], kernels[at])
  return result.reshape((result.shape[0], window.group * kernels.shape[2], *large))


def weight(small: Array, large: Array, kernel: Sequence[int], window: Window) -> Array:
  """w from s and l; `kernel` is its spatial shape."""
  ours_all = _grouped(np.asarray(small, np.float64), window.group)
  theirs_all = _grouped(np.asarray(large, np.float64), window.group)
  result = np.zeros((window.group, ours_all.shape[2], theirs_all.shape[2], *kernel))
  for at, ours, theirs in window.views(large.shape[2:], small.shape[2:], kernel):
    a, b = ours_all[ours], theirs_all[theirs]
    a, b = (each.reshape((*each.shape[:3], prod(each.shape[3:]))) for each in (a, b))
    result[at] = np.einsum("ngao,ngbo->gab", a, b, optimize=True)
  return result.reshape((-1, *result.shape[2:]))
