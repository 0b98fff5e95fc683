"""ConvGrad: the gradients of a Conv or a ConvTranspose with what is pointwise after it drawn in.

    dZ = program(params)                      the gradient of the convolution's value, of the shape S
    dX = the gradient of X                    dW = that of W                    dB = that of the bias: dZ summed

For Y = Relu(Conv(X, W) + B) the program is `(T dy, T y) => (T dz) { p = Greater(y, 0) dz = Where(p, dy, 0) }`, for a
bare convolution `(T dz) => (T dz) {}`. reference.py has the sums.

Domain `ortplugin`, version 1.
Attributes:
    `program` (string): docs/programs.md, without core operators. The first result is dZ, in T, the dtype of X and W.
    `gradients` (string): which of "dX", "dW", "dB" and "dZ" are wanted, in this order, separated by spaces.
    `operands` (string): which of "X" and "W" are given, in this order. dX needs W; dW needs X.
    `transposed`: 1 for the gradients of a ConvTranspose (default 0).
    `layout`: "NCHW" (default) or "NHWC", as in FusedConv: W is [M, C/group, k..] or [M, k.., C/group], and for a
        ConvTranspose [C, M/group, k..] or [C, k.., M/group].
    `group` (1), `strides` (ones), `dilations` (ones), `pads` (zeros; begins, then ends): as ONNX's. What auto_pad or
        output_shape would say stands in `pads`.
    `kernel_shape`: must be given.
    `output_padding` (zeros): read where X is not given: how much larger (smaller, if transposed) X's spatial sizes
        are than those from which a ConvTranspose (Conv) of dZ alone would be made; 0 where the strides divide.
    `weight_dtype` (string): the dtype of dW and dB; T by default, "float" to keep what is accumulated.
    `allow_tf32` (0): float32 products may be rounded to TF32 on a GPU.
    `data_algorithm`, `weight_algorithm` ("auto"): how a GPU makes dX and dW: "own" (a kernel of ours, where there is
        one), "cudnn" (what its heuristics propose), or cuDNN's engine and its knobs, as `--tune` finds them; never
        changes results beyond rounding. What the shapes, the GPU or its cuDNN don't have is "auto", with a warning.
Inputs: X and W, as `operands` says, then one for each parameter of the program. Those broadcast to S, the shape of the
    convolution's value; floating dtypes only for X and W.
Outputs: those of `gradients`, in order, then the program's results after the first, which have the shape S. dX has
    the shape and dtype of X, dW the shape of W, dB the shape [M].
Sums accumulate in float32, in float64 for double, in an order that depends on the shapes and the device alone.
Errors: an invalid program or attribute, another number of inputs or outputs than they say, shapes or dtypes that do not
    fit each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from ortplugin.errors import ModelError
from ortplugin.graph.domains import DOMAIN
from ortplugin.graph.shapes import Dim, Shape, TensorType, broadcast
from ortplugin.ops import pointwise_reference
from ortplugin.ops.base import Operator
from ortplugin.ops.conv_grad import algorithms
from ortplugin.ops.conv_grad import reference as reference_module
from ortplugin.ops.conv_grad.decomposition import append
from ortplugin.ops.decompose import Builder, to_onnx
from ortplugin.program import DTYPE_NAMES, FLOATING, NUMPY_DTYPES, Program, parse

NAME = "ConvGrad"
GRADIENTS = ("dX", "dW", "dB", "dZ")
OPERANDS = ("X", "W")


@dataclass(frozen=True)
class Gradient:
    """A node's attributes, checked and complete."""

    program: Program
    gradients: tuple[str, ...]
    operands: tuple[str, ...]
    transposed: bool
    channels_last: bool
    group: int
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]
    kernel_shape: tuple[int, ...]
    output_padding: tuple[int, ...]
    weight_dtype: str

    @property
    def dtype(self) -> str:
        """T."""
        return self.program.results[0].dtype

    @property
    def rank(self) -> int:
        """The number of spatial axes."""
        return len(self.kernel_shape)

    def large(self, axis: int, small: Dim) -> int | None:
        """The least spatial size of the convolution's larger tensor that goes with this size of the smaller."""
        if not isinstance(small, int):
            return None
        extent = (self.kernel_shape[axis] - 1) * self.dilations[axis] + 1
        return (small - 1) * self.strides[axis] + extent - self.begin[axis] - self.end[axis]


