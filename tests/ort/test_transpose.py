import numpy as np
from node_cases import OPSET, bits, model_with
from onnx import helper
from onnx_models import parametrize, parsed, raises
from threads import in_threads
from transpose_cases import CASES, TO, Case, by_name, check, random_case

from ort.host import make, plain, run_one as run
from ortplugin.graph import DOMAIN
from ortplugin.ops.transpose import decompose
from ortplugin.optimizer import select_passes
from ortplugin.optimizer.loop import run_passes


@parametrize("case", CASES)
def test_equals_the_reference(case):
  session = make(case.model())
  found = run(session, case)
  check(case, found)
  if 0 not in case.shape:  # a length of 0 is unknown before a run
    assert session.get_outputs()[0].shape == list(found.shape)


@parametrize("first", range(0, 60, 12))
def test_random_orders_and_windows(first):
  for seed in range(first, first + 12):
    case = random_case(seed)
    check(case, run(make(case.model()), case))


@parametrize("name", ["V, float16", "from the end, int32", "talking heads, float", "none moves, uint8"])
def test_the_decomposition_gives_the_same(name):
  case = by_name[name]
  model = model_with(decompose(case.node(), OPSET), [("x", case.dtype, case.shape)], [("y", case.dtype)])
  check(case, run(plain(model), case))


def test_attention_as_exporters_write_it(rng):
  """Of coat: Q, K and V, and V without its class token; the same outputs with and without the pass."""
  graph = """(float[N,50,96] x) => (float[N,4,50,50] s, float[N,4,8,49] v)
    <int64[5] heads = {0,50,3,4,8}, int64 i0 = {0}, int64 i1 = {1}, int64 i2 = {-1}, int64[1] one = {1},
     int64[1] end = {9223372036854775807}, int64[1] two = {2}> {
      h = Reshape(x, heads)  t = Transpose<2,0,3,1,4>(h)
      a = Gather(t, i0)  b = Gather(t, i1)  c = Gather(t, i2)
      k = Transpose<0,1,3,2>(b)  s = MatMul(a, k)
      d = Slice(c, one, end, two)  v = Transpose<0,1,3,2>(d) }"""
  original = parsed(graph, 17)
  made, _, _ = run_passes(original, select_passes(only=["fuse-transpose"]))
  moved = [node.op_type for node in made.graph.node if "Transpose" in node.op_type]
  assert moved == ["FusedTranspose"] * 3 + ["Transpose", "FusedTranspose"]
  feeds = {"x": rng.standard_normal((3, 50, 96)).astype(np.float32)}
  wanted = plain(original).run(None, feeds)
  for got, each in zip(make(made).run(None, feeds), wanted, strict=True):
    np.testing.assert_array_equal(got, each)


def test_unknown_lengths():
  """Of an axis that is copied whole the name stays; the window follows the lengths of each run."""
  case = Case("open", "float", (), (2, 0, 1), (0, 1, -3), (TO, TO, TO))
  session = make(case.model(("n", "m", "k")))
  assert session.get_outputs()[0].shape[1] == "n"
  for shape in ((2, 5, 7), (3, 1, 2), (0, 4, 4), (40, 70, 90)):
    each = Case(f"open {shape}", case.dtype, shape, case.perm, case.starts, case.ends)
    check(each, run(session, each))


def test_large_tensors_on_many_threads():
  cases = [Case(f"large {perm}", "float16", (4, 300, 7, 96), perm) for perm in ((0, 2, 1, 3), (0, 3, 1, 2))]
  for case in cases:
    one = run(make(case.model(), 1), case)
    check(case, one)
    session = make(case.model(), 4)
    wanted = bits(one)

    def again(number, case=case, session=session, wanted=wanted):
      assert (bits(run(session, case)) == wanted).all()

    in_threads(4, again)


@parametrize(
  "attributes, shape, words",
  [
    ({}, (2, 3), "'perm' has 0 numbers"),
    ({"perm": [0, 0]}, (2, 3), "no order of the axes 0 to 1"),
    ({"perm": [1, 0, 2]}, (2, 3), "2 dimensions, but perm is"),
    ({"perm": [1, 0], "starts": [1, 0]}, (2, 3), "'ends' has 0 numbers, but perm has 2"),
    ({"perm": [1, 0], "starts": [1], "ends": [2, 2]}, (2, 3), "'starts' has 1 numbers, but perm has 2"),
    ({"perm": list(range(17))}, (1,) * 17, "'perm' has 17 numbers; there must be 1 to 16"),
  ],
)
def test_what_is_refused(attributes, shape, words):
  node = helper.make_node("FusedTranspose", ["x"], ["y"], "moved", domain=DOMAIN, **attributes)

  def attempt():
    make(model_with([node], [("x", "float", None)], [("y", "float")])).run(None, {"x": np.zeros(shape, np.float32)})

  with raises(Exception, "node 'moved'") as caught:
    attempt()
  assert words in str(caught.value)
