"""Transposes that are views."""

import pytest
from pass_helpers import assert_unchanged, model, run_same

from ortplugin.passes.layout.transpose_views import TRANSPOSE_VIEWS


def graph(dims: str, perm: str, rank: int) -> str:
  out = ",".join("ABCDE"[:rank])
  return f"g (float[{dims}] x) => (float[{out}] y) {{ y = Transpose{f'<perm = {perm}>' if perm else ''}(x) }}"


@pytest.mark.parametrize(
  ("dims", "perm"),
  [
    ("N,1,1,7", "[0, 3, 1, 2]"),
    ("N,7,1,1", "[0, 2, 3, 1]"),
    ("N,1,7", "[0, 2, 1]"),
    ("1,N", ""),
    ("1,N,4", "[1, 0, 2]"),
    ("2,1,3,1,4", "[0, 2, 4, 1, 3]"),
  ],
)
def test_views(dims: str, perm: str) -> None:
  run_same(model(graph(dims, perm, dims.count(",") + 1)), TRANSPOSE_VIEWS, into=["Reshape"], changes=1)


@pytest.mark.parametrize(
  ("dims", "perm"),
  [
    ("N,2,1,7", "[0, 3, 1, 2]"),
    ("N,M,1", "[1, 0, 2]"),
    ("1,N,M,1,K", "[1, 2, 0, 4, 3]"),  # two unknown lengths elsewhere
    ("1,N,M", "[1, 0, 2]"),  # where M is 0, a Reshape could not tell what N is
    ("N,M,2,1", "[0, 3, 1, 2]"),
    ("N,1,7", "[0, 1, 2]"),
    ("0,1,7", "[0, 2, 1]"),
  ],
)
def test_what_stays(dims: str, perm: str) -> None:
  assert_unchanged(model(graph(dims, perm, dims.count(",") + 1)), [TRANSPOSE_VIEWS])


@pytest.mark.parametrize("length", [0, 1, 3])
@pytest.mark.parametrize("case", [("N,1,7", "[0, 2, 1]"), ("1,N,4", "[1, 0, 2]"), ("N,1,1,7", "[0, 3, 1, 2]")])
def test_views_of_nothing(case: tuple[str, str], length: int) -> None:  # RELIABILITY 16
  run_same(model(graph(*case, case[0].count(",") + 1)), TRANSPOSE_VIEWS, N=length, into=["Reshape"])


@pytest.mark.parametrize("perms", [("[2, 0, 1]", "[1, 0, 2]"), ("[2, 0, 1]", "[1, 2, 0]"), ("", "[0, 2, 1]"), ("", "")])
def test_two_become_one(perms: tuple[str, str]) -> None:
  first, last = (f"<perm = {perm}>" if perm else "" for perm in perms)
  text = f"g (float[N,4,5] x) => (float[A,B,C] y) {{ a = Transpose{first}(x)  y = Transpose{last}(a) }}"
  run_same(model(text), TRANSPOSE_VIEWS, into=["Transpose"])


def test_one_that_others_need_stays() -> None:
  text = """g (float[N,4,5] x) => (float[A,B,C] y, float[5,4,N] a) {
    a = Transpose(x)  y = Transpose<perm = [0, 2, 1]>(a) }"""
  assert_unchanged(model(text), [TRANSPOSE_VIEWS])


def around_a_split(dims: str, first: str, target: str, last: str, rank: int, outputs: str = "") -> str:
  out, count = ",".join("ABCDE"[:rank]), target.count(",") + 1
  return f"""g (float[{dims}] x) => (float[{out}] y{outputs}) <int64[{count}] s = {target}> {{
    a = Transpose<perm = {first}>(x)  b = Reshape(a, s)  y = Transpose<perm = {last}>(b) }}"""


@pytest.mark.parametrize(
  ("dims", "first", "target", "last", "expected"),
  [
    ("N,5,6,12", "[0, 3, 1, 2]", "{-1, 3, 4, 5, 6}", "[0, 3, 4, 1, 2]", ["Reshape"]),
    ("N,5,6,12", "[0, 3, 1, 2]", "{0, 3, 4, 5, 6}", "[0, 1, 3, 4, 2]", ["Reshape", "Transpose"]),
    ("N,5,6,4", "[0, 3, 1, 2]", "{0, 1, 4, 5, 6}", "[0, 3, 4, 1, 2]", ["Reshape"]),
    ("N,5,6,3", "[0, 3, 1, 2]", "{0, 3, 1, 5, 6}", "[0, 3, 4, 1, 2]", ["Reshape"]),
    ("2,1,6,3", "[0, 3, 1, 2]", "{2, 3, 1, 1, 6}", "[0, 3, 4, 1, 2]", ["Reshape"]),
    ("4,N,6", "[2, 0, 1]", "{2, 3, 4, -1}", "[3, 2, 0, 1]", ["Reshape", "Transpose"]),
  ],
)
def test_around_a_split(dims: str, first: str, target: str, last: str, expected: list[str]) -> None:
  run_same(
    model(around_a_split(dims, first, target, last, last.count(",") + 1)), TRANSPOSE_VIEWS, into=expected, changes=1
  )


@pytest.mark.parametrize(
  "text",
  [
    around_a_split("N,5,6,12", "[0, 3, 1, 2]", "{0, 3, 20, 6}", "[0, 2, 3, 1]", 4),  # splits and merges
    around_a_split("N,5,6,12", "[0, 3, 1, 2]", "{-1, 4, 5, 6}", "[0, 2, 3, 1]", 4),  # moves channels to the batch
    around_a_split("N,M,6,12", "[0, 3, 1, 2]", "{0, 3, 4, -1, 6}", "[0, 3, 4, 1, 2]", 5),  # two unknown lengths
    around_a_split("N,5,6,12", "[0, 3, 1, 2]", "{0, 3, 4, 5, 6}", "[0, 3, 4, 1, 2]", 5, ", float[F,G,H,I] a"),
  ],
)
def test_other_reshapes_stay(text: str) -> None:
  assert_unchanged(model(text), [TRANSPOSE_VIEWS])
