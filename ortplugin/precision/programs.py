"""Our own operators in a conversion of precision: which inputs and outputs change, and their programs afterwards."""

from dataclasses import replace

import numpy as np
import onnx_graphsurgeon as gs

from ..program import DTYPE_NAMES, NUMPY_DTYPES, Parameter, Program, ProgramError, Statement, parse
from . import FLOAT32, Precision
from .roles import Slots, is_floating

# Our own operators that take any dtype, where no program says which.
PRODUCTS = ("FusedConv", "FusedConvTranspose", "FusedMatMul")
CONV_GRAD = "ConvGrad"
FUSED_CHAINS = ("FusedPointwise", "FusedSumTo", "FusedMatMulNorm", "FusedAttention", "FusedLSTM")  # parts may stay
ANY_DTYPE = ("ScatterND", "ScatterElements", "UpdateSlice", "FusedPool", "FusedResize")


def our_slots(node: gs.Node, target: Precision) -> Slots | str:
  """`schema_slots` of one of our own operators: all that is floating, but for what its program converts itself."""
  inputs, outputs = (
    tuple(index for index, tensor in enumerate(tensors) if is_floating(tensor.dtype, target))
    for tensors in (node.inputs, node.outputs)
  )
  if node.op in ANY_DTYPE and "program" not in node.attrs:
    return inputs, outputs
  if node.op in FUSED_CHAINS:
    return "it was fused in another dtype; --restore the model first"
  try:
    program = parse(str(node.attrs["program"]))
  except (KeyError, ProgramError) as error:
    return f"its program can't be read: {error}"
  taken, given = _formals(node, program)
  if len(taken) != len(node.inputs) or len(given) != len(node.outputs):
    return "its inputs and outputs are not those of its program"
  borders = _borders(program, DTYPE_NAMES[target.dtype])
  if node.op == CONV_GRAD:
    borders -= {program.results[0].name}  # X and W have its dtype
  inputs = tuple(i for i in inputs if taken[i] not in borders)
  outputs = tuple(i for i in outputs if given[i] not in borders and not _keeps_sums(node, i, target))
  return (inputs, outputs) if inputs or outputs else ""


def _formals(node: gs.Node, program: Program) -> tuple[list[str], list[str]]:
  """For each input and each output of the node the parameter or result of the program that has its dtype.

  Inputs of the operator itself stand beside those of the program, its own outputs beside results: an operator that
  has such belongs here.
  """
  taken, given = ([each.name for each in formals] for formals in (program.parameters, program.results))
  if node.op in PRODUCTS:
    return taken[:1] + taken, given  # its two own inputs, of which the first parameter is made
  if node.op == CONV_GRAD:
    operands, gradients = (str(node.attrs.get(name, "")).split() for name in ("operands", "gradients"))
    return given[:1] * len(operands) + taken, given[:1] * len(gradients) + given[1:]
  return taken, given


def _keeps_sums(node: gs.Node, output: int, target: Precision) -> bool:
  """Whether the output is a gradient of weights or bias, which are sums in float32 of many numbers, and stays so."""
  if node.op != CONV_GRAD or not target.narrows or node.outputs[output].dtype != FLOAT32:
    return False
  return str(node.attrs.get("gradients", "")).split()[output : output + 1] in (["dW"], ["dB"])


def weight_dtype(node: gs.Node, slots: Slots, target: Precision) -> str | None:
  """The attribute `weight_dtype` that a ConvGrad needs after its conversion; None without such gradients."""
  for index, name in enumerate(str(node.attrs.get("gradients", "")).split()):
    if name in ("dW", "dB"):
      return DTYPE_NAMES[target.dtype if index in slots[1] else np.dtype(node.outputs[index].dtype)]
  return None


def _borders(program: Program, new: str) -> set[str]:
  """The parameters that the program only casts to dtype `new`, and the results that are Casts from it."""
  casts = [each for each in program.statements if each.op == "Cast"]
  others = {name for each in program.statements if each.op != "Cast" for name in each.names}
  up = {each.names[0] for each in casts if program.dtypes[each.name] == new}
  down = {each.name for each in casts if program.dtypes[each.names[0]] == new}
  others |= {each.names[0] for each in casts if program.dtypes[each.name] != new}
  return {p.name for p in program.parameters if p.name in up - others} | {
    r.name for r in program.results if r.name in down
  }


def converted_program(node: gs.Node, slots: Slots, target: Precision) -> Program:
  """The program of one of our nodes with the target's dtype for these inputs and outputs.

  What it converts to a dtype itself it still does, so where it does, Casts go around it.
  """
  program, new = parse(str(node.attrs["program"])), DTYPE_NAMES[target.dtype]
  formals = _formals(node, program)
  own = len(node.inputs) - len(program.parameters) if node.op == CONV_GRAD else 0  # which no parameter is made of
  taken = {formals[0][index] for index in slots[0] if index >= own}
  given = {formals[1][index] for index in slots[1]}
  if node.op == CONV_GRAD and is_floating(NUMPY_DTYPES[program.results[0].dtype], target):
    given.add(program.results[0].name)  # which may be no output
  if not any(statement.op == "Cast" for statement in program.statements):
    return Program(
      tuple(replace(each, dtype=new) if each.name in taken else each for each in program.parameters),
      tuple(replace(each, dtype=new) if each.name in given else each for each in program.results),
      program.statements,
    )
  fresh = {name: program.fresh(f"{name}_{new}") for name in taken | given}
  # A parameter that is a result as well is that one's new form already.
  before = [
    Statement(p.name, "Cast", (fresh[p.name],), (("to", p.dtype),)) for p in program.parameters if p.name in taken
  ]
  after = [
    Statement(fresh[r.name], "Cast", (r.name,), (("to", new),)) for r in program.results if r.name in given - taken
  ]
  return Program(
    tuple(Parameter(new, fresh[each.name]) if each.name in taken else each for each in program.parameters),
    tuple(Parameter(new, fresh[each.name]) if each.name in given else each for each in program.results),
    (*before, *program.statements, *after),
  ).without_redundant_casts()