def gradient_of(node: onnx.NodeProto) -> Gradient:
    """The node's attributes, checked against its inputs and outputs. Raises ModelError that names the node."""
    where = f"node '{node.name}' ({NAME})"
    given = {each.name: helper.get_attribute_value(each) for each in node.attribute}

    def text(name: str, default: str) -> str:
        value = given.get(name, default.encode())
        if not isinstance(value, bytes):
            raise ModelError(f"{where}: the attribute '{name}' must be a string")
        return value.decode("utf-8", "replace")

    def words(name: str, allowed: Sequence[str]) -> tuple[str, ...]:
        found = tuple(text(name, "").split())
        if found != tuple(each for each in allowed if each in found):
            raise ModelError(f"{where}: {name}='{' '.join(found)}' must be some of {', '.join(allowed)}, in this order")
        return found

    def whole(name: str, default: int, least: int, most: int | None = None) -> int:
        value = given.get(name, default)
        if not isinstance(value, int) or value < least or (most is not None and value > most):
            raise ModelError(
                f"{where}: {name}={value} must be {least} " + ("or more" if most is None else f"to {most}")
            )
        return value

    def sizes(name: str, least: int, count: int) -> tuple[int, ...]:
        value = given.get(name, [least] * count)
        if not isinstance(value, list) or any(not isinstance(v, int) or v < least for v in value):
            raise ModelError(f"{where}: {name}={value} must be integers, each {least} or more")
        if len(value) != count:
            raise ModelError(f"{where}: {name}={value} must have {count} numbers, as kernel_shape says")
        return tuple(value)

    kernel = given.get("kernel_shape")
    if not isinstance(kernel, list) or not 1 <= len(kernel) <= 3:
        raise ModelError(f"{where}: the attribute 'kernel_shape' must have 1 to 3 numbers")
    rank = len(kernel)

    program = _program(where, text("program", ""))
    dtype = program.results[0].dtype
    gradient = Gradient(
        program,
        words("gradients", GRADIENTS),
        words("operands", OPERANDS),
        whole("transposed", 0, 0, 1) == 1,
        text("layout", "NCHW") == "NHWC",
        whole("group", 1, 1),
        sizes("strides", 1, rank),
        sizes("dilations", 1, rank),
        sizes("pads", 0, 2 * rank)[:rank],
        sizes("pads", 0, 2 * rank)[rank:],
        sizes("kernel_shape", 1, rank),
        sizes("output_padding", 0, rank),
        text("weight_dtype", dtype),
    )
    if text("layout", "NCHW") not in ("NCHW", "NHWC"):
        raise ModelError(f"{where}: layout='{text('layout', '')}' must be NCHW or NHWC")
    if gradient.weight_dtype not in FLOATING:
        raise ModelError(f"{where}: weight_dtype='{gradient.weight_dtype}' must be one of {', '.join(FLOATING)}")
    for wanted, needed in (("dX", "W"), ("dW", "X")):
        if wanted in gradient.gradients and needed not in gradient.operands:
            raise ModelError(f"{where}: {wanted} needs {needed}; add it to operands='{' '.join(gradient.operands)}'")
    if not gradient.gradients:
        raise ModelError(f"{where}: gradients='' must name at least one of {', '.join(GRADIENTS)}")
    for what, found, expected in (
        ("inputs", len(node.input), len(gradient.operands) + len(program.parameters)),
        ("outputs", len(node.output), len(gradient.gradients) + len(program.results) - 1),
    ):
        if found != expected:
            raise ModelError(f"{where}: {found} {what}, but its operands, gradients and program make {expected}")
    return gradient


