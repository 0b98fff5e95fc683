from itertools import product

import numpy as np
from onnx_models import parametrize, parsed

from fuzz.evaluate import make_session, run
from fuzz.handmade import case_of, judged_as
from fuzz.zeros import signed


def model_of(nodes, dtype="float"):
  return parsed(f"model ({dtype}[4] x) => (y) <{dtype} zero = {{0}}> {{ {nodes} }}")


def bits(model, x):
  return run(make_session(model), {"x": x})["y"].tobytes()


@parametrize(
  "node, dtype",
  [*product(["Relu(x)", "Clip(x, zero)", "Max(x, zero)", "Min(x, zero)"], ["float", "double"]), ("Celu(x)", "float")],
)
def test_zeros_alone_have_a_sign(node, dtype):
  x = np.array([-0.0, 2.5, -np.inf, np.nan], "f4" if dtype == "float" else "f8")
  values = {"Min(x, zero)": [0, 0, -np.inf, np.nan], "Celu(x)": [0, 2.5, -1, np.nan]}.get(node, [0, 2.5, 0, np.nan])
  for negative in (False, True):
    made = signed(model_of(f"y = {node}", dtype), negative)
    wanted = np.array(values, x.dtype)
    wanted[wanted == 0] = -0.0 if negative else 0.0
    assert bits(made, x) == wanted.tobytes()


def test_what_stays():
  assert signed(model_of("y = Abs(x)"), True) is None
  assert signed(model_of("y = Max(x, zero)", "int64"), True) is None


@parametrize("sign, what", [("", "same"), ("-", "same"), ("2", "finding")])
def test_a_case(library, monkeypatch, sign, what):
  """An infinity behind a division has either sign; a number in its place is a finding."""
  texts = {
    "": "a = Abs(b) y = Div(one, a)",
    "-": "a = Abs(b) c = Neg(a) y = Div(one, c)",
    "2": "d = Sub(x, x) y = Add(d, one)",
  }
  begin = "one = float {1.0} b = Relu(x) "
  case = case_of(model_of(begin + "y = Div(one, b)"), {"x": np.full(4, -0.0, "f4")})
  assert judged_as(monkeypatch, case, model_of(begin + texts[sign])).what == what
