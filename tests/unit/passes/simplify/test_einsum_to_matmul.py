"""Einsums as products, and those that stay."""

import itertools
import random

import onnx
import pytest
from pass_helpers import assert_unchanged, model, run_same

from ortplugin.passes.simplify.einsum_to_matmul import EINSUM_TO_MATMUL

LENGTHS = dict(zip("bhwijkcdN", (2, 3, 4, 5, 6, 7, 8, 2, 3), strict=True))


def graph(equation: str, unknown: str = "", dtype: str = "float") -> onnx.ModelProto:
  left, _, result = equation.partition("->")
  inputs = [
    f"{dtype}[{','.join(each if each in unknown else str(LENGTHS[each]) for each in term)}] x{i}"
    for i, term in enumerate(left.replace(" ", "").split(","))
  ]
  rank = len(result.replace(" ", "")) if result else sum(left.count(each) == 1 for each in set(left) - {","})
  made, names = f"[{','.join('VWXYZ'[:rank])}]" if rank else "", ", ".join(f"x{i}" for i in range(len(inputs)))
  return model(f'g ({", ".join(inputs)}) => ({dtype}{made} y) {{ y = Einsum<equation = "{equation}">({names}) }}')


BATCHED = ["Transpose", "Reshape", "Transpose", "MatMul", "Reshape", "Transpose"]
CASES = {
  "ij,jk": ["MatMul"],
  "kj,ik->ij": ["MatMul"],
  "b h w c , k c -> b h w k": ["Transpose", "MatMul"],
  "bhid,bhjd->bhij": ["Transpose", "MatMul"],
  "bihd,bjhd->bhij": ["Transpose", "Transpose", "MatMul"],
  "bhij,bjhd->bihd": ["Transpose", "MatMul", "Transpose"],
  "bhwc,hkc->bhwk": BATCHED,
  "bijk,jkd->bid": ["Reshape", "Reshape", "MatMul"],
  "bi,bi->b": ["Reshape", "Reshape", "MatMul", "Reshape"],
  "i,i->": ["Reshape", "Reshape", "MatMul", "Reshape"],
  "bij->jbi": ["Transpose"],
}


@pytest.mark.parametrize("equation", CASES)
def test_as_other_operators(equation: str) -> None:
  run_same(graph(equation), EINSUM_TO_MATMUL, into=CASES[equation], changes=1)


def test_of_unknown_lengths() -> None:
  run_same(graph("bhid,bhjd->bhij", "bhi"), EINSUM_TO_MATMUL, into=["Transpose", "MatMul"], b=2, h=3, i=5)
  run_same(graph("bhwc,hkc->bhwk", "b"), EINSUM_TO_MATMUL, into=BATCHED, b=2)


def test_any_order_of_any_labels() -> None:
  rng = random.Random(0)
  for left, right in itertools.product(("bhic", "ibc", "cb", "chi"), ("bhcj", "jbc", "cd", "jkc", "cbjh")):
    kept = [each for each in dict.fromkeys(left + right) if each != "c"]
    kept = [each for each in kept if not (each in left and each in right) or rng.random() < 0.7]
    rng.shuffle(kept)
    run_same(graph(f"{left},{right}->{''.join(kept)}"), EINSUM_TO_MATMUL, changes=1)


@pytest.mark.parametrize(("original", "reason"), [
  (graph("ii,ij->j"), "with a label twice"),
  (graph("i,j,k->ijk"), "more than two operands"),
  (graph("bi,ij->b"), "over ['j'] of one operand"),
  (graph("bi,bj->bij"), "sums over no axis of both"),
  (graph("bhwc,hkc->bhwk", "bw"), "not known well enough"),
  (model(
      'g (float[N,M] x, float[3,4] z) => (float[D,E] y) { y = Einsum<equation = "ij,jk->ik">(x, z) }'), "may differ"),
  (graph("ij,jk->ik", dtype="int32"), ""),
])  # fmt: skip
def test_stays(original: onnx.ModelProto, reason: str) -> None:
  assert_unchanged(original, [EINSUM_TO_MATMUL], *filter(None, [reason]))