def _program(where: str, text: str) -> Program:
    if not text:
        raise ModelError(f"{where}: the attribute 'program' is missing")
    try:
        program = parse(text)
    except ModelError as error:
        raise ModelError(f"{where}: {error}") from error
    if program.core is not None:
        raise ModelError(f"{where}: the program holds a {program.core.op}; it must be pointwise")
    if not program.parameters or program.results[0].dtype not in FLOATING:
        raise ModelError(f"{where}: the program's first result must be a floating value of its parameters")
    return program


@dataclass(frozen=True)
class Shapes:
    """The shapes of one node's tensors, channels first; None where unknown."""

    z: Shape | None
    x: Shape | None
    w: Shape | None

    @staticmethod
    def last(shape: Shape | None, channels_last: bool) -> Shape | None:
        """The shape as the node's layout has it."""
        return shape if shape is None or not channels_last else (shape[0], *shape[2:], shape[1])

    @staticmethod
    def first(shape: Shape | None, channels_last: bool) -> Shape | None:
        """The shape channels first, from the node's layout."""
        return shape if shape is None or not channels_last else (shape[0], shape[-1], *shape[1:-1])


def shapes_of(where: str, gradient: Gradient, operands: Sequence[Shape | None], whole: Shape | None) -> Shapes:
    """What `operands` (in the node's order and layout) and S tell of all shapes. Raises ModelError if they disagree."""
    known = dict(zip(gradient.operands, operands, strict=True))
    x, w, z = (Shapes.first(each, gradient.channels_last) for each in (known.get("X"), known.get("W"), whole))
    if any(each is not None and len(each) != gradient.rank + 2 for each in (x, w, z)):
        raise ModelError(f"{where}: kernel_shape={list(gradient.kernel_shape)} has another rank than {_show(x, w, z)}")
    if w is None:
        small, large = (x, z) if gradient.transposed else (z, x)
        columns = large[1] if large is not None else None
        columns = columns // gradient.group if isinstance(columns, int) else None
        w = (small[1] if small is not None else None, columns, *gradient.kernel_shape)
    if x is None and z is not None and "X" not in gradient.operands:
        x = (z[0], *_data_shape(gradient, z, w))
    _check(where, gradient, Shapes(z, x, w))
    return Shapes(z, x, w)


