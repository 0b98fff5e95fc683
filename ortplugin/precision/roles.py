"""Which operators stay in float32, and why.

cost       a sum of many numbers, an exponential, a power: its result may lie beyond the dtype, or says nothing in it
chain      what reads such a result, until an operator bounds it (Softmax, Tanh, a norm, ...); measured activations
           (`--inputs`) tell better
exact      what lies between integers and what cares about their last bit (positions and their sines)
constant   an initializer that the dtype does not hold
schema     the operator does not exist in the dtype, at this opset or in ONNX Runtime's CUDA provider
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from ortplugin.graph.facts import Scope
from ortplugin.graph.pointwise import is_pointwise
from ortplugin.ops.base import DOMAIN
from ortplugin.ops.decompose import DTYPE_NAMES, NUMPY_DTYPES
from ortplugin.precision import FLOAT32, Dtype, Precision
from ortplugin.precision.kernels import KERNELS
from ortplugin.program import Parameter, Program, ProgramError, Statement, parse

Slots = tuple[tuple[int, ...], tuple[int, ...]]  # inputs and outputs by index

MANY = 1024  # a sum of more numbers is made in float32

# What may give results beyond float16 for harmless inputs.
GROWS = {
    **dict.fromkeys(("Exp", "Pow", "Sinh", "Cosh"), "its results outgrow its inputs"),
    **dict.fromkeys(("ReduceSumSquare", "ReduceL2"), "it sums squares"),
    **dict.fromkeys(("ReduceL1", "ReduceProd", "ReduceLogSum", "ReduceLogSumExp", "CumSum", "CumProd"), "it sums up"),
}
# What is bounded itself, but goes wrong on the way.
DELICATE = {
    **dict.fromkeys(("Log", "Reciprocal"), "small inputs vanish"),
    **dict.fromkeys(("LRN", "LpNormalization", "LpPool", "MeanVarianceNormalization"), "it sums squares"),
    **dict.fromkeys(("Range", "GridSample", "AffineGrid", "RoiAlign", "NonMaxSuppression"), "it computes coordinates"),
    **dict.fromkeys(("DFT", "STFT", "MelWeightMatrix", "Det", "Inverse"), "its errors add up"),
    **dict.fromkeys(
        ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial"),
        "its random numbers would be others",
    ),
}
# What bounds its result, whatever it reads.
_BOUNDS = """
    Softmax LogSoftmax Sigmoid HardSigmoid Tanh Erf Sin Cos Asin Acos Atan Sign Softsign Hardmax Sqrt Log Div
    Reciprocal LayerNormalization RMSNormalization InstanceNormalization GroupNormalization BatchNormalization
    FusedLayerNorm
"""
BOUNDS = frozenset(_BOUNDS.split())
# Where the last bit of an argument tells.
_SENSITIVE = """
    Sin Cos Tan Floor Ceil Round Mod GridSample
"""
SENSITIVE = frozenset(_SENSITIVE.split())
# Where what a number was exactly no longer tells.
_BLURS = """
    Softmax LogSoftmax Sigmoid Tanh Erf Sin Cos LayerNormalization RMSNormalization FusedLayerNorm Conv FusedConv
"""
BLURS = frozenset(_BLURS.split())
# Operators that move numbers, so that any dtype does.
_MOVES = """
    Cast Identity Reshape Flatten Squeeze Unsqueeze Transpose Concat Split Slice Gather GatherElements GatherND
    Expand Tile Pad Where DepthToSpace SpaceToDepth ReverseSequence Dropout Trilu ConstantOfShape Compress
