from pass_helpers import model, operators, run_same, stays

from ortplugin.optimizer.pipeline import DEAD_NODES


def test_a_chain_goes_at_once():
  original = """(float[N] x) => (y) <float unused = {1}> {
    two = float {2.0}  a = Mul(x, two)  b = Add(a, unused)  y = Neg(x) }"""
  optimized, result = run_same(original, DEAD_NODES, into="Neg")
  assert len(optimized.graph.node) == 1
  assert not optimized.graph.initializer
  assert [each.nodes for each in result.changes] == [("'b' (Add)", "'a' (Mul)", "'two' (Constant)")]


def test_an_initializer_that_nothing_ever_read_is_kept():
  stays("(float[N] x) => (y) <float unused = {1}> { y = Neg(x) }", DEAD_NODES)


def test_a_dead_branch_goes_with_what_it_reads():
  original = """(bool c, float[N] x) => (y) { a = Sin(x)
      z = If(c) <then () => (float[N] t) { t = Neg(a) },
                  otherwise () => (float[N] e) { e = Cos(x) }>
      y = Neg(x) }"""
  run_same(original, DEAD_NODES, into="Neg")


def test_inside_a_body():
  original = """(bool c, float[N] x) => (y) {
      y = If(c) <then () => (float[N] t) { u = Sin(x)  t = Neg(x) },
                  otherwise () => (float[N] e) { e = Cos(x) }> }"""
  optimized, _ = run_same(original, DEAD_NODES, changes=1)
  assert operators(optimized.graph.node[0].attribute[0].g) == ["Neg"]


def test_what_a_body_reads_stays():
  stays("""(bool c, float[N] x) => (y) { a = Sin(x)  b = Cos(x)
      y = If(c) <then () => (float[N] t) { t = Neg(a) },
                  otherwise () => (float[N] e) { e = Neg(b) }> }""", [DEAD_NODES])  # fmt: skip


def test_one_output_of_several_in_use_stays():
  stays(
    """(float[N,4] x) => (int64[N,1] i) {
      k = {1}  v, i = TopK(x, k) }""",
    [DEAD_NODES],
  )


def test_random_and_unknown_operators_stay():
  """A random node advances the generator that others share; another domain's may have effects."""
  original = model("""(float[N] x) => (y) {
    noise = RandomNormalLike(x)  shown = custom.Print(x)  y = RandomNormalLike(x) }""")
  original.opset_import.add(domain="custom", version=1)
  stays(original, DEAD_NODES)
