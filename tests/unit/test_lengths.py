import onnx_graphsurgeon as gs
from onnx_models import parametrize, parsed

from ortplugin.graph import Length, dims, import_model, scopes
from ortplugin.graph.disputed import disputed_now
from ortplugin.graph.lengths import agreed, same_length, same_lengths
from ortplugin.model.annotate import annotate

CONSTANTS = """int64 i0 = {0}, int64 i1 = {1}, int64 i2 = {2}, int64[1] v0 = {0}, int64[1] v1 = {1}, int64[1] v2 = {2},
    int64[1] minus = {-1}, int64[1] eight = {8}, int64[2] ones = {1, 1}, int64[2] neg = {-1, -1}, int64[2] two = {2, 2},
    int64[2,2] table = {1, 2, 3, 4}, int64[3] rest = {0, 0, -1}, int64[4] heads = {0, 0, -1, 4}"""
# As exporters write x.shape[0] and x.shape[1], as vectors of one element.
PARTS = (
  """shape = Shape(x)  n = Gather(shape, i0)  m = Gather(shape, i1)  nn = Unsqueeze(n, v0)  mm = Unsqueeze(m, v0)  """
)


def scope_of(nodes):
  """The scope of a graph of x, z, w and q, and its tensors by name, which know no more than their rank."""
  graph = import_model(
    parsed(
      f"""(float[a,b,8] x, float[c,8] z, float[8,6] w, float[d,1,8] q) => (float y) <{CONSTANTS}> {{ {nodes} }}""",
      18,
      domains=["ortplugin"],
    )
  )
  annotate(graph)
  for each in (tensor for node in graph.nodes for tensor in node.outputs):
    if isinstance(each, gs.Variable) and each.shape is not None and len(each.shape) > 1:
      each.shape = [None] * len(each.shape)
  return next(iter(scopes(graph))), graph.tensors()


def shown(lengths):
  def names(each):
    return [name if isinstance(name, str) and len(name) == 1 else "?" for name in each.names]

  return ["*".join(names(each) + [str(each.number)] * (each.number != 1 or not each.names)) for each in lengths]


@parametrize(
  "nodes, wanted",
  {
    "elements of Shape": (PARTS + "k = Concat<axis=0>(nn, mm, eight)  y = Reshape(x, k)", "a b 8"),
    "a copied length and a rest": ("y = Reshape(x, heads)", "a b 2 4"),
    "a merged axis": (PARTS + "k = Concat<axis=0>(minus, eight)  y = Reshape(x, k)", "a*b 8"),
    "and divided again": (
      PARTS + "k = Concat<axis=0>(minus, eight)  f = Reshape(x, k)  k2 = Concat<axis=0>(nn, minus, eight)"
      "  y = Reshape(f, k2)",
      "a b 8",
    ),
    "a product of lengths": (PARTS + "nm = Mul(nn, mm)  k = Concat<axis=0>(nm, minus)  y = Reshape(x, k)", "a*b 8"),
    "a Slice of Shape, behind a Transpose": (
      "t = Transpose<1,0,2>(x)  s = Shape(t)  h = Slice(s, v0, v1)"
      "  k = Concat<axis=0>(h, minus, eight)  y = Reshape(t, k)",
      "b a 8",
    ),
    "Shape's own start and end": (
      "h = Shape<start=1, end=2>(x)  k = Concat<axis=0>(h, minus, eight)  y = Reshape(x, k)",
      "b a 8",
    ),
    "a broadcast with one long operand": ("t = Reshape(x, rest)  g = Relu(t)  y = Add(g, q)", "? b 8"),
    "CastLike has its first operand's": ("t = Reshape(x, rest)  y = CastLike(t, z)", "a b 8"),
    "a product by weights": ("t = Reshape(x, rest)  y = MatMul(t, w)", "a b 6"),
    "Expand": (PARTS + "k = Concat<axis=0>(nn, mm, eight)  y = Expand(q, k)", "? b 8"),
    "TorchScript's Expand: -1 is 1": (
      "e = Equal(two, neg)  s = Where(e, ones, two)  t = Reshape(x, s)  y = Unsqueeze(t, v0)",
      "1 2 2",
    ),
    "a Range": (PARTS + "r = Range(i0, m, i1)  y = Unsqueeze(r, v1)", "b 1"),
    "a rank of two is no shape": ("r = Gather(table, i1)  y = Reshape(x, r)", "? ?"),
    "a rest of what is not a multiple": (
      "s = Shape(z)  h = Slice(s, v0, v1)  k = Concat<axis=0>(h, minus)  y = Reshape(x, k)",
      "c ?",
    ),
  }.values(),
)
def test_lengths(nodes, wanted):
  scope, tensors = scope_of(nodes)
  assert shown(dims(scope, tensors["y"])) == wanted.split()


