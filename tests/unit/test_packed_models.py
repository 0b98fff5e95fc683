"""Archives of exported models: what is made short, and that nothing else changes on the way in and out."""

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import pytest
from onnx_models import parsed

from models.names import BACK, NEXT, pack_names, shorten_names, unpack_names
from models.packed import pack, shorten, shorten_weights, unpack

TEXT = """g (float[2,64] x, bool c) => (float[2,64] y) {
    long_name = Gemm(x, w, b)  t = Add(long_name, mask)
    y = If (c) <then_branch = a () => (float[2,64] p) { p = Relu(t) },
                else_branch = n () => (float[2,64] q) { q = Neg(t) }>
}"""


def example(dtype="float32"):
  rng = np.random.default_rng(0)
  arrays = {"w": rng.standard_normal((64, 64)), "b": rng.uniform(0.5, 2, 64), "mask": np.eye(2, 64) - 1}
  weights = {name: array.astype(dtype) for name, array in arrays.items()}
  made = parsed(TEXT.replace("float[", "float16[") if dtype == "float16" else TEXT, weights=weights)
  onnx.checker.check_model(made, full_check=True)
  return made


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_weights_are_short_and_like_those_before(dtype):
  original, short = example(dtype), example(dtype)
  shorten_weights(short)
  once = short.SerializeToString(deterministic=True)
  shorten_weights(short)
  assert short.SerializeToString(deterministic=True) == once
  w, b, mask = (onnx.numpy_helper.to_array(each) for each in short.graph.initializer)
  assert abs(w.mean()) < 0.1
  assert 0.8 < w.std() < 1.2
  assert len(np.unique(w)) > 1000
  assert b.min() >= 0.5
  assert (mask == onnx.numpy_helper.to_array(original.graph.initializer[2])).all()


def test_an_archive_gives_back_what_it_was_given(tmp_path):
  short = example()
  shorten_weights(short)
  half = example("float16")
  shorten_weights(half)
  given = {"whole.onnx": example(), "inner/short.onnx": short, "half.onnx": half}
  (tmp_path / "in" / "inner").mkdir(parents=True)
  for name, each in given.items():
    (tmp_path / "in" / name).write_bytes(each.SerializeToString(deterministic=True))
  (tmp_path / "in" / "said.json").write_text("{}")
  pack(tmp_path / "in", tmp_path / "a.tar.xz")
  unpack(tmp_path / "out", tmp_path / "a.tar.xz")
  for name in (*given, "said.json"):
    assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "in" / name).read_bytes()
  (tmp_path / "in" / "whole.onnx").unlink()
  pack(tmp_path / "in", tmp_path / "b.tar.xz")
  assert (tmp_path / "b.tar.xz").stat().st_size < 2000 < (tmp_path / "a.tar.xz").stat().st_size


def test_names_in_bodies_follow():
  made = example()
  shorten(made)
  onnx.checker.check_model(made, full_check=True)
  gemm, add, branches = made.graph.node
  assert gemm.output[0] == add.input[0] != "long_name"
  assert {attribute.g.node[0].input[0] for attribute in branches.attribute} == {add.output[0]}
  assert ([each.name for each in made.graph.input], branches.output[0]) == (["x", "c"], "y")


def test_names_inside_an_archive_tell_how_far_back_they_are():
  made = example()
  made.graph.node[0].input[1] = made.graph.initializer[0].name = "_00"  # no number as they are given
  pack_names(made)
  unpack_names(made)
  assert made.graph.node[0].input[1] == "_00"
  for nodes in (False, True):
    made = example()
    shorten_names(made, nodes)
    given = made.SerializeToString(deterministic=True)
    pack_names(made)
    gemm, add, _ = made.graph.node
    assert list(gemm.input) == ["x", NEXT, NEXT]
    assert (list(gemm.output), list(add.input)) == ([NEXT], [f"{BACK}1", NEXT])
    assert gemm.name == add.name == (NEXT if nodes else "")
    unpack_names(made)
    assert made.SerializeToString(deterministic=True) == given
  made.graph.node[1].input[1] = f"{BACK}1"
  with pytest.raises(ValueError, match="rename the value"):
    pack_names(made)
