"""Every operator of the table is whole: reference, decomposition, shapes, CPU kernel, CUDA kernel, parity cases, tests.

A new operator starts by adding its line to CASES here; what is then still missing fails by name.
"""

import re
from pathlib import Path

import attention_cases
import conv_cases
import conv_grad_cases
import conv_transpose_cases
import layer_norm_cases
import lstm_cases
import matmul_cases
import numpy as np
import onnx
import pointwise_cases
import pool_cases
import pytest
import scatter_cases
import sum_to_cases
import transpose_cases

from ortplugin.errors import ModelError
from ortplugin.graph import DOMAIN
from ortplugin.ops import OPERATORS, TensorType, find

ROOT = Path(__file__).resolve().parent.parent.parent

# operator: the module of its parity cases, which has CASES. The module's name gives the stem that all operators of a
# family share.
CASES = {
  "FusedLayerNorm": layer_norm_cases,
  "ScatterND": scatter_cases,
  "ScatterElements": scatter_cases,
  "UpdateSlice": scatter_cases,
  "FusedPointwise": pointwise_cases,
  "FusedSumTo": sum_to_cases,
  "FusedConv": conv_cases,
  "FusedConvTranspose": conv_transpose_cases,
  "ConvGrad": conv_grad_cases,
  "FusedPool": pool_cases,
  "FusedResize": pool_cases,
  "FusedMatMul": matmul_cases,
  "FusedMatMulNorm": matmul_cases,
  "FusedAttention": attention_cases,
  "FusedTranspose": transpose_cases,
  "FusedLSTM": lstm_cases,
}

# dtypes that the cases of an operator must cover.
FLOATING = {np.dtype(name) for name in ("float16", "bfloat16", "float32", "float64")}
MOVED = FLOATING | {np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)} | {np.dtype(bool)}
DTYPES = {
  "FusedLayerNorm": FLOATING,
  "ScatterND": MOVED,
  "ScatterElements": MOVED,
  "UpdateSlice": MOVED,
  "FusedPointwise": MOVED,
  "FusedSumTo": FLOATING,
  "FusedConv": FLOATING,
  "FusedConvTranspose": FLOATING,
  "ConvGrad": FLOATING,
  "FusedPool": FLOATING | {np.dtype("int8"), np.dtype("uint8")},
  "FusedResize": FLOATING | {np.dtype("int8"), np.dtype("uint8"), np.dtype("int32")},
  "FusedMatMul": FLOATING,
  "FusedMatMulNorm": FLOATING,
  "FusedAttention": FLOATING | {np.dtype(bool)},
  "FusedTranspose": MOVED,
  "FusedLSTM": FLOATING - {np.dtype("float64")},
}

# What runs on a library on CUDA, and its header here; a kernel of our own is then not needed.
LIBRARIES = {
  "FusedConv": "runtime/cudnn/cudnn.h",
  "FusedConvTranspose": "ops/conv/conv_cuda.h",  # FusedConv's kernel
  "ConvGrad": "runtime/cudnn/cudnn.h",
  "FusedMatMul": "ops/conv/conv_cuda.h",  # the engines of convolutions
  "FusedMatMulNorm": "ops/conv/engines/gemm.h",
}

# The kernel's file, where an operator has none of its stem because it has several engines.
KERNELS = {"FusedAttention": "engines/simt.cu"}

# The benchmark, where it is named after its workload.
BENCHMARKS = {"FusedSumTo": "lerp", "ConvGrad": "mnist", "FusedTranspose": "zoo", "FusedLSTM": "zoo"}

each_operator = pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.name)


def stem_of(operator):
  return CASES[operator.name].__name__.rpartition(".")[2].removesuffix("_cases")


def kernel_of(operator):
  return KERNELS.get(operator.name, f"{stem_of(operator)}.cu")


def cases_of(operator):
  return [case for case in CASES[operator.name].CASES if case.node().op_type == operator.name]


def is_plain(arrays):
  with np.errstate(invalid="ignore"):
    return all(array.size > 0 and np.isfinite(array.astype(np.float64)).all() for array in arrays)


def native(path):
  return (ROOT / "ortplugin" / path).read_text()


def native_of(operator, pattern):
  files = sorted((ROOT / "ortplugin" / "ops" / stem_of(operator)).rglob(pattern))
  return "\n".join(file.read_text() for file in files)


def test_the_tables_have_the_same_operators():
  names = [operator.name for operator in OPERATORS]
  assert names == list(CASES) == list(DTYPES)
  assert len(set(names)) == len(names)
  rows = re.search(r"kOperators\[\] = \{(.*?)\};", native("runtime/ort/registry.cc"), re.DOTALL)
  assert re.findall(r"&k(\w+),", rows[1]) == names, (
    "runtime/ort/registry.cc has other rows than ortplugin/ops/__init__.py"
  )


def test_every_case_is_an_operators():
  for module in set(CASES.values()):
    operators = {name for name, cases in CASES.items() if cases is module}
    assert {case.node().op_type for case in module.CASES} == operators


@each_operator
def test_it_is_found(operator):
  assert find(DOMAIN, operator.name) is operator
  assert operator.domain == DOMAIN
  assert operator.version >= 1
  assert operator.summary


