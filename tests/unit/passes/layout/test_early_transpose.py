import numpy as np
from onnx import helper
from pass_helpers import built, model, parametrize, run_same, stays

from ortplugin.optimizer.pipeline import EARLY_TRANSPOSE

NUMBERS = {"zero": 0, "one": 1, "two": 2, "three": 3, "far": 99}


def graph(inputs, nodes, y="float[A,B,C,D] y", more=""):
  numbers = ", ".join(f"int64[1] {name} = {{{number}}}" for name, number in NUMBERS.items())
  return f"({inputs}) => ({y}) <{numbers}, int64[2] pixels = {{2, 3}}{more}> {{ {nodes} }}"


LAST, FIRST = "<perm=[0,2,3,1]>", "<perm=[0,3,1,2]>"
HEADS = "<perm=[0,2,1,3]>"


def between(node):
  """It reads t and makes a."""
  return f"t = Transpose{HEADS}(x)  a = {node}  y = Transpose{HEADS}(a)"


SPLIT = ", int64[5] split = {2, 2, 5, 3, 4}"
RADIX = f"t = Transpose{FIRST}(x)  b = Reshape(t, split)"  # x [2, 3, 4, 10]
PADS = ", int64[8] pads = {0, 0, 1, 0, 0, 0, 0, 0}"

CASES = {
  "ResNeSt's sum over the radix": (
      graph("float[2,3,4,10] x, float[2,2,5,1,1] s",
            f"{RADIX}  m = Mul(b, s)  r = ReduceSum<keepdims=0>(m, one)  y = Transpose{LAST}(r)", more=SPLIT),
      "Reshape Reshape Mul ReduceSum Identity"),
  "and its mean of all pixels": (
      graph("float[2,3,4,10] x",
            f"{RADIX}  c = Relu(b)  r = ReduceSum<keepdims=0>(c, one)  y = ReduceMean(r, pixels)", more=SPLIT),
      "Reshape Relu ReduceSum FusedPool Reshape"),
  "CoaT's part without the class token": (
      graph("float[2,4,3,5] q, float[2,3,3,5] c, float[2,3,4,5] k",
            f"""t = Transpose{HEADS}(q)  z = Softmax(t)  p = Slice(t, one, far, two)  u = Transpose{HEADS}(c)
            m = Mul(p, u)  n = Pad(m, pads)  a = Add(n, k)  y = Transpose{HEADS}(a)""",
            "float[A,B,C,D] y, float[E,F,G,H] z", more=PADS),
      "Transpose Softmax Slice Mul Pad Transpose Add Identity"),
  "a pool": (
      graph("float[2,8,6,4] x",
            f"""t = Transpose{FIRST}(x)  p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(t)
            r = Reshape(p, rows)  y = Transpose<0,2,1>(r)""", "float[A,B,C] y",
            ", int64[3] rows = {2, 4, -1}"), "FusedPool Reshape"),
  "a Concat, a Softmax and a Slice with a step": (
      graph("float[2,3,4,5] x, float[2,3,4,7] z",
            f"""t = Transpose{FIRST}(x)  u = Transpose{FIRST}(z)  c = Concat<axis=1>(t, u)  s = Softmax<axis=1>(c)
            p = Slice(s, one, far, three, two)  y = Transpose{LAST}(p)"""),
      "Concat Softmax Slice Identity"),
  "a Tile, whose input is smaller": (
      graph("float[3,4,5] x", "t = Tile(x, often)  y = Transpose<0,2,1>(t)", "float[A,B,C] y",
            ", int64[3] often = {4, 2, 1}"), "Transpose Tile Identity"),
  "operands of fewer axes, constants, numbers, and one operand twice": (
      graph("float[2,4,3,5] x, float[3,4,1] b, float[1] n, float[N,1,1,1] w",
            f"""t = Transpose{HEADS}(x)  a = Add(t, b)  c = Mul(a, k)  d = Clip(c, low)  e = Mul(d, n)  f = Max(e, w)
            g = Mul(f, f)  y = Transpose{HEADS}(g)""", more=", float[4,1] k = {1, 2, 3, 4}, float low = {-1}"),
      "Unsqueeze Transpose Add Mul Clip Mul Max Mul Identity"),
  "a reduction that keeps its axes, and gets back their order by a view": (
      graph("float[2,4,3,5] x", f"t = Transpose{HEADS}(x)  y = ReduceMax(t, one)"), "ReduceMax Reshape"),
  "a reduction between Transposes": (
      graph("float[2,4,3,5] x, float[2,1,4,5] z",
            f"t = Transpose{HEADS}(x)  r = ReduceMax(t, two)  a = Add(r, z)  y = Transpose{HEADS}(a)"),
      "ReduceMax Reshape Reshape Reshape Add Identity"),
  "a reduction, without a Transpose behind it": (
      graph("float[2,4,3,5] x", f"t = Transpose{HEADS}(x)  e = Exp(t)  y = ReduceSum<keepdims=0>(e, one)",
            "float[A,B,C] y"), "Exp ReduceSum Reshape"),
  "one of two": (
      graph("float[2,4,3,5] x, float[2,3,4,5] z", between("Sub(t, z)")),
      "Transpose Sub Identity"),
}  # fmt: skip