def _data_shape(gradient: Gradient, z: Shape, w: Shape) -> list[Dim]:
    """Channels and sizes of X, from Z and W."""
    if not gradient.transposed:
        channels = w[1] * gradient.group if isinstance(w[1], int) else None
        least = [gradient.large(axis, size) for axis, size in enumerate(z[2:])]
        return [channels, *(max(s + p, 0) if s is not None else None
                            for s, p in zip(least, gradient.output_padding, strict=True))]  # fmt: skip
    dims: list[Dim] = [w[0]]
    for axis, size in enumerate(z[2:]):
        one = gradient.large(axis, 1)
        assert one is not None
        steps = size - one - gradient.output_padding[axis] if isinstance(size, int) else None
        dims.append(None if steps is None else max(steps // gradient.strides[axis] + 1, 0))
    return dims


def _check(where: str, gradient: Gradient, shapes: Shapes) -> None:
    z, x, w = shapes.z, shapes.x, shapes.w
    small, large = (x, z) if gradient.transposed else (z, x)
    group = gradient.group

    def differ(a: Dim, b: Dim) -> bool:
        return isinstance(a, int) and isinstance(b, int) and a != b

    def fail(reason: str) -> ModelError:
        return ModelError(f"{where}: {reason}: {_show(x, w, z)}, group={group}")

    if w is not None and any(differ(a, b) for a, b in zip(w[2:], gradient.kernel_shape, strict=True)):
        raise fail(f"kernel_shape={list(gradient.kernel_shape)} is not W's")
    if w is not None and isinstance(w[0], int) and w[0] % group:
        raise fail("the groups do not divide W")
    for shape in (x, z):
        if shape is not None and isinstance(shape[1], int) and shape[1] % group:
            raise fail("the groups do not divide the channels")
    if x is not None and z is not None and differ(x[0], z[0]):
        raise fail("X and S have different batches")
    if w is not None and small is not None and differ(w[0], small[1]):
        raise fail("W does not have the channels")
    if w is not None and large is not None and isinstance(w[1], int) and differ(w[1] * group, large[1]):
        raise fail("W does not have the channels")
    if small is None or large is None:
        return
    for axis, (a, b) in enumerate(zip(small[2:], large[2:], strict=True)):
        least = gradient.large(axis, a)
        if least is None or not isinstance(b, int):
            continue
        room = gradient.strides[axis]
        if gradient.transposed:  # where output_padding may be as large
            room = max(room, gradient.dilations[axis])
        if not 0 <= b - least < room:
            raise fail(f"along spatial axis {axis} the sizes {a} and {b} do not belong together")


def _show(x: Shape | None, w: Shape | None, z: Shape | None) -> str:
    def text(shape: Shape | None) -> str:
        return "?" if shape is None else "[" + ", ".join("?" if d is None else str(d) for d in shape) + "]"

    return f"X {text(x)}, W {text(w)}, S {text(z)} (channels first)"


def infer_shapes(node: onnx.NodeProto, inputs: Sequence[TensorType]) -> list[TensorType]:
    """Every output's dtype and its shape, None where the inputs' shapes do not tell."""
    gradient = gradient_of(node)
    where, count = f"node '{node.name}' ({NAME})", len(gradient.operands)
    dtype = NUMPY_DTYPES[gradient.dtype]
    for name, given in zip(gradient.operands, inputs, strict=False):
        if given.dtype is not None and given.dtype != dtype:
            raise ModelError(f"{where}: {name} is {DTYPE_NAMES.get(given.dtype, given.dtype)}, dZ {gradient.dtype}")
    whole = broadcast([each.shape for each in inputs[count:]])
    shapes = shapes_of(where, gradient, [each.shape for each in inputs[:count]], whole)
    made = {
        "dX": TensorType(dtype, Shapes.last(shapes.x, gradient.channels_last)),
        "dW": TensorType(NUMPY_DTYPES[gradient.weight_dtype], Shapes.last(shapes.w, gradient.channels_last)),
        "dB": TensorType(NUMPY_DTYPES[gradient.weight_dtype], None if shapes.z is None else (shapes.z[1],)),
        "dZ": TensorType(dtype, whole),
    }
    extra = [TensorType(NUMPY_DTYPES[result.dtype], whole) for result in gradient.program.results[1:]]
    return [made[name] for name in gradient.gradients] + extra


def reference(
    node: onnx.NodeProto, inputs: Sequence[npt.NDArray[Any]], rounded: bool = True
) -> list[npt.NDArray[np.generic]]:
    """The outputs in NumPy, computed in float64; `rounded`: in their own dtypes, else before that last rounding.

    dX and dW are made from the dZ that float64 arithmetic gives, rounded to T: what the kernels store.
    """
    gradient = gradient_of(node)
    count = len(gradient.operands)
    whole = np.broadcast_shapes(*(np.shape(each) for each in inputs[count:]))
    shapes = shapes_of(f"node '{node.name}' ({NAME})", gradient, [each.shape for each in inputs[:count]], whole)
    values = pointwise_reference.values(gradient.program, inputs[count:])
    results = [(np.broadcast_to(values[each.name], whole), each.dtype) for each in gradient.program.results]
    given = {name: _first(each, gradient) for name, each in zip(gradient.operands, inputs, strict=False)}
    z = _first(pointwise_reference.rounded(*results[0]), gradient).astype(np.float64)
    made: dict[str, npt.NDArray[Any]] = {}
    if "dX" in gradient.gradients:
        made["dX"] = _last(_data(gradient, z, given["W"], shapes), gradient)
    if "dW" in gradient.gradients:
        made["dW"] = _last(_weight(gradient, z, given["X"], shapes), gradient)
    made["dZ"] = np.array(results[0][0])
    made["dB"] = _first(made["dZ"], gradient).sum((0, *range(2, z.ndim)))
    dtypes = {"dW": gradient.weight_dtype, "dB": gradient.weight_dtype}
    outputs = [(made[name], dtypes.get(name, gradient.dtype)) for name in gradient.gradients] + results[1:]
    return [pointwise_reference.rounded(value, dtype) if rounded else np.array(value) for value, dtype in outputs]


def _window(gradient: Gradient) -> reference_module.Window:
    return reference_module.Window(gradient.strides, gradient.dilations, gradient.begin, gradient.group)


def _data(gradient: Gradient, z: npt.NDArray[Any], w: npt.NDArray[Any], shapes: Shapes) -> npt.NDArray[Any]:
    assert shapes.x is not None
    sizes = [int(size) for size in shapes.x[2:] if size is not None]
    make = reference_module.gather if gradient.transposed else reference_module.scatter
    return make(z, w, sizes, _window(gradient))


def _weight(gradient: Gradient, z: npt.NDArray[Any], x: npt.NDArray[Any], shapes: Shapes) -> npt.NDArray[Any]:
    assert shapes.w is not None
    kernel = [int(size) for size in shapes.w[2:] if size is not None]
    small, large = (x, z) if gradient.transposed else (z, x)
    return reference_module.weight(small, large, kernel, _window(gradient))


def _first(array: npt.NDArray[Any], gradient: Gradient) -> npt.NDArray[Any]:
    return np.moveaxis(array, -1, 1) if gradient.channels_last else np.asarray(array)


def _last(array: npt.NDArray[Any], gradient: Gradient) -> npt.NDArray[Any]:
    return np.ascontiguousarray(np.moveaxis(array, 1, -1)) if gradient.channels_last else array


def decompose(node: onnx.NodeProto, opset: int) -> list[onnx.NodeProto]:
    """The node as standard ONNX at this opset of the domain ai.onnx (11 or later), under the same output names."""
    gradient = gradient_of(node)
    prefix = f"{node.output[0]}/unfused"
    count = len(gradient.operands)
    program, wanted = gradient.program, dict(zip(gradient.gradients, node.output, strict=False))
    dz = wanted.get("dZ", f"{prefix}/dz")
    results = [dz, *node.output[len(gradient.gradients) :]]
    bare = not program.statements and len(program.parameters) == 1 and "dZ" not in wanted
    if bare:
        dz = node.input[count]
    nodes = [] if bare else _whole_program(program, node.input[count:], results, opset, prefix)
    builder = Builder(opset, f"{prefix}/conv")
    operands = dict(zip(gradient.operands, node.input, strict=False))
    append(builder, gradient, dz, operands, wanted)
    return nodes + builder.nodes


def _whole_program(
    program: Program, inputs: Sequence[str], outputs: Sequence[str], opset: int, prefix: str
) -> list[onnx.NodeProto]:
    """The program's nodes, every result expanded to S where it does not depend on all parameters."""
    made, missing = [], []
    for result, output in zip(program.results, outputs, strict=True):
        needed = program.needed_for([result.name])
        rest = [name for each, name in zip(program.parameters, inputs, strict=True) if each.name not in needed]
        made.append(f"{prefix}/{result.name}" if rest else output)
        missing.append(rest)
    nodes = to_onnx(program, inputs, made, opset, prefix)
    expand = Builder(opset, f"{prefix}/whole")
    for value, output, names in zip(made, outputs, missing, strict=True):
        for name in names:
            value = expand.op("Expand", value, expand.op("Shape", name), output=output if name == names[-1] else "")
    return nodes + expand.nodes


def device_variants(
    node: onnx.NodeProto, inputs: Sequence[TensorType], constant: Sequence[bool], device_id: int = 0
) -> Sequence[Mapping[str, Any]]:
    """What the GPU offers for dX and for dW; see algorithms.py."""
    return algorithms.variants(node, gradient_of(node), inputs, device_id)


OPERATOR = Operator(
    name=NAME,
    domain=DOMAIN,
    version=1,
    summary="gradients of Conv and ConvTranspose: input, weight, bias, through what is pointwise after them",
    infer_shapes=infer_shapes,
    decompose=decompose,
    reference=reference,
    device_variants=device_variants,
)
