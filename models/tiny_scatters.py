"""Small programs that write into tensors, for export_tiny.py: assignments, index_copy and its kin, masks, caches.

What TorchScript's exporter gets wrong is left out: index_add with an index that has duplicates, a mask over some axes.
"""

import torch
from torch import nn


class Assign(nn.Module):
  """a[i] = v in its variants: a row, a slice of each row, every second row, one element, a part of a row."""

  def forward(self, x, v):
    """x: [rows, 4, 5] of at least 3 rows, v: [4, 5]."""
    a = x * 2
    a[1] = v
    a[:, 1:3] = v[1:3]
    a[0:3:2] = v * 3
    a[0, 2, 3] = 7.0
    a[2, 1:3] = v[2:]
    return a


class Index(nn.Module):
  """By an index vector: index_copy, index_fill, a[:, index] = v, a[index, other] = v and index_add."""

  def forward(self, x, v, index, repeated):
    """x: [batch, 4, 5], v: [batch, 2, 5], index: two different numbers below 3 and batch, repeated: two below 4."""
    a = (x * 2).index_copy(1, index, v).index_fill(2, index, 2.5)
    a[:, index] = v + 1
    a[index, repeated] = v[0]
    return a.index_add(1, index, v)


class Scatter(nn.Module):
  """scatter, scatter_add with duplicates, and the largest by scatter_reduce."""

  def forward(self, x, v, order, repeated):
    """x: [3, 4, 5], v: [3, 2, 5], order: numbers for a sort, [3, 4, 5], repeated: [3, 2, 5] below 4."""
    a = (x * 2).scatter(1, order.argsort(1)[:, :2], v).scatter_add(1, repeated, v)
    return a.scatter_reduce(1, repeated, v + 1, "amax")


class Masked(nn.Module):
  """x[mask] = 0, masked_fill and masked_scatter."""

  def forward(self, x, mask, v):
    """x, mask and v have one shape."""
    a = x * 2
    a[mask] = 0.5
    a = a.masked_scatter(a > 1, v)
    return a.masked_fill(mask, 3.0)


class Cache(nn.Module):
  """Keys and values of a decoder: a slice from a position on, one position, and behind the past ones."""

  def forward(self, cache, new, past, position):
    """cache: [1, 2, 8, 4], new: [1, 2, tokens, 4], past: [1, 2, length, 4], position: [1] below 6."""
    begin = past.shape[2]
    behind = torch.arange(begin, begin + new.shape[2])
    keys = (cache * 2).index_copy(2, behind, new)
    values = cache + 1
    values[:, :, position] = new[:, :, :1]
    values[:, :, begin : begin + new.shape[2]] = new * 2
    return torch.cat([keys, values])
