import numpy as np
from onnx import helper
from pass_helpers import built, parametrize, run_same, stays

from ortplugin.optimizer.pipeline import TRANSPOSE_VIEWS


def graph(dims, perm, rank):
  out = ",".join("ABCDE"[:rank])
  return f"(float[{dims}] x) => (float[{out}] y) {{ y = Transpose{f'<perm={perm}>' if perm else ''}(x) }}"


@parametrize(
  "dims, perm",
  [
    ("N,1,1,7", "[0, 3, 1, 2]"),
    ("N,7,1,1", "[0, 2, 3, 1]"),
    ("N,1,7", "[0, 2, 1]"),
    ("1,N", ""),
    ("1,N,4", "[1, 0, 2]"),
    ("2,1,3,1,4", "[0, 2, 4, 1, 3]"),
  ],
)
def test_views(dims, perm):
  run_same(graph(dims, perm, dims.count(",") + 1), TRANSPOSE_VIEWS, into="Reshape", changes=1)


@parametrize(
  "dims, perm",
  [
    ("N,2,1,7", "[0, 3, 1, 2]"),
    ("N,M,1", "[1, 0, 2]"),
    ("1,N,M,1,K", "[1, 2, 0, 4, 3]"),  # two unknown lengths elsewhere
    ("1,N,M", "[1, 0, 2]"),  # where M is 0, a Reshape could not tell what N is
    ("N,M,2,1", "[0, 3, 1, 2]"),
    ("N,1,7", "[0, 1, 2]"),
    ("0,1,7", "[0, 2, 1]"),
  ],
)
def test_what_stays(dims, perm):
  stays(graph(dims, perm, dims.count(",") + 1), TRANSPOSE_VIEWS)


@parametrize("length", [0, 1, 3])
@parametrize("case", [("N,1,7", "[0, 2, 1]"), ("1,N,4", "[1, 0, 2]"), ("N,1,1,7", "[0, 3, 1, 2]")])
def test_views_of_nothing(case, length):
  run_same(graph(*case, case[0].count(",") + 1), TRANSPOSE_VIEWS, N=length, into="Reshape")


@parametrize("perms", [("[2, 0, 1]", "[1, 0, 2]"), ("[2, 0, 1]", "[1, 2, 0]"), ("", "[0, 2, 1]"), ("", "")])
def test_two_become_one(perms):
  first, last = (f"<perm={perm}>" if perm else "" for perm in perms)
  text = f"(float[N,4,5] x) => (float[A,B,C] y) {{ a = Transpose{first}(x)  y = Transpose{last}(a) }}"
  run_same(text, TRANSPOSE_VIEWS, into="Transpose")


def test_one_that_others_need_stays():
  text = """(float[N,4,5] x) => (float[A,B,C] y, float[5,4,N] a) {
    a = Transpose(x)  y = Transpose<0,2,1>(a) }"""
  stays(text, TRANSPOSE_VIEWS)


def around_a_split(dims, first, target, last, outputs=""):
  out, count = ",".join("ABCDE"[: last.count(",") + 1]), target.count(",") + 1
  return f"""(float[{dims}] x) => (float[{out}] y{outputs}) <int64[{count}] s = {target}> {{
    a = Transpose<perm={first}>(x)  b = Reshape(a, s)  y = Transpose<perm={last}>(b) }}"""


@parametrize(
  "dims, first, target, last, expected",
  [
    ("N,5,6,12", "[0, 3, 1, 2]", "{-1, 3, 4, 5, 6}", "[0, 3, 4, 1, 2]", "Reshape"),
    ("N,5,6,12", "[0, 3, 1, 2]", "{0, 3, 4, 5, 6}", "[0, 1, 3, 4, 2]", "Reshape Transpose"),
    ("N,5,6,4", "[0, 3, 1, 2]", "{0, 1, 4, 5, 6}", "[0, 3, 4, 1, 2]", "Reshape"),
    ("N,5,6,3", "[0, 3, 1, 2]", "{0, 3, 1, 5, 6}", "[0, 3, 4, 1, 2]", "Reshape"),
    ("2,1,6,3", "[0, 3, 1, 2]", "{2, 3, 1, 1, 6}", "[0, 3, 4, 1, 2]", "Reshape"),
    ("4,N,6", "[2, 0, 1]", "{2, 3, 4, -1}", "[3, 2, 0, 1]", "Reshape Transpose"),
  ],
)
def test_around_a_split(dims, first, target, last, expected):
  run_same(around_a_split(dims, first, target, last), TRANSPOSE_VIEWS, into=expected, changes=1)