@parametrize(
  "nodes, axes",
  {
    "rows of one shape": (
      PARTS + "k = Concat<axis=0>(nn, mm, eight)  u = Reshape(x, k)  v = Reshape(x, k)",
      [True, True, True],
    ),
    "copied, and from Shape": (
      PARTS + "k = Concat<axis=0>(nn, minus, eight)  u = Reshape(x, k)  v = Reshape(x, rest)",
      [True, True, True],
    ),
    "behind operators of ours": (
      "p = Reshape(x, rest)  u = Relu(p)  f = ortplugin.FusedLayerNorm(p, p)  v, o = ortplugin.FusedPointwise(f, f)",
      [True, True, True],
    ),
    "the second of several results": ("u = Reshape(x, rest)  o, v = ortplugin.FusedPointwise(u)", [True, True, True]),
    "behind a product of ours": (
      "u = Reshape(x, rest)  v = ortplugin.FusedMatMul<trans_b=1>(u, w)",
      [True, True, True],
    ),
    "of others": (
      PARTS + "k = Concat<axis=0>(mm, nn, eight)  u = Reshape(x, k)  v = Identity(x)",
      [False, False, True],
    ),
  }.values(),
)
def test_same_lengths(nodes, axes):
  scope, tensors = scope_of(f"{nodes}  y = Add(u, v)")
  u, v = tensors["u"], tensors["v"]
  for each in (u, v, *(tensors[name] for name in ("f", "o") if name in tensors)):  # what has no program has no shape
    each.shape = [None] * 3
  assert [same_length(scope, u, v, axis) for axis in range(3)] == axes
  assert same_lengths(scope, u, v) == all(axes)


def test_lengths_that_are_told():
  scope, tensors = scope_of("y = Relu(x)")
  told = {id(tensors["x"]): [Length(2), Length(1, ("k",)), Length(4)]}
  assert shown(dims(scope, tensors["y"], told)) == ["2", "k", "4"]


def test_products():
  a, b = Length(2, ("a",)), Length(6, ("b", "a"))
  assert a.times(b) == Length(12, ("a", "a", "b")) == b.times(a)
  assert b.over(a) == Length(3, ("b",))
  assert [a.over(b), Length(3).over(Length(2)), Length(3).over(Length(0))] == [None] * 3
  assert (a.known, Length(4).known) == (None, 4)


@parametrize(
  "lengths, wanted",
  [
    ([], Length(1)),
    ([Length(1), Length(1, ("a",))], Length(1, ("a",))),
    ([Length(5), Length(1, ("a",)), Length(1, ("b",))], Length(5)),  # those are 1 or 5
    ([Length(1, ("a",)), Length(1, ("b",))], None),
  ],
)
def test_broadcast(lengths, wanted):
  assert agreed(lengths) == wanted


def test_a_cast_may_know_more():
  """Of an output that was converted, what the model says of it stands behind the Cast."""
  scope, tensors = scope_of("j = Concat<axis=0>(z, z)  n = Cast<to=10>(j)  y = Relu(n)")
  assert shown(dims(scope, tensors["j"])) == ["?", "?"]
  scope.lengths.clear()
  tensors["n"].shape = ["r", 8]
  assert shown(dims(scope, tensors["j"])) == ["r", "8"]


def test_later_questions_begin_with_what_earlier_ones_found():
  """One that is cut short leaves nothing behind; asked in order, all are answered, until an edit."""
  steps = 300
  text = "y0 = Identity(x)  " + "  ".join(f"y{n + 1} = Add(y{n}, y{n})" for n in range(steps)) + "  y = Neg(x)"
  for order, wanted in ((range(0, steps, 50), ["a", "b", "8"]), ((), ["?", "?", "?"])):
    scope, tensors = scope_of(text)
    for number in order:
      dims(scope, tensors[f"y{number}"])
    assert shown(dims(scope, tensors[f"y{steps}"])) == wanted
    assert bool(scope.lengths) == bool(order)
    scope.remove(next(node for node in scope.slots if node is not None and node.outputs[0].name == f"y{steps}"))
    assert not scope.lengths


def test_a_name_is_given_once():
  scope, tensors = scope_of("y = Relu(x)  t = Neg(x)")
  scope.remove(tensors["t"].inputs[0])
  assert [scope.unique(name) for name in ("t", "t", "x", "new", "new")] == ["t_2", "t_3", "x_2", "new", "new_2"]


def test_disputed_values_are_those_since_the_last_edit():
  scope, tensors = scope_of("y = Slice(x, v1, v2)  t = Neg(y)")
  tensors["y"].shape = tensors["x"].shape = ["N"]
  assert disputed_now(scope) == {"y", "t"}
  scope.remove(tensors["t"].inputs[0])
  assert disputed_now(scope) == {"y"}
