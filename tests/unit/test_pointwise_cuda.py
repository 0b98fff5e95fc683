"""Every pointwise operator's CUDA function compiles, in every type that it takes, for every architecture.

No GPU is needed.
"""

import itertools
from pathlib import Path

import numpy as np
from nvrtc import ARCHITECTURES, CompileError, compile_cuda, compile_with_log
from onnx_models import one_in, parametrize, raises

from ortplugin.program import DTYPES, INTEGERS, OPERATORS

DEVICE = Path(__file__).resolve().parents[2] / "ortplugin" / "device"
POINTWISE = "".join((DEVICE / name).read_text() for name in ("common.cuh", "pointwise.cuh"))
CUDA_TYPES = {
  "float16": "float", "bfloat16": "float", "float": "float", "double": "double", "bool": "bool",
  "int8": "signed char", "int16": "short", "int32": "int", "int64": "long long", "uint8": "unsigned char",
  "uint16": "unsigned short", "uint32": "unsigned int", "uint64": "unsigned long long",
}  # fmt: skip
CASTS = {
  "float16": "Float16", "bfloat16": "BFloat16", "float": "Float", "double": "Double", "bool": "Bool",
  "int8": "Int8", "int16": "Int16", "int32": "Int32", "int64": "Int64", "uint8": "UInt8", "uint16": "UInt16",
  "uint32": "UInt32", "uint64": "UInt64",
}  # fmt: skip
FLAGS = ("fmod", "detect_negative", "detect_positive")


def calls(spec, dtype):
  """(type of the result, call) in the form that EmitCuda writes: operands, then attributes as literals."""
  cuda_type = CUDA_TYPES[dtype]
  suffix = "f" if cuda_type == "float" else ""
  if spec.name == "Cast":
    for to in DTYPES:
      for operand in ("a", "c"):
        yield CUDA_TYPES[to], f"op_Cast{CASTS[to]}({operand})"
    return
  operands = [{"T": "abx"[i % 3], "B": "cd"[i % 2]}[letter] for i, letter in enumerate(spec.operands)]
  result = "bool" if spec.result == "B" else cuda_type
  words = {"approximate": ("false", "true"), "direction": ("false", "true")}
  choices = [
    words.get(name) or (("false", "true") if name in FLAGS else (float(np.float32(value)).hex() + suffix,))
    for name, value in spec.attributes
    # Attributes are 32-bit floats in ONNX, whatever the operand's dtype is.
    if name in words or isinstance(value, float)
  ]
  assert len(choices) == len(spec.attributes)
  for chosen in itertools.product(*choices):
    yield result, f"op_{spec.name}({', '.join([*operands, *chosen])})"


def kernel_of(dtype):
  """A kernel whose results are all operators' results, so that nothing is optimised away."""
  lines = []
  cuda_type = CUDA_TYPES[dtype]
  for spec in OPERATORS.values():
    if not spec.core and ("T" not in spec.operands or dtype in spec.types):
      for result, call in calls(spec, dtype):
        index = len(lines)
        lines.append(f"  {{ const {result} v = {call}; out[{index} * n + i] = ({cuda_type})v; }}")
  body = "\n".join(lines)
  return f"""{POINTWISE}
extern "C" __global__ void every_operator_{dtype}(const {cuda_type}* in, {cuda_type}* out, int n) {{
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const {cuda_type} a = in[i], b = in[n + i], x = in[2 * n + i];
  const bool c = a < b, d = b < x;
{body}
}}
"""


@parametrize("architecture", ARCHITECTURES)
def test_every_operator_compiles(architecture):
  source = kernel_of("float")
  assert source.count("op_") > len(OPERATORS)
  cubin, log = compile_with_log(source, architecture)
  assert cubin[:4] == b"\x7fELF"
  assert b"every_operator_float" in cubin
  assert "warning" not in log, log


@one_in(3)
@parametrize("architecture", ["sm_75", "sm_90"])
@parametrize("dtype", ["double", *INTEGERS])
def test_every_operator_compiles_in_every_type(dtype, architecture):
  cubin, log = compile_with_log(kernel_of(dtype), architecture)
  assert f"every_operator_{dtype}".encode() in cubin
  assert "warning" not in log, log


@parametrize("architecture", ["sm_75", "sm_120"])
def test_literals_of_every_kind_are_constants(architecture):
  """The forms in which EmitCuda writes numbers are accepted and have the value meant."""
  source = f"""{POINTWISE}
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


def test_mixed_types_are_refused():
  """The functions do not promote: a float and a double together are an error of the emitter."""
  kernel = 'extern "C" __global__ void k(float* x, double* y) { y[0] = op_Add(x[0], y[0]); }'
  with raises(CompileError, "op_Add"):
    compile_cuda(f"{POINTWISE}\n{kernel}\n", "sm_90")