@parametrize(
  "dims, first, target, last, expected",
  [
    ("12,4,4,6", "[0, 3, 1, 2]", "{3, 4, 6, 16}", "[0, 1, 3, 2]", "Reshape"),  # splits and merges: MViT
    ("N,5,6,12", "[0, 3, 1, 2]", "{0, 3, 20, 6}", "[0, 2, 3, 1]", "Reshape Transpose Reshape"),
    ("N,5,6,12", "[0, 3, 1, 2]", "{-1, 4, 5, 6}", "[0, 2, 3, 1]", "Reshape Transpose Reshape"),
    ("N,5,6,12", "[0, 3, 1, 2]", "{-1, 30}", "[1, 0]", "Transpose Reshape"),
    ("2,3,20,4", "[0, 1, 3, 2]", "{6, 4, 4, 5}", "[0, 2, 3, 1]", "Reshape"),
    ("2,3,5,4", "[0, 1, 3, 2]", "{6, 4, 5}", "[1, 0, 2]", "Reshape Transpose"),
    ("5,N,4", "[1, 0, 2]", "{-1, 2, 5, 4}", "[2, 0, 1, 3]", "Reshape"),
    ("5,N,4", "[1, 0, 2]", "{-1, 4}", "[1, 0]", "Transpose Reshape"),
    ("3,1,2,1", "[2, 1, 0, 3]", "{1, 2, 3, 1}", "[2, 0, 1, 3]", "Reshape"),
  ],
)
def test_around_any_view(dims, first, target, last, expected):
  text = around_a_split(dims, first, target, last)
  for length in (6, 0) if "N" in dims else (1,):
    run_same(text, TRANSPOSE_VIEWS, N=length, into=expected, changes=1)


NUMBERS = {"from": 1, "to": 9, "one": 1, "two": 2, "first": 0}


def chain(dims, steps, rank, outputs="", given=""):
  numbers = ", ".join(f"int64[1] {name} = {{{number}}}" for name, number in NUMBERS.items())
  constants = f"{numbers}, int64[4] shape = {{2, 24, 2, 2}}"
  out = ",".join("ABCDE"[:rank])
  return f"(float[{dims}] x{given}) => (float[{out}] y{outputs}) <{constants}> {{ {steps} }}"


QKV = "a = Transpose<2,0,3,1,4>(x)  "  # [2, 5, 3, 4, 6] to [3, 2, 4, 5, 6]
IMAGE = """t = Slice(a, one, two, first)  v = Squeeze(t, first)  p = Slice(v, from, to, two)
  b = Transpose<0,1,3,2>(p)
  c = Reshape(b, shape)  y = Transpose<0,2,3,1>(c)"""


def test_slices_and_several_views_between():
  """CoaT's image of V without its class token, of what Q and K read, too."""
  run_same(chain("2,5,3,4,6", QKV + IMAGE, 4), TRANSPOSE_VIEWS, into="Slice Reshape")
  text = chain("2,5,3,4,6", QKV + IMAGE, 4, ", float[F,G,H,I,J] z", "").replace(IMAGE, IMAGE + "  z = Neg(a)")
  run_same(text, TRANSPOSE_VIEWS, into="Transpose Slice Reshape Neg")


def test_a_slice_with_a_step_and_a_transpose_that_remains():
  steps = """a = Transpose<1,0,2>(x)  b = Slice(a, from, to, first, two)
    c = Unsqueeze(b, one)  y = Transpose<2,3,1,0>(c)"""
  run_same(chain("4,7,5", steps, 4), TRANSPOSE_VIEWS, into="Slice Reshape Transpose")


def test_only_what_is_read_is_transposed():
  """SAM's positions are of Q alone, K and V are read as they lie."""
  steps = QKV + "s = Slice(a, one, two, first)  v = Squeeze(s, first)  y = Neg(v)"
  run_same(chain("2,5,3,4,6", steps, 4), TRANSPOSE_VIEWS, into="Slice Transpose Squeeze Neg")


