"""Every pointwise operator's CUDA function compiles, in float and in double, for every architecture; no GPU needed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from nvrtc import ARCHITECTURES, CompileError, compile_cuda, compile_with_log

from ortplugin.program import DTYPES, OPERATORS, OperatorSpec

POINTWISE = Path(__file__).resolve().parents[2] / "ortplugin" / "runtime" / "pointwise.cuh"
CUDA_TYPES = {"float16": "float", "bfloat16": "float", "float": "float", "double": "double", "bool": "bool"}


def calls(spec: OperatorSpec, cuda_type: str) -> Iterator[tuple[str, str]]:
    """(type of the result, call) in the form that EmitCuda writes: operands, then attributes as literals."""
    suffix = "f" if cuda_type == "float" else ""
    if spec.name == "Cast":
        names = {"float16": "Float16", "bfloat16": "BFloat16", "float": "Float", "double": "Double", "bool": "Bool"}
        for dtype in DTYPES:
            for operand in ("a", "c"):
                yield CUDA_TYPES[dtype], f"op_Cast{names[dtype]}({operand})"
        return
    operands = [{"T": "abx"[i % 3], "B": "cd"[i % 2]}[letter] for i, letter in enumerate(spec.operands)]
    result = "bool" if spec.result == "B" else cuda_type
    if spec.name == "Gelu":
        yield result, "op_Gelu(a, false)"
        yield result, "op_Gelu(a, true)"
        return
    # Attributes are 32-bit floats in ONNX, whatever the operand's dtype is.
    values = [float(np.float32(value)) for _, value in spec.attributes if isinstance(value, float)]
    numbers = [value.hex() + suffix for value in values]
    assert len(numbers) == len(spec.attributes)
    yield result, f"op_{spec.name}({', '.join([*operands, *numbers])})"


def kernel_of(cuda_type: str) -> str:
    """A kernel whose results are all operators' results, so that nothing is optimised away."""
    lines = []
    for spec in OPERATORS.values():
        if not spec.core:
            for result, call in calls(spec, cuda_type):
                index = len(lines)
                lines.append(f"  {{ const {result} v = {call}; out[{index} * n + i] = ({cuda_type})v; }}")
    body = "\n".join(lines)
    return f"""{POINTWISE.read_text()}
extern "C" __global__ void every_operator_{cuda_type}(const {cuda_type}* in, {cuda_type}* out, int n) {{
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const {cuda_type} a = in[i], b = in[n + i], x = in[2 * n + i];
  const bool c = a < b, d = b < x;
{body}
}}
"""


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_operator_compiles(architecture: str) -> None:
    source = kernel_of("float")
    assert source.count("op_") > len(OPERATORS)
    cubin, log = compile_with_log(source, architecture)
    assert cubin[:4] == b"\x7fELF"
    assert b"every_operator_float" in cubin
    assert "warning" not in log, log


@pytest.mark.parametrize("architecture", ["sm_75", "sm_90"])
def test_every_operator_compiles_in_double(architecture: str) -> None:
    cubin, log = compile_with_log(kernel_of("double"), architecture)
    assert b"every_operator_double" in cubin
    assert "warning" not in log, log


@pytest.mark.parametrize("architecture", ["sm_75", "sm_120"])
def test_literals_of_every_kind_are_constants(architecture: str) -> None:
    """The forms in which EmitCuda writes numbers are accepted and have the value meant."""
    source = f"""{POINTWISE.read_text()}
constexpr float tenth = 0x1.99999ap-4f;
static_assert(tenth == 0.1f, "");
static_assert(0x1.999999999999ap-4 == 0.1, "");
static_assert(-0x0p+0f == 0.0f && 0x1p-149f > 0.0f, "");
extern "C" __global__ void literals(float* out, double* wide) {{
  out[0] = op_Clip(out[1], -__int_as_float(0x7f800000), __int_as_float(0x7fc00000));
  wide[0] = op_Clip(wide[1], __longlong_as_double(0x7ff0000000000000LL), __longlong_as_double(0x7ff8000000000000LL));
}}
"""
    assert b"literals" in compile_cuda(source, architecture)


def test_mixed_types_are_refused() -> None:
    """The functions do not promote: a float and a double together are an error of the emitter."""
    kernel = 'extern "C" __global__ void k(float* x, double* y) { y[0] = op_Add(x[0], y[0]); }'
    with pytest.raises(CompileError, match="op_Add"):
        compile_cuda(f"{POINTWISE.read_text()}\n{kernel}\n", "sm_90")