"""
MOVES = frozenset(_MOVES.split())
# Our own operators that take any dtype, where no program says which.
CONVOLUTIONS = ("FusedConv", "FusedConvTranspose")
CONV_GRAD = "ConvGrad"
FUSED_CHAINS = ("FusedPointwise", "FusedSumTo")  # of which parts may have to stay
ANY_DTYPE = ("ScatterND", "ScatterElements", "UpdateSlice", "FusedPool", "FusedResize")


# An attribute, and no input, says what dtype these outputs have; a schema does not tell. By operator, where it is given:
DTYPE_ATTRIBUTES = {
    **dict.fromkeys(("EyeLike", "Bernoulli", "Multinomial", "RandomNormal", "RandomUniform"), "dtype"),
    **dict.fromkeys(("RandomNormalLike", "RandomUniformLike"), "dtype"),
    **dict.fromkeys(("BlackmanWindow", "HammingWindow", "HannWindow", "MelWeightMatrix"), "output_datatype"),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), "output_dtype"),
}
STASHED = {"LayerNormalization": (1, 2)}  # outputs in the dtype of stash_type


def schema_slots(node: gs.Node, opset: int, target: Precision) -> Slots | str:
    """The inputs and outputs (by index) that take the target's dtype together; or why the operator has no such form."""
    version = f"opset {opset}"
    try:
        schema = onnx.defs.get_schema(node.op, opset, "")
    except onnx.defs.SchemaError:
        return f"onnx does not know the operator at {version}"
    attribute = DTYPE_ATTRIBUTES.get(node.op, "")
    if attribute in node.attrs:
        return f"its attribute '{attribute}' says its dtype"
    stashed = STASHED.get(node.op, ())
    allowed = {each.type_param_str: set(each.allowed_type_strs) for each in schema.type_constraints}
    wanted = f"tensor({DTYPE_NAMES[target.dtype]})"

    def slots(formals: list[onnx.defs.OpSchema.FormalParameter], tensors: list[gs.Tensor]) -> tuple[int, ...] | None:
        found = []
        for index, tensor in enumerate(tensors):
            if tensor.is_empty() or tensor.dtype not in target.sources:
                continue
            formal = formals[min(index, len(formals) - 1)]
            if wanted in allowed.get(formal.type_str, ()):
                found.append(index)
        return tuple(found)

    inputs = slots(list(schema.inputs), node.inputs)
    outputs = tuple(index for index in slots(list(schema.outputs), node.outputs) or () if index not in stashed)
    floating = [
        index for index, tensor in enumerate(node.outputs) if tensor.dtype in target.sources and index not in stashed
    ]
    if list(outputs) != floating or (not inputs and not outputs):
        return f"{version} has no {node.op} in {target.dtype.name}"
    return inputs or (), outputs


def lacks_kernel(scope: Scope, node: gs.Node, target: Precision) -> str:
    """Why the CUDA provider can't run the operator in the target's dtype; '' if it can or it becomes one of ours."""
    known = KERNELS.get(target.dtype.name)
    if not known or node.op in known or (node.domain or "") == DOMAIN:
        return ""
    if is_pointwise(scope, node) and target.dtype.name == "float16":
        return ""
    return f"ONNX Runtime's CUDA provider has no {node.op} in {target.dtype.name}"


def cost(scope: Scope, node: gs.Node) -> str:
    """Why the operator should not compute in few bits; '' if it may."""
    op = node.op
    if op == "Pow" and scope.scalar(node.inputs[1]) in (0.5, 1.0):
        return ""
    if op in GROWS:
        return GROWS[op]
    if op in DELICATE:
        return DELICATE[op]
    if op == "Mul" and node.inputs[0] is node.inputs[1]:
        return "it squares"
    if op in ("ReduceSum", "ReduceMean"):
        count = _reduced(scope, node)
        if count is None or count > MANY:
            return f"it adds up {'an unknown number of' if count is None else count} numbers"
    return ""


def grows(scope: Scope, node: gs.Node) -> bool:
    """Whether the results may lie beyond float16 although what it reads does not."""
    return bool(cost(scope, node)) and node.op not in DELICATE and node.op != "ReduceMean"


def _reduced(scope: Scope, node: gs.Node) -> int | None:
    """How many numbers one result of a reduction is made of; None if unknown."""
    shape = scope.shape(node.inputs[0])
    axes = node.attrs.get("axes")
    if axes is None and len(node.inputs) > 1 and not node.inputs[1].is_empty():
        given = scope.constant(node.inputs[1])
        if given is None:
            return None
        axes = [int(axis) for axis in given]
    if shape is None:
        return None
    if not axes:
        axes = [] if node.attrs.get("noop_with_empty_axes") else range(len(shape))
    lengths = [shape[axis] for axis in axes if -len(shape) <= axis < len(shape)]
    return None if any(not isinstance(each, int) for each in lengths) else math.prod(lengths)


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
    if node.op in CONVOLUTIONS:
        return taken[:1] + taken, given  # X and W, of which the first parameter is made
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


def is_floating(dtype: Dtype | None, target: Precision) -> bool:
    """Whether values of this dtype become the target's."""
    return dtype is not None and np.dtype(dtype) in target.sources