def test_random_chains():
  generator = np.random.default_rng(0)
  factors = [2, 3, 2, 5]
  changes = 0
  for _ in range(60):
    shape = _grouped(generator, factors)
    nodes, dims, name = [], shape, "x"
    for step in range(int(generator.integers(2, 4))):
      order = generator.permutation(len(dims))
      nodes.append(helper.make_node("Transpose", [name], [f"t{step}"], perm=list(order)))
      dims = _grouped(generator, [dims[axis] for axis in order])
      nodes.append(helper.make_node("Constant", [], [f"s{step}"], value_ints=dims))
      nodes.append(helper.make_node("Reshape", [f"t{step}", f"s{step}"], [f"r{step}"]))
      name = f"r{step}"
    nodes.append(helper.make_node("Transpose", [name], ["y"]))
    optimized, result = run_same(built(nodes, {"x": (1, shape)}, {"y": (1, dims[::-1])}), TRANSPOSE_VIEWS)
    assert sum(node.op_type == "Transpose" for node in optimized.graph.node) < 2
    changes += len(result.changes)
  assert changes > 60


def _grouped(generator, factors):
  """The lengths, some of them multiplied with the next one, and some axes of 1."""
  made = [1]
  for factor in factors:
    if generator.random() < 0.4:
      made[-1] *= int(factor)
    else:
      made.append(int(factor))
  return made[made[0] == 1 and generator.random() < 0.7 :]


@parametrize(
  "text",
  [
    around_a_split("N,5,6,12", "[0, 3, 1, 2]", "{0, 8, 45}", "[0, 2, 1]"),  # 12 and 8 have no factor in common
    around_a_split("N,M,6,12", "[0, 3, 1, 2]", "{0, 3, 4, -1, 6}", "[0, 3, 4, 1, 2]"),  # two unknown lengths
    around_a_split("N,5,6,12", "[0, 3, 1, 2]", "{0, 3, 4, 5, 6}", "[0, 1, 3, 4, 2]", ", float[F,G,H,I] a"),
    chain(
      "2,5,3,4,6", QKV + "t = Slice(a, one, two, first)  y = Transpose<0,1,2,4,3>(t)", 5, ", float[F,G,H,I,J] a"
    ),  # as many that move memory
    chain("4,7,5", "a = Slice(x, one, to, first)  y = Slice(a, one, to, one)", 3),  # in one order
    chain(
      "4,7,5", "a = Transpose(x)  b = Slice(a, one, two, first)  y = Slice(a, two, to, first)", 3, ", float[F,G,H] b"
    ),
    chain("4,7,N", "a = Transpose(x)  b = Slice(a, from, to, first)  y = Transpose<2,0,1>(b)", 3),
    # gcvit's windows: how many is not known, of either image
    "(float[N,16,8] x) => (float[A,B,C,D,E,F] y) <int64[6] s = {-1, 2, 2, 4, 4, 8}> "
    "{ a = Reshape(x, s)  y = Transpose<0,1,3,2,4,5>(a) }",
    chain("4,7,5", "a = Transpose(x)  b = Slice(a, n, to, first)  y = Transpose(b)", 3, "", ", int64[1] n"),
  ],
)
def test_other_chains_stay(text):
  stays(text, TRANSPOSE_VIEWS)


@parametrize(
  "x, steps, left",
  [
    ("2,12", "a = Reshape(x, shape)  b = Squeeze(a)  y = Unsqueeze(b, two)", "Reshape"),
    ("N,12", "a = Unsqueeze(x, one)  y = Unsqueeze(a, one)", "Reshape"),
    ("4,6", "a = Flatten<axis=0>(x)  y = Reshape(a, shape)  b = Neg(a)", "Flatten Reshape Neg"),
  ],
)
def test_views_of_views(x, steps, left):
  more = ", float[E,F] b" if "Neg" in steps else ""
  run_same(chain(x, steps, 4, more).replace("{2, 24, 2, 2}", "{1, 4, 1, -1}"), TRANSPOSE_VIEWS, into=left)


@parametrize(
  "x, steps",
  [
    ("float[N,M] x", "a = Unsqueeze(x, one)  y = Unsqueeze(a, one)"),  # two unknown lengths
    ("float[0,4] x", "a = Unsqueeze(x, one)  y = Unsqueeze(a, one)"),
    ("float[2,4] x", "a = Unsqueeze(x, one)  b = Neg(a)  y = Unsqueeze(b, one)"),
    ("int64[2,4] x", "a = Unsqueeze(x, one)  b = Unsqueeze(a, one)  y = Cast<to=1>(b)"),  # what shapes are made of
  ],
)
def test_other_views_stay(x, steps):
  stays(chain("2", steps, 4).replace("float[2] x", x), TRANSPOSE_VIEWS)
