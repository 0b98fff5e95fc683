"""Einsums as products, and those that stay."""

import itertools
import random

import onnx
import pytest
from pass_helpers import assert_unchanged, model, run_same

from ortplugin.passes.simplify.einsum_to_matmul import EINSUM_TO_MATMUL

LENGTHS = dict(zip("bhwijkcdN", (2, 3, 4, 5, 6, 7, 8, 2, 3), strict=True))


def graph(equation: str, unknown: str = "", opset: int = 17) -> onnx.ModelProto:
  left, _, result = equation.partition("->")
  inputs = [
    f"float[{','.join(each if each in unknown else str(LENGTHS[each]) for each in term)}] x{i}"
    for i, term in enumerate(left.replace(" ", "").split(","))
  ]
  rank = len(result.strip()) if result else sum(left.count(each) == 1 for each in set(left) if each.isalpha())
  made = f"[{','.join('VWXYZ'[:rank])}]" if rank else ""
  names = ", ".join(f"x{i}" for i in range(len(inputs)))
  return model(f'g ({", ".join(inputs)}) => (float{made} y) {{ y = Einsum<equation = "{equation}">({names}) }}', opset)


CASES = {
  "ij,jk->ik": ["MatMul"],
  "ij,jk": ["MatMul"],
  "bhik,bhkj->bhij": ["MatMul"],
  "bhid,bhjd->bhij": ["Transpose", "MatMul"],
  "b h w c , k c -> b h w k": ["Transpose", "MatMul"],
  "bihd,bjhd->bhij": ["Transpose", "Transpose", "MatMul"],
  "bhij,bjhd->bihd": ["Transpose", "MatMul", "Transpose"],
  "bhwc,hkc->bhwk": ["Transpose", "Reshape", "Transpose", "MatMul", "Reshape", "Transpose"],
  "bhwc,wkc->bhwk": ["Transpose", "Reshape", "Transpose", "MatMul", "Reshape", "Transpose"],
  "kj,ik->ij": ["MatMul"],
  "jk,ki->ji": ["MatMul"],
  "bijk,jkd->bid": ["Reshape", "Reshape", "MatMul"],
  "bi,bi->b": ["Reshape", "Reshape", "MatMul", "Reshape"],
  "i,i->": ["Reshape", "Reshape", "MatMul", "Reshape"],
  "bij,bj->bi": ["Reshape", "MatMul", "Reshape"],
  "bi,j->bij": ["Reshape", "Mul"],
  "bij,ijb->jbi": ["Transpose", "Transpose", "Mul"],
  "i,j->ji": ["Reshape", "Mul"],
  "bij->jbi": ["Transpose"],
  "bij->jb": ["ReduceSum", "Transpose"],
  "ij->": ["ReduceSum", "Identity"],
}


@pytest.mark.parametrize("equation", CASES)
def test_as_other_operators(equation: str) -> None:
  run_same(graph(equation), EINSUM_TO_MATMUL, into=CASES[equation], changes=1)


@pytest.mark.parametrize(("equation", "unknown", "opset", "left"), [
  ("bhid,bhjd->bhij", "bhi", 17, ["Transpose", "MatMul"]),
  ("bhwc,hkc->bhwk", "b", 17, CASES["bhwc,hkc->bhwk"]),
  ("Nij->jN", "N", 12, ["ReduceSum", "Transpose"]),
])  # fmt: skip
def test_of_unknown_lengths(equation: str, unknown: str, opset: int, left: list[str]) -> None:
  run_same(graph(equation, unknown, opset), EINSUM_TO_MATMUL, into=left, b=2, h=3, i=5, N=3)


def test_any_order_of_any_labels() -> None:
  rng = random.Random(0)
  for left, right in itertools.product(("bhic", "ibc", "cb", "chi"), ("bhcj", "jbc", "cd", "jkc", "cbjh")):
    kept = [each for each in dict.fromkeys(left + right) if each != "c" or rng.random() < 0.2]
    both = [each for each in kept if each in left and each in right]
    kept = [each for each in kept if each not in both or rng.random() < 0.7]
    rng.shuffle(kept)
    run_same(graph(f"{left},{right}->{''.join(kept)}"), EINSUM_TO_MATMUL, changes=1)


@pytest.mark.parametrize(("equation", "reason"), [
  ("ii,ij->j", "has a label twice"),
  ("bi,j->b", "sums over an axis of one operand alone"),
  ("i,j,k->ijk", "is no product of two operands"),
])  # fmt: skip
def test_stays(equation: str, reason: str) -> None:
  assert_unchanged(graph(equation), [EINSUM_TO_MATMUL], reason)


def test_what_may_broadcast_or_is_not_known_stays() -> None:
  assert_unchanged(graph("bhwc,hkc->bhwk", "bw"), [EINSUM_TO_MATMUL], "not known well enough")
  for text in ("float[N,M] x, float[3,4] z", "float[2,3] x, float[1,4] z", "float[A,B] x, float[A,C] z"):
    original = model(f'g ({text}) => (float[D,E] y) {{ y = Einsum<equation = "ij,jk->ik">(x, z) }}')
    assert_unchanged(original, [EINSUM_TO_MATMUL], "may differ")
  original = model('g (float[2,N] x, float[N,2] z) => (float[A,B] y) { y = Einsum<equation = "...j,jk->...k">(x, z) }')
  assert_unchanged(original, [EINSUM_TO_MATMUL], "ellipsis")
  original = model('g (int32[2,3] x, int32[3,2] z) => (int32[2,2] y) { y = Einsum<equation = "ij,jk->ik">(x, z) }')
  assert_unchanged(original, [EINSUM_TO_MATMUL])
