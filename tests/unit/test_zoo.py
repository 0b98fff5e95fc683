"""What the sweep over networks says of a row."""

import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.checker
import onnx.parser
import onnx.printer
from onnx_models import parametrize, parsed

# Appended: `benchmarks` has a module of the name of a package of ours.
sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

from zoo_row import FACTOR, FLOORS, Setting, in_float32, judge, make_session

HALF = {"precision": "fp16", "error": 1e-3, "error_torch": 1e-3, "error_ort": 1e-3, "differed": 0}
SINGLE = {"precision": "fp32", "error": 1e-6, "error_ort": 1e-6, "error_tf32": 1e-3, "error_tf32_ort": 1e-3}
LIMIT = FACTOR * 1e-3 + FLOORS["fp16"]


@parametrize(
  "row, verdict",
  [
    (HALF, "right"),
    (HALF | {"error": 0.99 * LIMIT}, "right"),
    (HALF | {"error": 1.01 * LIMIT}, "wrong"),
    (HALF | {"error": float("inf")}, "wrong"),
    (HALF | {"error": float("nan")}, "wrong"),
    (HALF | {"differed": 1}, "wrong"),
    (HALF | {"modes": 1e-6}, "wrong"),
    (HALF | {"differed": 1, "differed_ort": 5}, "not judged"),
    # ONNX Runtime errs as much with the original; or less, and then it is ours.
    (HALF | {"error": 0.5, "error_ort": 0.5}, "not judged"),
    (HALF | {"error": 0.5, "error_ort": 0.1}, "wrong"),
    (HALF | {"error": 0.5, "error_ort": 1e-3}, "wrong"),
    # The exported model computed in float32 is the nearer reference.
    (HALF | {"error": 0.5, "error_exported": 0.99 * LIMIT}, "right"),
    (HALF | {"error": 0.5, "error_exported": 1.01 * LIMIT}, "wrong"),
    (HALF | {"uncaptured": "why"}, "fails"),
    (HALF | {"uncaptured": "why", "ort_uncaptured": "why"}, "right"),
    (HALF | {"ort_uncaptured": "why"}, "right"),
    (SINGLE, "right"),
    (SINGLE | {"error": 1e-3}, "wrong"),
    (SINGLE | {"error_tf32": 1e-2}, "wrong"),
    (SINGLE | {"error_tf32": 1e-2, "error_rounded": 5e-3}, "right"),
    (SINGLE | {"error_tf32": 1e-2, "error_rounded": 4e-3}, "wrong"),
    ({"precision": "fp32", "error": 1e-6, "error_ort": 1e-6}, "right"),
    ({"precision": "fp32", "error_ort": 1e-6}, "not judged"),
    # The exporter wrote another network.
    ({"precision": "fp32", "error": 0.28, "error_ort": 0.28}, "not judged"),
  ],
)
def test_the_rule(row, verdict):
  found, why = judge(row)
  assert found == verdict
  assert bool(why) == (verdict != "right")


def test_the_exported_model_in_float32():
  # Numbers of float16 are their bits: w is 1.5 and -2, k is 0.5, v is 3 and 4.
  model = parsed(
    """(float16[2] x, bool c) => (float16[2] y) <float16[2] w = {15872,49152}, int64[1] n = {2}> {
            k = float16[1] {14336}
            zeros = ConstantOfShape <value=float16[1] {0}>(n)
            whole = Cast <to=7>(x)
            back = Cast <to=10>(whole)
            sum = Add(back, w)
            more = Add(sum, zeros)
            y = If(c) <
                then () => (float16[2] a) <float16[2] v = {16896,17408}> { a = Mul(more, v) },
                else () => (float16[2] b) { b = Mul(more, k) }
            >
        }""",
    20,
    10,
  )
  wide = in_float32(model)
  onnx.checker.check_model(wide, full_check=True)
  assert "float16" not in onnx.printer.to_text(wide)
  feeds = {"x": np.float32([1, 2]), "c": np.array(False)}
  session = make_session(wide.SerializeToString(), Setting("cpu"), plugin=False)
  np.testing.assert_array_equal(session.run(None, feeds)[0], np.float32([1.25, 0]))
