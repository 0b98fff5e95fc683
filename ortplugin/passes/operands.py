"""The operands of a fused node: its inputs and the parameters of its program, in one order."""

from collections.abc import Sequence

import onnx_graphsurgeon as gs

from ..program import Program


def merged_duplicates(program: Program, inputs: Sequence[gs.Tensor]) -> tuple[Program, list[gs.Tensor]]:
  """The same with one parameter for each tensor."""
  kept: dict[int, str] = {}
  for tensor, parameter in zip(inputs, program.parameters, strict=True):
    name = kept.setdefault(id(tensor), parameter.name)
    if name != parameter.name:
      program = program.merged(name, parameter.name)
  return program, list({id(tensor): tensor for tensor in inputs}.values())
