"""Means and maxima as pools, norms as sums."""

import numpy as np
import onnx
import pytest
from pass_helpers import assert_close, assert_unchanged, model, restore, run, run_pass, run_same

from ortplugin.passes.pointwise.fuse_sum_to import FUSE_SUM_TO
from ortplugin.passes.pointwise.reductions import REDUCTIONS


def graph(
  x: str, axes: str, keeps: int = 1, op: str = "ReduceMean", dtype: str = "float16", opset: int = 17
) -> onnx.ModelProto:
  rank = x.count(",") + 1 - (0 if keeps else axes.count(",") + 1)
  text = f"g ({dtype}[{x}] x) => ({dtype}[{','.join('VWXYZ'[:rank])}] y)"
  if opset < 18:
    return model(f"{text} {{ y = {op}<axes = [{axes}], keepdims = {keeps}>(x) }}", opset)
  return model(f"{text} <int64[1] a = {{{axes}}}> {{ y = {op}<keepdims = {keeps}>(x, a) }}", opset)


@pytest.mark.parametrize("original", [
  graph("2,9,16", "1"),
  graph("N,5,6,8", "-3, -2", 0),
  graph("2,M,5,6", "-1, -2"),
  graph("2,5,6,N", "1", 0),
  graph("2,9,16", "1", 0, "ReduceMax", opset=18),
])  # fmt: skip
def test_as_a_pool(original: onnx.ModelProto) -> None:
  run_same(original, REDUCTIONS, into=["Reshape", "FusedPool", "Reshape"], changes=1)


@pytest.mark.parametrize("opset", [11, 17, 18])
@pytest.mark.parametrize("dtype", ["float", "double"])
def test_as_a_sum(dtype: str, opset: int) -> None:
  original = graph("N,4,8", "-1", opset % 2, "ReduceL2", dtype, opset)
  run_same(original, REDUCTIONS, FUSE_SUM_TO, into=["FusedSumTo", "Sqrt"])


def test_half_precision_takes_squares_that_it_does_not_hold() -> None:
  original = graph("N,4,8", "0, 1", op="ReduceL2")
  optimized, _ = run_pass(original, REDUCTIONS, FUSE_SUM_TO, into=["FusedSumTo", "Sqrt", "Cast"])
  x = np.full((2, 4, 8), 1000, np.float16)
  assert_close(np.full((1, 1, 8), 1000 * np.sqrt(8), np.float16), run(restore(optimized), {"x": x})[0])


@pytest.mark.parametrize(("original", "reason"), [
  (graph("2,9,16", "1", dtype="float"), ""),
  (graph("2,9,16", "0"), "not side by side after the first"),
  (graph("2,3,9,16", "1, 3"), "not side by side after the first"),
  (graph("2,N,16", "1"), "and known"),
  (graph("N,M,5,6,7", "3"), "not known well enough"),
  (model("g (float[N,4] x, int64[1] a) => (float[B,C] y) { y = ReduceL2(x, a) }", 18), "not constant"),
  (model("g (float[N,4] x) => (float[B,C] y) { y = ReduceL2<noop_with_empty_axes = 1>(x) }", 18), "or none"),
])  # fmt: skip
def test_stays(original: onnx.ModelProto, reason: str) -> None:
  assert_unchanged(original, [REDUCTIONS], *filter(None, [reason]))
