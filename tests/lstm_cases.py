"""The cases on which FusedLSTM must equal its reference, on every provider.

A case is one node and its sizes.
"""

import zlib
from dataclasses import dataclass, replace

import numpy as np
from node_cases import UNIT_ROUNDOFF, compare, model_with, named
from onnx import helper

from ortplugin.graph import DOMAIN
from ortplugin.ops.lstm import DIRECTIONS, DTYPES, reference
from ortplugin.program import NUMPY_DTYPES

NAMES = ("G", "R", "h0", "c0")
OUTPUTS = ("Y", "Y_h", "Y_c")


@dataclass(frozen=True)
class Case:
  """One node with its inputs. `scale`: of G; `nan`: a sequence of which one gate is NaN at the second step."""

  name: str
  dtype: str
  steps: int
  batch: int
  hidden: int
  direction: str = "bidirectional"
  batch_first: bool = False
  states: bool = False
  outputs: int = 3
  constant: bool = True  # R
  columns: int = 1  # the last axis of the batch, where it has more than one
  scale: float = 1
  nan: int | None = None
  allow_tf32: int | None = None

  @property
  def directions(self):
    return 2 if self.direction == "bidirectional" else 1

  @property
  def names(self):
    return NAMES if self.states else NAMES[:2]

  @property
  def shapes(self):
    d, h = self.directions, self.hidden
    lengths = [self.batch] if self.columns == 1 else [self.batch // self.columns, self.columns]
    lengths.insert(int(self.batch_first), self.steps)
    shapes = ((*lengths, d * h * 4), (d, 4 * h, h), *((d, self.batch, h),) * 2)
    return shapes[: len(self.names)]

  def inputs(self):
    seed, scales = zlib.crc32(self.name.encode()), (self.scale, self.hidden**-0.5, 0.5, 1)
    arrays = [  # each from a seed of its own: R is the same for all lengths
      np.random.default_rng([seed, place]).standard_normal(shape) * scales[place]
      for place, shape in enumerate(self.shapes)
    ]
    if self.nan is not None:
      at = (self.nan, 1) if self.batch_first else (1, self.nan)
      arrays[0][(*at, 5)] = np.nan
    return [each.astype(NUMPY_DTYPES[self.dtype]) for each in arrays]

  def feeds(self):
    given = dict(zip(self.names, self.inputs(), strict=True))
    return {name: array for name, array in given.items() if name != "R" or not self.constant}

  def node(self):
    tf32 = {} if self.allow_tf32 is None else {"allow_tf32": self.allow_tf32}
    return helper.make_node(
      "FusedLSTM", self.names, OUTPUTS[: self.outputs], "recurrence", domain=DOMAIN, hidden_size=self.hidden,
      dtype=self.dtype, direction=self.direction, batch_first=int(self.batch_first), **tf32,
    )  # fmt: skip

  def model(self, shapes=None, nodes=None, opset=18):
    given = zip(self.names, self.shapes if shapes is None else shapes, strict=True)
    inputs = [(name, self.dtype, shape) for name, shape in given if name != "R" or not self.constant]
    constants = [("R", self.inputs()[1])] if self.constant else []
    outputs = [(name, self.dtype) for name in OUTPUTS[: self.outputs]]
    return model_with([self.node()] if nodes is None else nodes, inputs, outputs, constants, opset=opset)


def check(case, outputs, inputs=None):
  """Compares the outputs with the reference.

  h is rounded in each step, by which the next one's gates are off, and c keeps what they were off by: a sum that
  forgets, so that the error grows for some steps alone. Of float32 the arithmetic itself is off by as much; TF32
  has the bits of float16.
  """
  given = case.inputs() if inputs is None else inputs
  wide, wanted = reference(case.node(), given, rounded=False), reference(case.node(), given)
  dtype = "float16" if case.allow_tf32 else case.dtype
  unit = UNIT_ROUNDOFF[dtype] * (8 if dtype == "float" else 1) + 2.0**-20
  assert len(outputs) == case.outputs
  for name, got, rounded, exact in zip(OUTPUTS, outputs, wanted, wide, strict=False):
    slack = unit * min(2, 1 + case.steps / 16) * np.maximum(1, np.abs(exact) if name == "Y_c" else 1)
    compare(f"{case.name}: {name}", got, rounded, exact, np.broadcast_to(slack, got.shape))


SIZES = ((1, 1, 16), (2, 15, 48), (33, 16, 96), (7, 40, 128), (3, 9, 32))
CASES = [
  Case(f"{direction} {steps} {batch} {hidden} {dtype} {batch_first}", dtype, steps, batch, hidden, direction,
       batch_first, states=(steps + batch + hidden) % 2 == 0, outputs=1 + (steps + batch_first) % 3)
  for direction in DIRECTIONS
  for steps, batch, hidden in SIZES
  for dtype in DTYPES
  for batch_first in (False, True)
]  # fmt: skip
CASES += [
  case
  for dtype in DTYPES
  for case in (
    Case(f"columns, {dtype}", dtype, 5, 21, 48, batch_first=True, states=True, columns=7),
    Case(f"batch of two axes, {dtype}", dtype, 3, 18, 32, "reverse", columns=9),
    Case(f"no steps, {dtype}", dtype, 0, 5, 16, states=True),
    Case(f"no sequences, {dtype}", dtype, 3, 0, 16, batch_first=True),
    Case(f"R of a run, {dtype}", dtype, 4, 11, 48, constant=False, states=True),
    Case(f"odd units, {dtype}", dtype, 5, 3, 21, states=True),
    Case(f"many units, {dtype}", dtype, 3, 2, 144),
    Case(f"saturated, {dtype}", dtype, 6, 10, 32, scale=60),
    Case(f"a NaN, {dtype}", dtype, 5, 12, 48, nan=3),
  )
]
TF32 = [replace(case, name=f"{case.name}, TF32", allow_tf32=1) for case in CASES if case.dtype == "float"]
by_name = named([*CASES, *TF32])
