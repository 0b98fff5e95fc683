"""FusedLSTM in NumPy.

i, o, f, g = G[t] + R h[t-1]; c[t] = sigmoid(f) c[t-1] + sigmoid(i) tanh(g); h[t] = sigmoid(o) tanh(c[t])
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def recurrence(inputs: Sequence[Array], hidden: int, reverse: Sequence[bool], axis: int) -> list[Array]:
  """Y, Y_h and Y_c in float64, of G, R and maybe h0 and c0.

  `reverse`: whether each direction goes backwards; `axis`: that of the steps in G and Y.
  """
  g, r, *states = [each.astype(np.float64) for each in inputs]
  g = np.moveaxis(g, axis, 0)
  steps, *lengths = g.shape[:-1]
  batch = math.prod(lengths)
  gates = g.reshape(steps, batch, len(reverse), hidden, 4)
  h, c = np.array(states or np.zeros((2, len(reverse), batch, hidden)))
  y = np.zeros((steps, batch, len(reverse), hidden))
  for d, is_reverse in enumerate(reverse):
    weights = r[d].reshape(4, hidden, hidden)
    for t in reversed(range(steps)) if is_reverse else range(steps):
      i, o, f, new = np.moveaxis(gates[t, :, d], -1, 0) + np.einsum("gjk,bk->gbj", weights, h[d])
      c[d] = sigmoid(f) * c[d] + sigmoid(i) * np.tanh(new)
      h[d] = y[t, :, d] = sigmoid(o) * np.tanh(c[d])
  return [np.moveaxis(y.reshape(steps, *lengths, len(reverse) * hidden), 0, axis), h, c]


def sigmoid(x: Array) -> Array:
  """1 / (1 + exp(-x)), without overflow."""
  return (1 + np.tanh(x / 2)) / 2
