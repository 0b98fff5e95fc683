import numpy as np
from pass_helpers import add_weights, model, parametrize, run_same, stays

from ortplugin.optimizer.pipeline import COMMON_SUBEXPRESSIONS


def test_two_subs_of_old_torchscript():
  original = """(float[N,8] x) => (y) {
    m1 = ReduceMean<axes=[-1]>(x)  d1 = Sub(x, m1)  m2 = ReduceMean<axes=[-1]>(x)  d2 = Sub(x, m2)
    y = Mul(d1, d2) }"""
  _, result = run_same(original, COMMON_SUBEXPRESSIONS, into="ReduceMean Sub Mul")
  assert [each.nodes for each in result.changes] == [
    ("'m1' (ReduceMean)", "'m2' (ReduceMean)"),
    ("'d1' (Sub)", "'d2' (Sub)"),
  ]


def test_equal_constants_are_the_same():
  original = """(float[N,8] x) => (y) <float a = {2}> {
    b = float {2.0}  p = Pow(x, a)  q = Pow(x, b)  y = Add(p, q) }"""
  run_same(original, COMMON_SUBEXPRESSIONS, into="Pow Add")


@parametrize("differ", [False, True])
def test_biases_that_folding_copied(differ):
  original = model("(float[N,1000] x) => (y) { a = Add(x, b)  c = Add(x, d)  y = Mul(a, c) }")
  for name in "bd":
    bias = np.arange(1000, dtype=np.float32)
    bias[-1] += differ and name == "d"
    add_weights(original, **{name: bias})
  run_same(original, COMMON_SUBEXPRESSIONS, into=["Add", "Add", "Mul"][not differ :])


def test_what_a_body_reads_is_followed():
  original = """(bool c, float[N] x) => (y) { a = Sin(x)  b = Sin(x)
      y = If(c) <then () => (float[N] t) { t = Neg(a) },
                  otherwise () => (float[N] e) { e = Cos(b) }> }"""
  run_same(original, COMMON_SUBEXPRESSIONS, into="Sin If")


KEPT = {
  "other attributes": "a = LeakyRelu<alpha=0.1>(x)  b = LeakyRelu<alpha=0.2>(x)  y = Add(a, b)",
  "one attribute left out": "a = LeakyRelu(x)  b = LeakyRelu<alpha=0.2>(x)  y = Add(a, b)",
  "operands in another order": "c = Cos(x)  a = Sub(x, c)  b = Sub(c, x)  y = Add(a, b)",
  "constants of another shape": """p = float {2.0}  q = float[1,1,1] {2.0}
    a = Mul(x, p)  w = Mul(x, q)  s = {0}  b = Squeeze(w, s)  y = Add(a, b)""",
  "constants 0 and -0": """p = float {0.0}  q = float {-0.0}
    a = Div(x, p)  b = Div(x, q)  y = Add(a, b)""",
  "random": "a = RandomNormalLike(x)  b = RandomNormalLike(x)  y = Add(a, b)",
  "dropout in training": """r = float {0.5}  t = bool {1}
    a = Dropout(x, r, t)  b = Dropout(x, r, t)  y = Add(a, b)""",
  "another number of outputs": """a = Dropout(x)  b, m = Dropout(x)  c = Cast<to=1>(m)  s = Add(a, b)
    y = Add(s, c)""",
}


@parametrize("what", KEPT)
def test_kept(what):
  stays(f"(float[N,8] x) => (y) {{ {KEPT[what]} }}", COMMON_SUBEXPRESSIONS)


def test_overridable_constants_are_not_the_same():
  stays("""(float[N,8] x, float a, b) => (float[N,8] y) <float a = {2}, float b = {2}> {
    p = Pow(x, a)  q = Pow(x, b)  y = Add(p, q) }""", [COMMON_SUBEXPRESSIONS])  # fmt: skip


def test_two_graph_outputs_keep_their_nodes():
  stays("(float[N] x) => (y, z) { y = Sin(x)  z = Sin(x) }", COMMON_SUBEXPRESSIONS)


def test_unknown_domains_stay():
  original = model("""(float[N] x) => (y) { a = custom.Sample(x)  b = custom.Sample(x)
    c = Cast<to=1>(a)  d = Cast<to=1>(b)  y = Add(c, d) }""")
  original.opset_import.add(domain="custom", version=1)
  stays(original, COMMON_SUBEXPRESSIONS)