@parametrize("case", CASES)
def test_fewer(case):
  text, left = CASES[case]
  run_same(model(text, 18), EARLY_TRANSPOSE, N=1, into=left)


STAY = {
  "two of which one is new": graph("float[2,3,4,5] x, z", f"a = Add(x, z)  y = Transpose{HEADS}(a)"),
  "what others read": graph(
    "float[2,4,3,5] x",
    between("Exp(t)") + "  z = Neg(a)",
    "float[A,B,C,D] y, float[E,F,G,H] z",
  ),
  "a Transpose that stays for others, where another is new": graph(
    "float[2,4,3,5] x, float[2,3,4,5] z",
    between("Add(t, z)") + "  w = Softmax(t)",
    "float[A,B,C,D] y, float[E,F,G,H] w",
  ),
  "what has no other order": graph("float[2,4,3,5] x, float[5] g", between("LayerNormalization(t, g)")),
  "a pool in an order that is not channels last": graph("float[2,4,3,5] x", between("MaxPool<kernel_shape=[2,2]>(t)")),
  "pads that are not known": graph("float[2,4,3,5] x, int64[8] p", between("Pad(t, p)")),
  "axes that are not known": graph("float[2,4,3,5] x, int64[1] n", between("ReduceSum(t, n)")),
  "a small one that would be a large one": graph(
    "float[2,4,3,5] x, float[2,3,4,50] z",
    f"""t = Transpose{HEADS}(x)  e = Tanh(t)  c = Concat<axis=3>(z, e)  r = ReduceSum(c, three)
      y = Transpose{HEADS}(r)""",
  ),
  "a reduction whose axes have another order then": graph(
    "float[2,4,3,5] x", "t = Transpose<0,3,2,1>(x)  y = ReduceSum<keepdims=0>(t, two)", "float[A,B,C] y"
  ),
}


@parametrize("what", STAY)
def test_stays(what):
  stays(model(STAY[what], 18), EARLY_TRANSPOSE)


def test_before_opset_13_a_softmax_is_over_several_axes():
  text = graph("float[2,4,3,5] x", between("Softmax<axis=1>(t)"))
  stays(model(text, 12), EARLY_TRANSPOSE)
  run_same(model(text, 13), EARLY_TRANSPOSE, into="Softmax Identity")


def test_a_softmax_over_rows_becomes_one_over_columns():
  """CoaT's keys: ONNX Runtime's kernel would transpose what it reads and what it writes."""
  text = """(float[2,4,33,5] k) => (float[2,4,5,33] y) { s = Softmax<axis=2>(k)
    y = Transpose<0,1,3,2>(s) }"""
  optimized, _ = run_same(model(text, 13), EARLY_TRANSPOSE, into="Transpose Softmax Identity")
  assert optimized.graph.node[1].attribute[0].i == 3
  stays(model(text.replace("axis=2", "axis=3"), 13), EARLY_TRANSPOSE)


def test_random_graphs():
  generator = np.random.default_rng(1)
  changes = 0
  for _ in range(80):
    nodes, dims, name = [], [2, 3, 4, 5], "x"
    constants = {"one": np.array([1]), "far": np.array([99])}
    for step in range(int(generator.integers(3, 7))):
      kind = str(
        generator.choice(["Transpose", "Transpose", "Relu", "Softmax", "Pad", "Slice", "Reduce", "Concat", "Mul"])
      )
      axis, out = int(generator.integers(len(dims))), f"v{step}"
      held = {"Pad": np.zeros(2 * len(dims), np.int64), "Mul": generator.random(dims[axis:], np.float32)}.get(kind)
      attributes = {"axis": axis} if kind in ("Softmax", "Concat") else {}
      inputs = [name]
      if kind == "Transpose":
        order = [int(each) for each in generator.permutation(len(dims))]
        dims, attributes = [dims[each] for each in order], {"perm": order}
      elif kind == "Slice":
        inputs += ["one", "far", f"a{step}"]
        held = np.array([axis]) if dims[axis] > 1 else np.array([int(np.argmax(dims))])
        dims[int(held[0])] -= 1
      elif kind == "Reduce":
        kind, held = "ReduceSum", np.array([axis])
        attributes = {"keepdims": int(len(dims) < 3 or generator.random() < 0.5)}
        dims[axis : axis + 1] = [1] * attributes["keepdims"]
        inputs.append(f"a{step}")
      elif kind == "Concat":
        inputs, dims[axis] = [name, name], 2 * dims[axis]
      if kind == "Pad":
        held[axis] = 1
        dims[axis] += 1
      if kind in ("Pad", "Mul"):
        inputs.append(f"a{step}")
      if held is not None:
        constants[f"a{step}"] = held
      nodes.append(helper.make_node(kind, inputs, [out], **attributes))
      name = out
    nodes[-1].output[0] = "y"
    original = built(nodes, "float[2,3,4,5] x", {"y": (1, dims)}, 18, weights=constants)
    before = sum(node.op_type == "Transpose" for node in nodes)
    optimized, result = run_same(original, EARLY_TRANSPOSE)
    transposes = sum(node.op_type == "Transpose" for node in optimized.graph.node)
    assert transposes <= before or any(node.op_type == "Softmax" for node in nodes)  # which transposes by itself
    changes += len(result.changes)
  assert changes > 20
