import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import helper
from pass_helpers import built, operators, parametrize, same_outputs

from ortplugin import optimize
from ortplugin.errors import ModelError
from ortplugin.model.checks import HEAVY
from ortplugin.model.inline import inline_functions

NORM = """<local>
norm <eps: float = 0.5, axis> (x, w) => (y) {
  s = local.square(x)
  m = ReduceMean<axes: ints=@axis, keepdims=1>(s)
  e = Constant<value_float: float=@eps>()
  v = Add(m, e)
  d = Sqrt(v)
  n = Div(x, d)
  y = Mul(n, w)
}
<local>
square (x) => (y) { y = Mul(x, x) }
"""


LOCAL = '<domain: "local", opset_import: ["" : 17, "local" : 1]>'


def model(nodes, functions, imports='"" : 17, "local" : 1'):
  return onnx.parser.parse_model(f"""<ir_version: 10, opset_import: [{imports}]>
    g (float[2,8] x, bool m) => (float[2,8] y) <float[8] w = {{1, 2, 3, 4, 5, 6, 7, 8}}> {{ {nodes} }}
    {functions.replace("<local>", LOCAL)}""")


def test_nested_calls_in_bodies_too():
  original = model(
    """a = local.norm<eps=0.25, axis=[-1]>(x, w)
        b = local.norm<axis=[0]>(a, w)
        y = If(m) <then_branch = t () => (float[2,8] r) { r = local.norm<axis=[-1]>(b, w) },
                    else_branch = e () => (float[2,8] s) { s = Neg(b) }>""",
    NORM,
  )
  before = original.SerializeToString()
  result, calls, misses = inline_functions(original)
  assert calls == {"local::norm": 3}
  assert not misses
  assert not result.functions
  assert {node.domain for node in result.graph.node} == {""}
  assert original.SerializeToString() == before
  same_outputs(original, result)


def test_passes_see_their_operators():
  """A normalisation in a function, whose weights are the graph's, is fused with what the graph adds."""
  original = model("a = local.norm<eps=0.25, axis=[-1]>(x, w) b = Relu(a) y = Add(b, x)", NORM)
  optimized, report = optimize(original, verify=True)
  assert report.functions == {"local::norm": 1}
  assert report.fused
  assert not optimized.functions
  assert "local::norm" in report.before
  assert "local::norm" not in report.after
  same_outputs(original, optimized)


def test_nothing_to_rewrite_leaves_calls():
  original = model("y = local.shift(x)", "<local> shift (x) => (y) { y = Softmax(x) }")
  optimized, report = optimize(original)
  assert optimized.SerializeToString() == original.SerializeToString()
  assert not report.functions
  assert optimize(original, limit=0)[0].SerializeToString() == original.SerializeToString()
  assert inline_functions(onnx.ModelProto()) == (onnx.ModelProto(), {}, [])


def test_versions_and_domains_of_functions():
  """Sqrt is the same in versions 13 and 17; the model itself does not import the domain of Gelu."""
  original = model(
    "a = local.root(x) y = local.gelu(a)",
    """<domain: "local", opset_import: ["" : 13]>
      root (x) => (y) { z = Mul(x, x) y = Sqrt(z) }
      <domain: "local", opset_import: ["com.microsoft" : 1]>
      gelu (x) => (y) { y = com.microsoft.Gelu(x) }""",
  )
  result, calls, misses = inline_functions(original)
  assert calls == {"local::root": 1, "local::gelu": 1}
  assert not misses
  assert operators(result) == ["Mul", "Sqrt", "Gelu"]
  same_outputs(original, result)


def test_inputs_that_a_call_leaves_out():
  original = model(
    "l = Constant<value_float=0.0>() a, b = local.both(x, l) c, d = local.both(b) y = Add(a, d)",
    """<local>
      both (x, low, high) => (y, z) { y = Clip(x, low, high) z = Neg(y) }""",
  )
  result, _, misses = inline_functions(original)
  assert not misses
  same_outputs(original, result)


OTHER = '"" : 17, "local" : 1, "ai.onnx.ml" : 3'
STAYS = {
  "another version": (
    "a = local.odd(x) y = local.square(a)",
    """<domain: "local", opset_import: ["" : 17, "ai.onnx.ml" : 2, "local" : 1]>
      odd (x) => (y) { z = local.square(x) y = ai.onnx.ml.Scaler<offset=[1.0], scale=[2.0]>(z) }
      <local> square (x) => (y) { y = Mul(x, x) }""",
    OTHER,
    "the function 'local::odd' imports version 2 of the domain 'ai.onnx.ml', the model version 3",
  ),
  "an operator of ONNX": (
    "y = Relu(x)",
    '<domain: "", opset_import: ["" : 17]> Relu (x) => (y) { y = Neg(x) }',
    OTHER,
    "ONNX Runtime may have an operator of the name of the function '::Relu'",
  ),
  "an operator of ONNX Runtime": (
    "y = com.microsoft.Gelu(x)",
    '<domain: "com.microsoft", opset_import: ["" : 17]> Gelu (x) => (y) { y = Neg(x) }',
    '"" : 17, "com.microsoft" : 1',
    "ONNX Runtime may have an operator of the name of the function 'com.microsoft::Gelu'",
  ),
  "an attribute that is passed on and left out": (
    "y = local.outer(x)",
    """<local>
      outer <a> (x) => (y) { y = local.inner<e: float = @a>(x) }
      <local>
      inner <e: float = 0.5> (x) => (y) { y = LeakyRelu<alpha: float=@e>(x) }""",
    OTHER,
    "the function 'local::outer' passes on the attribute 'a', which calls may leave out",
  ),
}


