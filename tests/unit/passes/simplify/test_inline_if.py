import numpy as np
from onnx import numpy_helper
from pass_helpers import add_weights, model, operators, parametrize, run_pass, run_same, stays

from ortplugin.optimizer.pipeline import INLINE_IF


def conditional(
  condition="c = bool {1}", then="t = Neg(a)", other="e = Abs(a)", rest="y = Exp(r)", inputs="", outputs="float[3,4] y"
):
  return model(f"""(float[3,4] x{inputs}) => ({outputs}) {{ {condition}  a = Sin(x)
        r = If(c) <then () => (float[3,4] t) {{ {then} }},
                    else () => (float[3,4] e) {{ {other} }}>  {rest} }}""")


@parametrize("value, expected", [(1, "Sin Neg Exp"), (0, "Sin Abs Exp")])
def test_the_branch_that_is_taken(value, expected):
  run_same(conditional(f"c = bool {{{value}}}"), INLINE_IF, into=expected, changes=1)


FORMS = {
  "a condition of shape [1]": conditional("c = bool[1] {1}"),
  "several nodes": conditional(then="b = Neg(a)  d = Mul(b, a)  t = Sub(d, b)"),
  "the output of the model": conditional(rest="", outputs="float[3,4] r"),
  "an outer value as it is": conditional(then="t = Identity(a)"),
  "used in a body too": conditional(
    inputs=", bool p",
    rest="""y = If(p) <then () => (float[3,4] u) { u = Neg(r) },
                            else () => (float[3,4] v) { v = Abs(a) }>""",
  ),
  "with a body in it": conditional(
    inputs=", bool p",
    then="""b = Neg(a)  t = If(p) <then () => (float[3,4] u) { u = Neg(b) },
                                        else () => (float[3,4] v) { v = Abs(b) }>""",
  ),
  "one in the branch that goes": conditional(
    other="""k = bool {0}
            e = If(k) <then () => (float[3,4] u) { u = Neg(a) },
                        else () => (float[3,4] v) { v = Abs(a) }>"""
  ),
  "one in the other": conditional(
    then="""b = Neg(a)  k = bool {0}
            t = If(k) <then () => (float[3,4] u) { u = Neg(b) },
                        else () => (float[3,4] v) { v = Abs(b) }>"""
  ),
}


@parametrize("form", FORMS)
def test_every_form(form):
  original = FORMS[form]
  original.graph.input[0].name = "x"
  optimized, result = run_same(original, INLINE_IF)
  assert result.changes
  assert operators(optimized).count("If") == operators(original).count("If") - 1 + (form == "with a body in it")
  assert [each.name for each in optimized.graph.output] == [each.name for each in original.graph.output]


def test_constants_of_the_branch_move_with_it(rng):
  original = conditional(then="t = Mul(a, w)", other="e = Add(a, w2)")
  for branch, name in zip(original.graph.node[2].attribute, ("w", "w2"), strict=True):
    branch.g.initializer.append(numpy_helper.from_array(rng.random((3, 4), np.float32), name))
  optimized, _ = run_same(original, INLINE_IF, into="Sin Mul Exp")
  assert len(optimized.graph.initializer) == 1


def test_names_that_another_body_has_too():
  """Two Ifs may use the same names in their branches; outside each value has one of its own."""
  original = """(float[3,4] x) => (y) { c = bool {1}
        r = If(c) <then () => (float[3,4] t) { b = Neg(x)  t = Neg(b) },
                    else () => (float[3,4] e) { e = Abs(x) }>
        y = If(c) <then () => (float[3,4] t) { b = Sin(r)  t = Exp(b) },
                    else () => (float[3,4] e) { e = Abs(r) }> }"""
  run_same(original, INLINE_IF, into="Neg Neg Sin Exp", changes=2)
  run_same(original, INLINE_IF, limit=1, into="Neg Neg If")


def test_several_outputs():
  original = """(float[3,4] x) => (y, z) { c = bool {0}
        y, s = If(c) <then () => (float[3,4] t, u) { t = Neg(x)  u = Abs(x) },
                       else () => (float[3,4] e, f) { f = Sin(x)  e = Exp(f) }>
        z = Neg(s) }"""
  run_same(original, INLINE_IF, into="Sin Exp Neg")


def test_inside_a_body():
  original = """(float[3,4] x) => (y) {
        n = int64 {2}  o = bool {1}
        y = Loop(n, o, x) <body = b (int64 k, bool c, float[3,4] a) => (bool d, float[3,4] z) { d = Identity(c)
            p = bool {0}  z = If(p) <then () => (float[3,4] t) { t = Neg(a) },
                        else () => (float[3,4] e) { e = Abs(a) }> }> }"""
  optimized, _ = run_same(original, INLINE_IF)
  assert operators(optimized.graph.node[-1].attribute[0].g) == ["Identity", "Abs"]


def test_an_output_of_another_shape_stays():
  """TorchScript declares the shape that the other branch would give, which the If hides."""
  original = """(float[3,4] x) => (float[12] y) { c = bool {0}
        y = If(c) <then () => (float[12] t) { s = {-1}  t = Reshape(x, s) },
                    else () => (float[3,4] e) { e = Abs(x) }> }"""
  stays(original, INLINE_IF)


def test_a_condition_at_run_time_stays():
  stays(conditional("", inputs=", bool c"), INLINE_IF)


def test_a_condition_that_a_caller_may_override_stays():
  original = conditional("", inputs=", bool c")
  add_weights(original, c=True)
  stays(original, INLINE_IF)


def test_an_output_that_the_branch_takes_from_outside_stays():
  """It would have to be two things by one name."""
  original = """(float[3,4] x) => (a, r) { c = bool {1}  a = Sin(x)
        r = If(c) <then () => (float[3,4] t) { t = Identity(a) },
                    else () => (float[3,4] e) { e = Abs(a) }> }"""
  optimized, _ = run_pass(original, INLINE_IF, into="Sin Identity")
  assert [each.name for each in optimized.graph.output] == ["a", "r"]
