"""Every operator of the table is whole: reference, decomposition, shapes, CPU kernel, CUDA kernel, parity cases, tests.

A new operator starts by adding its line to CASES here; what is then still missing fails by name.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import layer_norm_cases
import numpy as np
import onnx
import pointwise_cases
import pytest
import sum_to_cases

from ortplugin.ops import DOMAIN, OPERATORS, Operator, TensorType, find
from ortplugin.ops.decompose import NUMPY_DTYPES
from ortplugin.program import FLOATING

ROOT = Path(__file__).resolve().parent.parent.parent

# operator: the module of its parity cases, which has CASES. The module's name gives the operator's stem.
CASES: dict[str, ModuleType] = {
    "FusedLayerNorm": layer_norm_cases,
    "FusedPointwise": pointwise_cases,
    "FusedSumTo": sum_to_cases,
}

# The benchmark, where it is named after its workload.
BENCHMARKS = {"FusedSumTo": "lerp"}

each_operator = pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.name)


def stem_of(operator: Operator) -> str:
    """'layer_norm': what its folder, kernels, tests and benchmark are named after."""
    return CASES[operator.name].__name__.rpartition(".")[2].removesuffix("_cases")


def native(path: str) -> str:
    return (ROOT / "ortplugin" / path).read_text()


def test_the_tables_have_the_same_operators() -> None:
    names = [operator.name for operator in OPERATORS]
    assert names == list(CASES)
    assert len(set(names)) == len(names)
    rows = re.search(r"kOperators\[\] = \{(.*?)\};", native("runtime/registry.cc"), re.DOTALL)
    assert rows is not None
    assert re.findall(r"&k(\w+),", rows[1]) == names, (
        "runtime/registry.cc has other rows than ortplugin/ops/__init__.py"
    )


@each_operator
def test_it_is_found(operator: Operator) -> None:
    assert find(DOMAIN, operator.name) is operator
    assert operator.domain == DOMAIN
    assert operator.version >= 1
    assert operator.summary


@each_operator
def test_it_has_its_files(operator: Operator) -> None:
    stem = stem_of(operator)
    for path in (
        f"ortplugin/ops/{stem}/__init__.py",
        f"ortplugin/ops/{stem}/reference.py",
        f"ortplugin/ops/{stem}/{stem}.h",
        f"ortplugin/ops/{stem}/{stem}.cc",
        f"ortplugin/ops/{stem}/{stem}_cuda.cc",
        f"ortplugin/ops/{stem}/{stem}.cu",
        f"tests/ort/test_{stem}.py",
        f"tests/gpu/test_{stem}.py",
        f"benchmarks/{BENCHMARKS.get(operator.name, stem)}.py",
    ):
        assert (ROOT / path).is_file(), f"{operator.name} lacks {path}"


@each_operator
def test_it_has_native_kernels_for_both_providers(operator: Operator) -> None:
    """One row of runtime/ort.h's `Operator`: name, shape inference, CPU kernel, CUDA kernel."""
    stem = stem_of(operator)
    row = re.search(rf"const Operator k{operator.name} = \{{\n(.*?)\n\}};", native(f"ops/{stem}/{stem}.cc"), re.DOTALL)
    assert row is not None, f"{stem}.cc does not define k{operator.name}"
    assert f'"{operator.name}"' in row[1]
    assert "nullptr" not in row[1]
    cpu = re.search(r"std::make_unique<(\w+)>", row[1]) or re.search(r"\b(Create\w*Cpu\w*)\b", row[1])
    cuda = re.search(r"\b(Create\w*Cuda\w*)\b", row[1])
    assert cpu is not None, f"k{operator.name} has no CPU kernel"
    assert cuda is not None, f"k{operator.name} has no CUDA kernel"
    assert f"{cuda[1]}(const NodeInfo& info)" in native(f"ops/{stem}/{stem}_cuda.cc")
    assert "__global__" in native(f"ops/{stem}/{stem}.cu")


@each_operator
def test_it_is_built(operator: Operator) -> None:
    stem = stem_of(operator)
    build = (ROOT / "CMakeLists.txt").read_text() + (ROOT / "cmake" / "kernels.cmake").read_text()
    for file in (f"{stem}.cc", f"{stem}_cuda.cc", f"{stem}.cu"):  # the last as a string in the library
        assert re.search(rf"ops\}}?/{stem}/{re.escape(file)}\b", build), f"{file} is not built"


@each_operator
def test_it_has_parity_cases(operator: Operator) -> None:
    cases = CASES[operator.name].CASES
    assert {case.node().op_type for case in cases} == {operator.name}
    covered = {parameter.dtype for case in cases for parameter in case.program.parameters}
    assert set(FLOATING) <= covered, f"no case has {set(FLOATING) - covered}"
    assert any(0 in shape for case in cases for shape in case.shapes), "no case has an empty input"


@each_operator
def test_it_has_a_reference_a_decomposition_and_shapes(operator: Operator) -> None:
    case = CASES[operator.name].CASES[0]
    node, inputs = case.node(), case.inputs()
    outputs = operator.reference(node, inputs)
    types = operator.infer_shapes(node, [TensorType(array.dtype, array.shape) for array in inputs])
    assert [TensorType(array.dtype, array.shape) for array in outputs] == types
    assert [array.dtype for array in outputs] == [NUMPY_DTYPES[result.dtype] for result in case.program.results]
    assert all(np.isfinite(array.astype(np.float64)).all() for array in outputs)
    nodes = operator.decompose(node, 18)
    assert {each.domain for each in nodes} == {""}
    written = [name for each in nodes for name in each.output]
    assert set(node.output) <= set(written)
    assert len(set(written)) == len(written)
    for each in nodes:
        assert onnx.defs.has(each.op_type)