@parametrize("name", STAYS)
def test_near_misses(name):
  nodes, functions, imports, reason = STAYS[name]
  original = model(nodes, functions, imports)
  result, calls, misses = inline_functions(original)
  assert result is original
  assert not calls
  assert {miss.rewrite for miss in misses} == {"inline-functions"}
  assert all(reason in miss.reason for miss in misses)
  optimized, report = optimize(original, verify=True)
  assert report.passed
  assert set(misses) <= set(report.near_misses)
  same_outputs(original, optimized)


def test_training_information_keeps_functions():
  original = model("y = local.f(x)", "<local> f (x) => (y) { y = Neg(x) }")
  original.training_info.add().algorithm.name = "step"
  result, _, (miss,) = inline_functions(original)
  assert result is original
  assert "training information" in miss.reason


def test_overloads():
  original = model(
    "a = local.f(x) y = local.f(a)",
    """<local> f (x) => (y) { y = Neg(x) }
      <local> f (x) => (y) { y = Abs(x) }""",
  )
  original.functions[1].overload = original.graph.node[1].overload = "second"
  result, calls, _ = inline_functions(original)
  assert calls == {"local::f": 2}
  assert operators(result) == ["Neg", "Abs"]


def test_names_that_a_model_describes_but_does_not_make():
  """The inliner may invent such a name for a value of another type."""
  function = "<local> f (x) => (y) { z = Neg(x) y = Abs(z) }"
  original = model("y = local.f(x)", function)
  invented = inline_functions(original)[0].graph.node[0].output[0]
  for name in (invented, "y"):
    original.graph.value_info.append(helper.make_tensor_value_info(name, 7 if name == invented else 1, [2, 8]))
  result, _, _ = inline_functions(original)
  assert [each.name for each in result.graph.value_info] == ["y"]
  same_outputs(original, result)


def test_functions_that_can_be_skipped():
  original = model("a = local.norm<axis=[-1]>(x, w) b = Relu(a) y = Add(b, x)", NORM)
  optimized, report = optimize(original, skip=["inline-functions"])
  assert not report.functions
  assert "norm" in operators(optimized)


def shared(calls, depth):
  """Functions f0 to f<depth>, each but the first calling the one before so many times."""
  functions = ["<local> f0 (x) => (y) { y = Neg(x) }"]
  for number in range(1, depth + 1):
    body = " ".join(f"v{i + 1} = local.f{number - 1}(v{i})" for i in range(calls))
    functions.append(f"<local> f{number} (v0) => (v{calls}) {{ {body} }}")
  return model(f"y = local.f{depth}(x)", "\n".join(functions))


CYCLE = """<local> f (x) => (y) { z = local.g(x) y = Neg(z) }
<local> g (x) => (y) { z = local.f(x) y = Neg(z) }"""


@parametrize(
  "original, reason",
  [
    (shared(2, 40), "its local functions stand for [0-9]{13} nodes, more than 1048576: export"),
    (shared(1, 70), "its local functions call each other more than 64 deep"),
    (model("y = local.f(x)", CYCLE), "its local function 'local::f' calls itself"),
  ],
)
def test_functions_that_stand_for_too_much_are_refused(original, reason):
  """Shape inference would never end."""
  with pytest.raises(ModelError, match=reason):
    inline_functions(original)
  with pytest.raises(ModelError):
    optimize(original)


def test_many_small_functions():
  result, calls, _ = inline_functions(shared(2, 10))
  assert calls == {"local::f10": 1}
  assert operators(result) == ["Neg"] * 1024


@parametrize("overridable", [False, True])
def test_large_weights_stay_where_they_are(overridable, rng):
  width = HEAVY // 4 + 8
  function = onnx.parser.parse_function(LOCAL + " scale (x, w) => (y) { z = Mul(x, w) y = Neg(z) }")
  node = helper.make_node("scale", ["x", "w"], ["y"], "call", domain="local")
  inputs, weights = f"float[1,{width}] x" + f", float[{width}] w" * overridable, rng.standard_normal(width, np.float32)
  original = built([node], inputs, f"float[1,{width}] y", 17, 10, domains=["local"], weights={"w": weights})
  original.functions.append(function)
  result, calls, _ = inline_functions(original)
  assert calls == {"local::scale": 1}
  assert result.graph.input == original.graph.input
  assert result.graph.initializer == original.graph.initializer
  same_outputs(original, result)
