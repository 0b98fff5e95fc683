"""CUDA kernels, run on the CPU (tests/emulator.py): what engines compute, without a GPU."""

import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

import attention_cases
import conv_cases
import matmul_cases
import numpy as np
import pytest
from emulator import COMPILER, run
from node_cases import planar, typed
from onnx_models import parametrize

from ortplugin.graph import TensorType
from ortplugin.ops.list_algorithms import text_of

ROOT = Path(__file__).resolve().parents[2]
PRINT_KERNELS = ROOT / "build" / "native" / "print_kernels"

pytestmark = [
  pytest.mark.skipif(not PRINT_KERNELS.exists(), reason=f"{PRINT_KERNELS.relative_to(ROOT)} is not built"),
  pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler"),
]


@dataclass(frozen=True)
class Kernel:
  engine: str
  entry: str
  numbers: tuple[int, ...]  # as print_kernels.cc writes them
  source: str


def kernels(case, multiprocessors=132):
  """Those that engines have for a case, on an H200; with fewer multiprocessors each has more to do."""
  types = [TensorType(each.dtype, each.shape) for each in case.inputs()]
  text = text_of(case.node(), types, [name in getattr(case, "constants", ()) for name in case.names])
  command = [PRINT_KERNELS, "sm_90", str(multiprocessors)]
  ran = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
  for each in ran.stdout.split("\0")[:-1]:
    line, source = each.split("\n", 1)
    engine, entry, *numbers = line.split()
    yield Kernel(engine, entry, tuple(map(int, numbers)), source)


def check_kernels(cases, case, expected):
  made = list(kernels(case))
  if not made:
    pytest.skip("no engine of ours has it")
  for kernel in made:
    check_kernel(cases, case, kernel, expected)


def check_kernel(cases, case, kernel, expected):
  cases.check(case, run(kernel, case.inputs(), [np.zeros_like(each) for each in expected]))


def some(cases, step):
  return {case.name: case for case in [each for each in cases if "double" not in each.name][::step]}


def conv(name, dtype, x, w, values="normal", **attributes):
  return conv_cases.made(f"{name}, {dtype}", conv_cases.RESIDUAL_RELU, dtype, x, w, values, **planar(**attributes))


OWN = [
  conv(f"stem by pairs, {values}", dtype, (2, 3, 9, 22), (16, 3, kernel, kernel), values, pads=1).with_image_first()
  for values, dtype, kernel in (("normal", "float16", 3), ("special", "float16", 3), ("special", "bfloat16", 4))
]
OWN += [conv("implicit GEMM", dtype, (1, 64, 34, 32), (40, 64, 3, 3), pads=1).with_layout("NHWC")
        for dtype in ("float16", "float")]  # fmt: skip
CONVS = some([each for each in conv_cases.CASES if len(each.shapes[0]) == 4 and "NHWC" in each.name], 19)
OWN += [conv("with channels first", "float16", (2, 8, 6, 8), (8, 8, 1, 1))]
OWN += [conv("direct", "float", (2, 5, 9, 11), (7, 5, 3, 3))]
CONVS |= {case.name: case for case in OWN}
MATMULS = some([each for each in matmul_cases.CASES if type(each) is matmul_cases.Case], 19)
ATTENTION = some(attention_cases.CASES, 19)
for causal in ("none", "upper_left"):
  wgmma = attention_cases.case_of(f"wgmma, causal {causal}", "float16", (1, 2, 130, 200, 64), causal=causal)
  ATTENTION[wgmma.name] = wgmma
ENGINES = {
  *("conv_1x1", "decode", "depthwise", "direct", "few_output_channels", "flash", "flash_wgmma", "gemm", "gemv"),
  *("grouped", "implicit_gemm", "nchw_few", "nchw_gemm", "patch", "simt", "split_k", "stem"),
}


@parametrize("name", CONVS)
def test_convolutions(name):
  case = CONVS[name]
  check_kernels(conv_cases, case, conv_cases.expect(case).outputs)


@parametrize("name", MATMULS)
def test_products(name):
  case = MATMULS[name]
  check_kernels(matmul_cases, case, matmul_cases.expect(case).outputs)


@parametrize("name", ATTENTION)
def test_attention(name):
  case = ATTENTION[name]
  check_kernels(attention_cases, case, attention_cases.OPERATOR.reference(case.node(), case.inputs()))


@parametrize(
  "text", ["(T c, T b) => (T y) { y = Add(c, b) }", "(T c, T b, T r) => (T y) { a = Add(c, b) y = Add(a, r) }"]
)
def test_blocks_in_pairs(text):
  case = matmul_cases.transposed(matmul_cases.made("pairs", typed(text, "float16"), "float16", (500, 136), 296))
  (kernel,) = (each for each in kernels(case, 2) if each.engine == "gemm")
  assert "#define IS_PAIR 1" in kernel.source
  check_kernel(matmul_cases, case, kernel, matmul_cases.expect(case).outputs)


def test_which_engines_these_cases_have():
  cases = [*CONVS.values(), *MATMULS.values(), *ATTENTION.values()]
  assert {kernel.engine for case in cases for kernel in kernels(case)} == ENGINES


def test_a_mistake_is_found():
  case = OWN[1]
  (kernel,) = (each for each in kernels(case) if each.engine == "stem")
  wrong = replace(kernel, source=kernel.source.replace("&= masks[slot]", "&= ~0u"))
  assert wrong.source != kernel.source
  with pytest.raises(AssertionError):
    conv_cases.check(case, run(wrong, case.inputs(), [np.zeros_like(each) for each in conv_cases.expect(case).outputs]))
  missing = replace(kernel, source=kernel.source.replace("shared + line * LINE_PITCH", "shared + 1000000"))
  assert missing.source != kernel.source
  with pytest.raises(AssertionError, match="no address of shared memory"):
    run(missing, case.inputs(), case.inputs()[2:])