@each_operator
def test_it_has_its_files(operator):
  stem = stem_of(operator)
  for path in (
    f"ortplugin/ops/{stem}/__init__.py",
    f"ortplugin/ops/{stem}/reference.py",
    f"ortplugin/ops/{stem}/{stem}.h",
    f"ortplugin/ops/{stem}/{stem}.cc",
    f"ortplugin/ops/{stem}/{stem}_cuda.cc",
    *([] if operator.name in LIBRARIES else [f"ortplugin/ops/{stem}/{kernel_of(operator)}"]),
    f"tests/ort/test_{stem}.py",
    f"tests/gpu/test_{stem}.py",
    f"benchmarks/{BENCHMARKS.get(operator.name, stem)}.py",
  ):
    assert (ROOT / path).is_file(), f"{operator.name} lacks {path}"


@each_operator
def test_it_has_native_kernels_for_both_providers(operator):
  """One row of runtime/ort/ort.h's `Operator`: name, shape inference, CPU kernel, CUDA kernel.

  A family may share what makes its rows: `const Operator kName = MakeOperator<...>("Name");`.
  """
  stem = stem_of(operator)
  source = native_of(operator, f"{stem}*.cc")
  own = re.search(rf"const Operator k{operator.name} = \{{\n(.*?)\n\}};", source, re.DOTALL)
  made = re.search(rf'const Operator k{operator.name} = (\w+)<[^>]+>\("{operator.name}"\);', source)
  assert own is not None or made is not None, f"{stem}.cc does not define k{operator.name}"
  if made is not None:
    maker = re.search(rf"Operator {made[1]}\(const char\* name\) \{{\n(.*?)\n\}}", source, re.DOTALL)
    assert maker is not None, f"{stem}.cc does not define {made[1]}"
    row = maker[1]
    assert re.search(r"\bname,", row)
  else:
    row = own[1]
    assert f'"{operator.name}"' in row
  assert "nullptr" not in row
  cpu = re.search(r"std::make_unique<(\w+)>", row) or re.search(r"\b(Create\w*Cpu\w*)\b", row)
  cuda = re.search(r"\b(Create\w*Cuda\w*)\b", row)
  assert cpu is not None, f"k{operator.name} has no CPU kernel"
  assert cuda is not None, f"k{operator.name} has no CUDA kernel"
  assert re.search(rf"\b{cpu[1]}\b[^;]*\{{", native_of(operator, f"{stem}*.cc")), f"{cpu[1]} is not defined"
  assert re.search(rf"> {cuda[1]}\([^;{{]*const NodeInfo& info\) \{{", native_of(operator, "*_cuda.cc")), (
    f"{stem}_cuda.cc does not define {cuda[1]}"
  )
  if operator.name in LIBRARIES:
    header = f'#include "ortplugin/{LIBRARIES[operator.name]}"'
    assert header in native_of(operator, "*_cuda.*"), f"no CUDA kernel of {operator.name} has {header}"
  else:
    assert "__global__" in native(f"ops/{stem}/{kernel_of(operator)}")


def test_every_kernel_is_built():
  """CUDA files are strings in the library."""
  built = set(re.findall(r"=([\w/]+\.cuh?)", (ROOT / "cmake" / "kernels.cmake").read_text()))
  assert {path.relative_to(ROOT / "ortplugin").as_posix() for path in (ROOT / "ortplugin").rglob("*.cu*")} == built


@each_operator
def test_it_has_parity_cases(operator):
  cases = cases_of(operator)
  assert len(cases) >= 50
  covered = {array.dtype for case in cases for array in case.inputs()}
  assert DTYPES[operator.name] <= covered, f"no case has {DTYPES[operator.name] - covered}"
  assert any(0 in shape for case in cases for shape in case.shapes), "no case has an empty input"


@each_operator
def test_it_has_a_reference_a_decomposition_and_shapes(operator):
  case = next(case for case in cases_of(operator) if is_plain(case.inputs()))
  node, inputs = case.node(), case.inputs()
  outputs = operator.reference(node, inputs)
  types = operator.infer_shapes(node, [TensorType(array.dtype, array.shape) for array in inputs])
  assert [TensorType(array.dtype, array.shape) for array in outputs] == types
  assert len(outputs) == len(node.output)
  declared = onnx.load_model_from_string(case.model()).graph.output
  dtypes = [onnx.helper.tensor_dtype_to_np_dtype(each.type.tensor_type.elem_type) for each in declared]
  assert [array.dtype for array in outputs] == dtypes
  assert is_plain(outputs)
  for before, after in zip(case.inputs(), inputs, strict=True):
    assert before.tobytes() == after.tobytes()
  nodes = operator.decompose(node, 18)
  assert {each.domain for each in nodes} == {""}
  written = [name for each in nodes for name in each.output]
  assert set(node.output) <= set(written)
  assert len(set(written)) == len(written)
  for each in nodes:
    assert onnx.defs.has(each.op_type)
  with pytest.raises(ModelError, match=r"needs opset 11 or later of ai\.onnx, the model has 8"):
    operator.decompose(node, 8)
