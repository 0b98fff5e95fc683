"""The cases on which FusedTranspose must equal its reference, bit for bit, on every provider.

Inputs are random bits from a seed: NaNs of every payload among the floats.
"""

import zlib
from dataclasses import dataclass

import numpy as np
from node_cases import Shape, bits, model_with, named, same_kind
from onnx import helper

from ortplugin.graph import DOMAIN
from ortplugin.ops.transpose import TO_THE_END, reference
from ortplugin.program import FLOATING, INTEGERS, NUMPY_DTYPES

Ints = tuple[int, ...]


@dataclass(frozen=True)
class Case:
  """One node with its input; without a window it copies all of it."""

  name: str
  dtype: str
  shape: Shape
  perm: Ints
  starts: Ints = ()
  ends: Ints = ()

  @property
  def shapes(self):
    return (self.shape,)

  def inputs(self):
    rng = np.random.default_rng(zlib.crc32(self.name.encode()))
    numpy = np.dtype(NUMPY_DTYPES[self.dtype])
    drawn = rng.integers(0, 2 if numpy == np.bool_ else 256, (*self.shape, numpy.itemsize), dtype=np.uint8)
    return [drawn.view(numpy).reshape(self.shape)]

  def feeds(self):
    return {"x": self.inputs()[0]}

  def node(self):
    window = {"starts": self.starts, "ends": self.ends} if self.starts else {}
    return helper.make_node("FusedTranspose", ["x"], ["y"], "moved", domain=DOMAIN, perm=self.perm, **window)

  def model(self, shape="its own"):
    declared = self.shape if shape == "its own" else shape
    return model_with([self.node()], [("x", self.dtype, declared)], [("y", self.dtype)])


def check(case, output, x=None):
  (wanted,) = reference(case.node(), case.inputs() if x is None else [x])
  same_kind(case.name, output, wanted)
  np.testing.assert_array_equal(bits(output), bits(wanted), err_msg=case.name)


# What exporters leave, smaller: shape and perm; then short, odd and long axes, and many of them.
ORDERS = {
  "to channels first": ((2, 14, 14, 96), (0, 3, 1, 2)),
  "to channels last": ((2, 40, 7, 9), (0, 2, 3, 1)),
  "heads": ((2, 50, 8, 40), (0, 2, 1, 3)),
  "heads of 16 bytes": ((2, 65, 8, 8), (0, 2, 1, 3)),
  "Q, K and V": ((2, 49, 3, 4, 24), (2, 0, 3, 1, 4)),
  "windows": ((2, 3, 5, 3, 7, 24), (0, 1, 3, 2, 4, 5)),
  "unfolded": ((2, 6, 3, 14, 3, 14), (0, 1, 2, 4, 3, 5)),
  "short and long": ((2, 3, 32, 9, 98), (0, 1, 4, 3, 2)),
  "relative places": ((2, 8, 8, 8, 8), (0, 3, 1, 4, 2)),
  "talking heads": ((2, 8, 33, 34), (0, 2, 3, 1)),
  "talking heads, back": ((2, 33, 34, 8), (0, 3, 1, 2)),
  "few beside many": ((3, 1000), (1, 0)),
  "many beside few": ((1000, 3), (1, 0)),
  "few beside few": ((70, 3, 5), (0, 2, 1)),
  "long": ((300, 515), (1, 0)),
  "odd": ((67, 129), (1, 0)),
  "one column": ((5, 1, 7), (2, 1, 0)),
  "none moves": ((5, 6), (0, 1)),
  "one axis": ((13,), (0,)),
  "one element": ((1, 1, 1), (2, 0, 1)),
  "seven axes": ((2, 3, 2, 3, 2, 3, 4), (6, 0, 5, 1, 4, 2, 3)),
  "eight axes": ((2, 1, 3, 2, 2, 1, 3, 2), (7, 6, 5, 4, 3, 2, 1, 0)),
  "nothing": ((3, 0, 4), (2, 0, 1)),
}
TO = TO_THE_END
WINDOWS = {
  "V": ((2, 49, 3, 4, 24), (2, 0, 3, 1, 4), (0, 0, 2, 0, 0), (TO, TO, 3, TO, TO)),
  "without the class token": ((2, 4, 50, 40), (0, 1, 3, 2), (0, 0, 1, 0), (TO, TO, TO, TO)),
  "from the end": ((4, 33, 18), (2, 0, 1), (-3, -30, 1), (TO, -1, -1)),
  "beyond both ends": ((4, 33, 18), (0, 2, 1), (-9, 5, -TO), (9, 50, TO)),
  "an odd place": ((3, 40, 64), (0, 2, 1), (0, 0, 3), (TO, TO, 35)),
  "every second run": ((6, 64, 2, 8), (2, 1, 0, 3), (0, 0, 1, 0), (TO, TO, 2, TO)),
  "one column of many": ((40, 9, 6), (1, 0, 2), (0, 0, 2), (TO, TO, 3)),
  "a row": ((40, 96), (0, 1), (7, 0), (8, TO)),
  "empty": ((4, 5), (1, 0), (3, 0), (2, TO)),
}

CASES = [
  Case(f"{name}, {dtype}", dtype, shape, perm)
  for name, (shape, perm) in ORDERS.items()
  for dtype in ("float16", "uint8", "float", "double")
]
CASES += [
  Case(f"{name}, {dtype}", dtype, shape, perm, starts, ends)
  for name, (shape, perm, starts, ends) in WINDOWS.items()
  for dtype in ("float16", "int8", "int32", "int64")
]
CASES += [Case(f"odd, of {dtype}", dtype, *ORDERS["odd"]) for dtype in (*FLOATING, *INTEGERS, "bool")]
by_name = named(CASES)


def random_case(seed):
  """Of up to seven axes in any order, half of them cut at random."""
  rng = np.random.default_rng(seed)
  rank = int(rng.integers(1, 8))
  most = (3000, 300, 40, 15, 9, 6, 5)[rank - 1]
  shape = [int(each) for each in rng.integers(1, most + 1, rank)]
  starts, ends = [0] * rank, [TO] * rank
  for axis in range(rank):
    if rng.integers(2):
      starts[axis] = int(rng.integers(0, shape[axis]))
      ends[axis] = int(rng.integers(starts[axis], shape[axis] + 2))
  dtype = ("float16", "bfloat16", "float", "double", "uint8", "int64")[seed % 6]
  perm = tuple(int(axis) for axis in rng.permutation(rank))
  return Case(f"random {seed}", dtype, tuple(shape), perm, tuple(starts), tuple(ends))
