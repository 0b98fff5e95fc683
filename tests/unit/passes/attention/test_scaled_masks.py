import numpy as np
import pytest
from attention_helpers import assert_equal, attentions, feeds, in_float  # noqa: F401
from pass_helpers import add_weights, model, operators, parametrize, restore, run, run_pass, stays

import ortplugin
from ortplugin.optimizer.pipeline import FOLD_CONSTANTS, SCALED_MASKS

END = "d = Div(a, c)  p = Softmax<axis=-1>(d)"
ADDED, FILLED = f"a = Add(s, m)  {END}", f"a = Where(b, s, low)  {END}"
HIDDEN = "w = Where(b, zero, low)  a = Add(s, w)"
BEHIND = "d = Div(a, c)  e = Add(d, m)  p = Softmax<axis=-1>(e)"
FORMS = {
  ADDED: "Div Div Add Softmax",
  "x = Mul(s, f)  a = Add(m, x)  d = Mul(f, a)  p = Softmax<axis=-1>(d)": "Mul Mul Mul Add Softmax",
  f"{HIDDEN} {END}": "Where Div Add Softmax",
  f"w = Where(b, inf, zero)  a = Add(s, w)  {BEHIND}": "Where Div Add Add Softmax",
  f"{HIDDEN} {BEHIND}": "Where Div Div Add Add Softmax",
  f"a = Add(s, t)  {END}": "Div Add Softmax",
  FILLED: "Div Where Softmax",
  f"a = Where(b, low, s)  {END}": "Div Where Softmax",
  f"a = Where(b, s, low)  {BEHIND}": "Div Where Add Softmax",
}
WEIGHTS = {"f": 1 / 8, "c": 8, "inf": -np.inf, "zero": 0}


def graph(nodes, dtype="float", m="m[2,1,1,5]", y="y", **weights):
  made = model(
    f"(T[2,3,5,8] q, T[2,3,8,5] k, T[2,3,5,8] v, T{m[1:]} m, bool[5,5] b) => (T[any,any,any,any] {y}) {{ "
    f"s = MatMul(q, k)  {nodes}  y = MatMul(p, v) }}".replace("T[", f"{dtype}["),
    18,
  )
  to = {"float": np.float32, "float16": np.float16}[dtype]
  low = np.finfo(to).min
  weights = {"low": low, "t": np.triu(np.full((5, 5), low), 1), **WEIGHTS, **weights}
  add_weights(made, **{name: np.asarray(each, to) for name, each in weights.items()})
  return made


def same(original, optimized):
  """Also where a row of b is all true, or all false."""
  for row in (False, True):
    given = feeds(original)
    given["b"][0] = row
    assert_equal(original, optimized, given)


@parametrize("dtype", ["float", "float16"])
@parametrize("nodes", FORMS)
def test_the_factor_goes_in_front_of_the_mask(nodes, dtype):
  original = graph(nodes, dtype)
  if dtype == "float16" and BEHIND in nodes and "low" in nodes:
    stays(original, SCALED_MASKS, "once it is scaled")
    return
  optimized, _ = run_pass(original, SCALED_MASKS, FOLD_CONSTANTS)
  assert operators(optimized) == ["MatMul", *FORMS[nodes].split(), "MatMul"]
  same(original, optimized)


@parametrize("nodes", FORMS)
@pytest.mark.usefixtures("in_float")
def test_attention_takes_it(nodes):
  original = graph(nodes)
  optimized, _ = ortplugin.optimize(original)
  assert len(attentions(optimized)) == 1
  assert "Softmax" not in operators(optimized)
  same(original, optimized)


@parametrize("nodes", [f"{HIDDEN} {END}", FILLED])
def test_in_float16_the_lowest_number_hides_the_scores_of_a_whole_row(nodes):
  original = graph(nodes, "float16")
  optimized, _ = ortplugin.optimize(original)
  assert len(attentions(optimized)) == 1
  given = feeds(original)
  given["b"][0] = False
  mean = given["v"].astype(np.float64).mean(axis=-2)
  np.testing.assert_allclose(run(restore(optimized), given)[0][:, :, 0], mean, atol=2e-3)


@parametrize("nodes, reason, more", [
  (ADDED, "by 2, which is not between 0 and 1", {"c": 0.5}),
  (ADDED, "by -1, which is not", {"c": -1}),
  (ADDED, "", {"c": [[2], [3], [4], [5], [6]]}),
  (ADDED.replace("s, m", "m, m"), "", {}),
  (ADDED.replace("Softmax<axis=-1>", "Relu"), "", {}),
  (ADDED, "'m' may be as large as the scores", {"m": "m[2,3,5,5]"}),
  (ADDED, "'a' is a graph output", {"y": "y, T[2,3,5,5] a"}),
  (ADDED, "", {"y": "y, T[2,3,5,5] d"}),
  (f"w = Where(b, t, low)  a = Add(s, w)  {END}", "which is not the same once it is scaled", {"dtype": "float16"}),
  (FILLED, "'low', which is filled in, is no large negative number", {"low": -900}),
  (FILLED, "'low', which is filled in, is no large", {"low": np.nan}),
])  # fmt: skip
def test_what_stays(nodes, reason, more):
  stays(graph(nodes, **more), SCALED_MASKS, *([reason] if reason else []))
