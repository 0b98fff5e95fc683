"""Pads on views of which the last two axes are padded."""

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from pass_helpers import assert_unchanged, model, run_same

from ortplugin.passes.simplify.flat_pad import FLAT_PAD


def graph(x: str, pads: Sequence[int], mode: str = "constant", before: str = "Relu", more: str = "") -> onnx.ModelProto:
  original = model(
    f"""g (float{x} x) => (float[{",".join("ABCDE"[: x.count(",") + 1])}] y) {{
    a = {before}(x)  b = Pad<mode = "{mode}">(a, p{more})  y = Neg(b) }}""",
    18,
  )
  original.graph.initializer.append(numpy_helper.from_array(np.asarray(pads, np.int64), "p"))
  original.graph.initializer.append(numpy_helper.from_array(np.float32(-7), "seven"))
  original.graph.initializer.append(numpy_helper.from_array(np.asarray([-2, 1], np.int64), "axes"))
  return original


VIEWED = ["Relu", "Reshape", "Pad", "Reshape", "Neg"]
TWICE = ["Relu", "Reshape", "Pad", "Reshape", "Pad", "Reshape", "Neg"]
CASES = {
  "channels last": (graph("[2,16,16,64]", [0, 1, 3, 0, 0, 2, 0, 0]), VIEWED),
  "of any number": (graph("[N,16,16,64]", [0, 1, 3, 0, 0, 2, 0, 0]), VIEWED),
  "of any length, with a value": (graph("[N,4,3000]", [1, 0, 0, 0, 2, 0], more=", seven"), VIEWED),
  "by given axes": (graph("[2,16,16,64]", [3, 1, -2, 0], more=", seven, axes"), VIEWED),
  "the first axis": (graph("[16,32,64]", [1, 0, 0, 0, 0, 0]), VIEWED),
  "the only axis": (graph("[16384]", [1, 2]), VIEWED),
  "the outer axes": (graph("[3,9,10,64]", [1, 0, 0, 2, 0, 0, 0, 3]), VIEWED),
  "cut off and added": (graph("[2,20,20,64]", [0, -1, 3, 0, 0, 2, -3, 0]), VIEWED),
  "three axes": (graph("[2,8,16,16,8]", [0, 1, 2, 3, 0, 0, 3, 2, 1, 0]), TWICE),
  "five axes": (graph("[2,8,16,16,8]", [1, 1, 2, 3, 1, 1, 3, 2, 1, 1]), [*TWICE[:-1], "Pad", "Reshape", "Neg"]),
  "reflected": (graph("[2,16,16,64]", [0, 1, 3, 0, 0, 2, 0, 0], "reflect"), TWICE),
  "reflected, one axis of any length": (graph("[4,any,16,128]", [0, 1, 0, 0, 0, 2, 0, 0], "reflect"), VIEWED),
  "edges": (graph("[2,2,16,16,64]", [0, 0, 1, 3, 0, 0, 0, 2, 0, 0], "edge"), TWICE),
  "edges of the last axes of five": (graph("[2,2,4,32,64]", [0, 0, 0, 3, 1, 0, 0, 0, 0, 2], "edge"), VIEWED),
  "behind a Transpose": (graph("[64,2,20,20]", [0, 0, 1, 2, 0, 0, 3, 0], before="Transpose<perm = [1, 0, 2, 3]>"),
                         ["Transpose", *VIEWED[1:]]),
  "a plane behind a Transpose": (graph("[20,64,20]", [0, 1, 2, 0, 3, 0], before="Transpose<perm = [1, 0, 2]>"),
                                 ["Transpose", *VIEWED[1:]]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_on_a_view(case: str) -> None:
  original, left = CASES[case]
  optimized, _ = run_same(original, FLAT_PAD, into=left, changes=1)
  fast = {each.name: numpy_helper.to_array(each) for each in optimized.graph.initializer}
  for node in optimized.graph.node:
    if node.op_type == "Pad":
      pads = fast[node.input[1]].reshape(2, -1)
      assert pads.shape[1] <= 4 and not pads[:, :-2].any()  # noqa: PT018


STAY = {
  "an image with channels first": (graph("[2,64,16,16]", [0, 0, 1, 3, 0, 0, 2, 0]), ""),
  "reflected rows": (graph("[64,16,16]", [0, 1, 3, 0, 2, 0], "reflect"), ""),
  "few elements": (graph("[2,8,8,64]", [0, 1, 3, 0, 0, 2, 0, 0]), ""),
  "wrapped": (graph("[2,16,16,64]", [0, 1, 3, 0, 0, 2, 0, 0], "wrap"), "its mode is wrap"),
  "reflected after a cut": (graph("[2,20,20,64]", [0, -1, 3, 0, 0, 2, 0, 0], "reflect"), "it cuts off"),
  "two unknown lengths": (graph("[N,rows,16,640]", [0, 3, 0, 0, 0, 0, 0, 0]), "not known well enough"),
  "unknown lengths behind a padded axis": (graph("[64,16,M,64]", [0, 1, 0, 0, 0, 0, 0, 0]), "not known well enough"),
}


@pytest.mark.parametrize("case", STAY)
def test_stays(case: str) -> None:
  original, reason = STAY[case]
  assert_unchanged(original, [FLAT_PAD], *filter(None, [reason]))


@pytest.mark.parametrize("ends", ["b = Pad(x, p)  y = Neg(b)", "a = Relu(x)  y = Pad(a, p)"])
def test_no_copies_at_the_ends_of_the_graph(ends: str) -> None:
  pads = "int64[8] p = {0, 1, 3, 0, 0, 2, 0, 0}"
  original = model(f"g (float[2,16,16,64] x) => (float[A,B,C,D] y) <{pads}> {{ {ends} }}")
  assert_unchanged(original, [FLAT_PAD], "would copy")
