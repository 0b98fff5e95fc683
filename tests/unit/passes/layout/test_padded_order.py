import numpy as np
import onnx
from pass_helpers import add_weights, model, nodes_of, parametrize, run_same, stays

from ortplugin.optimizer.pipeline import PADDED_ORDER


def graph(inputs, nodes, y="float[A,B,C] y", opset=17, **weights):
  original = model(f"({inputs}) => ({y}) {{ {nodes} }}", opset)
  add_weights(
    original,
    **{name: np.float32(x) if isinstance(x, float) else np.asarray(x, np.int64) for name, x in weights.items()},
  )
  return original


# Relative positions as absolute ones: [2, 4, 3] to [2, 2, 2], BoTNet's in small.
SHIFT = """a = Pad(x, behind)  b = Reshape(a, flat)  c = Pad(b, rest)  d = Reshape(c, rows)
  e = Slice(d, zero, two, one)  y = Slice(e, one, far, two)"""
SHIFTS = {
  "behind": [0, 0, 0, 0, 0, 1],
  "flat": [4, -1],
  "rest": [0, 0, 0, 1],
  "rows": [-1, 3, 3],
  "zero": [0],
  "one": [1],
  "two": [2],
  "far": [9],
}
# 3x3 windows, one pixel apart, of [2, 4, 4, 6] with 3 heads.
WINDOWS = """a = Transpose<0,3,1,2>(x)  b = Pad(a, around)  c = Gather<axis=2>(b, taps)
  d = Gather<axis=4>(c, taps)  e = Reshape(d, heads)  y = Transpose<0,3,5,2,4,1>(e)"""
UNFOLDED = {"around": [0, 0, 1, 1, 0, 0, 1, 1], "taps": [[0, 2], [1, 3], [2, 4]], "heads": [6, 2, 3, 2, 3, 2]}


def test_a_shift_that_cuts_off_what_it_pads():
  optimized, _ = run_same(graph("float[4,2,3] x", SHIFT, **SHIFTS), PADDED_ORDER, into="Reshape Gather Reshape")
  assert _indices(optimized) == [1, 2, 3, 4]


def test_windows_keep_the_padding():
  original = graph("float[2,4,4,6] x", WINDOWS, "float[A,B,C,D,E,F] y", **UNFOLDED)
  optimized, _ = run_same(original, PADDED_ORDER, into="Reshape Pad Gather Reshape", changes=1)
  assert len(_indices(optimized)) == 3 * 4 * 9  # of one image: heads, windows, pixels of each
  assert max(_indices(optimized)) == 48


def _indices(optimized):
  gather = nodes_of(optimized, "Gather")[0]
  found = next(each for each in optimized.graph.initializer if each.name == gather.input[1])
  return [int(each) for each in onnx.numpy_helper.to_array(found)]


FOLD = """t = Transpose<0,2,1,3>(x)  r = Reshape(t, flat)  p = Pad(r, behind)
  a = Gather<axis=1>(p, first)  b = Gather<axis=1>(p, second)  """
FOLDED = {"flat": [2, 4, 6], "behind": [0, 0, 0, 0, 1, 0], "first": [4, 0, 2], "second": [3, 3, 4]}


def test_several_gathers_of_one_pad():
  """As a fold adds its parts: what stands before the Pad is in the order of each Gather then."""
  original = graph("float[2,3,4,2] x", FOLD + "y = Add(a, b)", **FOLDED)
  into = ["Reshape", "Pad", "Gather", "Reshape", "Gather", "Reshape", "Add"]
  run_same(original, PADDED_ORDER, into=into, changes=1)


@parametrize(
  "original",
  [
    graph("float[2,4,6] x", "p = Pad(x, behind)  a = Gather<axis=1>(p, first)  b = Gather<axis=1>(p, second)"
          "  y = Add(a, b)", **{**FOLDED, "flat": [1]}),  # nothing stands before the Pad
    graph("float[2,3,4,2] x", FOLD + "c = Relu(p)  d = ReduceSum(c)  e = Add(a, b)  y = Add(e, d)", **FOLDED),
    graph("float[4,2,3] x", SHIFT.replace("Pad(b, rest)", "Pad(b, rest, v)"), v=1.0, **SHIFTS),
    graph("float[4,2,3] x", SHIFT.replace("c = Pad", 'c = Pad<mode="edge">'), **SHIFTS),
    graph("float[4,2,3] x", SHIFT, **{**SHIFTS, "rest": [0, -1, 0, 2]}),
    graph("float[4,2,3] x, int64[4] rest", SHIFT, **{k: v for k, v in SHIFTS.items() if k != "rest"}),
    graph("float[N,2,3] x", SHIFT, **SHIFTS),
    graph("float[4,2,3] x", "p = Pad(x, behind)  y = Transpose(p)", behind=[0, 0, 0, 0, 0, 1]),  # two alone
    graph("float[4,2,3] x", "a = Transpose(x)  b = Slice(a, one, far, one)  y = Transpose(b)", one=[1], far=[9]),
    graph("float[4,2,3] x", SHIFT.replace("y = Slice", "f = Relu(c)  g = Relu(d)  z = Neg(g)  y = Slice"),
          "float[A,B,C] y, float[E,F,G] z", **SHIFTS),
  ],
)  # fmt: skip
def test_what_stays(original):
  if any(each.type.tensor_type.shape.dim[0].dim_param for each in original.graph.input):
    run_same(original, PADDED_ORDER, N=4, changes=0)
  else:
    stays(original, PADDED_ORDER)


def test_random_steps():
  generator = np.random.default_rng(2)
  changes = 0
  for _ in range(40):
    nodes, weights, dims, name = [], {}, [2, 4, 6], "x"
    for step in range(5):
      kind, axis = str(generator.choice(["Pad", "Transpose", "Slice", "Gather", "Reshape"])), int(generator.integers(3))
      attributes = ""
      if step == 1:
        kind = "Pad"
      if kind == "Pad":
        weights[f"w{step}"] = [int(each) for each in generator.integers(0, 2, 6)]
        dims = [dim + weights[f"w{step}"][at] + weights[f"w{step}"][3 + at] for at, dim in enumerate(dims)]
      elif kind == "Transpose":
        order = [int(each) for each in generator.permutation(3)]
        dims, attributes = [dims[each] for each in order], f"<perm={order}>"
      elif kind == "Slice":
        weights[f"w{step}"], dims[axis] = [axis], max(1, dims[axis] - 1)
        weights.update(none=[0], cut=[-1])
        if dims[axis] == 1:
          kind = "Identity"
      elif kind == "Gather":
        weights[f"w{step}"] = [int(each) for each in generator.integers(0, dims[axis], 3)]
        dims[axis], attributes = 3, f"<axis={axis}>"
      else:
        dims = [dims[0] * dims[1], 1, dims[2]]
        weights[f"w{step}"] = list(dims)
      inputs = [
        name,
        *(["none", "cut"] if kind == "Slice" else []),
        *([f"w{step}"] if kind not in ("Transpose", "Identity") else []),
      ]
      nodes.append(f"v{step} = {kind}{attributes}({', '.join(inputs)})")
      name = f"v{step}"
    used = {key: value for key, value in weights.items() if any(key in node for node in nodes)}
    original = graph("float[2,4,6] x", "  ".join([*nodes, f"y = Identity({name})"]), **used)
    changes += len(run_same(original, PADDED_ORDER)[1].changes)
  assert changes > 10
