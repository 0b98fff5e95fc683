"""Shape inference: as much as onnx's, in bounded time and memory."""

import os
import subprocess
import sys
import textwrap
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import onnx.backend.test
from exported import DATA, architectures
from onnx import AttributeProto, TensorProto, helper
from onnx_models import one_in, parametrize, parsed

from ortplugin.graph import inference
from ortplugin.graph.bounds import Bound, result_bound
from ortplugin.model.checks import skeleton

ADDRESSES = 3 << 30  # bytes that the child may ask for
MEMORY = 300 << 10  # KiB that it may use; importing everything takes 60 MiB
SECONDS = 30
INT64, FLOAT = TensorProto.INT64, TensorProto.FLOAT


def model_of(nodes, x="float[1]", opset=18, functions="", **constants):
  """Nodes that make y of x and of constants; functions are of the domain 'mine'."""
  weights = {name: np.asarray(value) for name, value in constants.items()}
  domains = ["mine"] if functions else []
  return parsed(f"({x} x) => (float[?] y) {{ {nodes} }} {functions}", opset, domains=domains, weights=weights)


def doubled(op, count, first):
  """A chain of op(c, c) that begins with `first` and ends in a float output y."""
  names = [first, *(f"c{index}" for index in range(count))]
  return " ".join(f"{b} = {op}({a}, {a})" for a, b in pairwise(names)) + f" y = Cast<to=1>({names[-1]})"


CONCAT = "Concat<axis=0>"
BACKWARDS = "p = MaxPool<kernel_shape=[9]>(x) y = Slice(p, i, j, i, k)"
AT = {"i": [2], "j": [-100], "k": [-1]}

HOSTILE = {
  "a range": model_of("r = Range(a, b, c) y = Cast<to=1>(r)", a=0, b=1 << 40, c=1),
  "constants that double": model_of(doubled(CONCAT, 34, "c"), c=range(4)),
  "inputs that double": model_of(doubled(CONCAT, 34, "x"), "int64[4]"),
  "sums of what doubled": model_of(f"{doubled(CONCAT, 30, 'x')} z = Add(c29, c29)", "int64[4]"),
  "a long input": model_of("s = Add(x, x) y = Cast<to=1>(s)", f"int64[{1 << 40}]"),
  "a long shape": model_of("s = ConstantOfShape(x) y = Identity(s)", f"int64[{1 << 40}]"),
  "the rank of a table of indices": model_of(doubled("Gather", 40, "x"), "int64[2,2]"),
  "a table of what doubled": model_of(f"{doubled(CONCAT, 34, 'x')} z = Gather(c33, i)", "int64[4]", i=range(4)),
  "views of what doubled": model_of(
    f"{doubled(CONCAT, 34, 'x')} u = Unsqueeze(c33, i) v = Squeeze(u, i) w = Slice(v, i, j) z = Mul(w, w)",
    "int64[4]",
    i=[0],
    j=[1 << 50],
  ),
  "an expanded shape": model_of("e = Expand(x, s) d = Sub(e, x) y = Cast<to=1>(d)", "int64[1]", s=[1 << 40]),
  "outputs that no one asks for": model_of(
    f"s, t = Split<num_outputs = {1 << 40}>(x) y = Identity(s)", f"float[{1 << 41}]"
  ),
  "a slice of a negative length": model_of(BACKWARDS, "float[1,1,4]", **AT),
  "a slice of a length that is declared negative": model_of("y = Slice(x, i, j)", "float[-7]", i=[0], j=[5]),
  "a slice of opset 11": model_of(BACKWARDS, "float[1,1,4]", 11, **AT),
  "scattered constants": model_of(
    "s = ScatterElements(c, i, u) y = Cast<to=1>(s)",
    c=np.zeros(1 << 17, np.int64),
    i=np.zeros(1 << 20, np.int64),
    u=np.zeros(1 << 20, np.int64),
  ),
  "calls that double": model_of(
    "s = mine.F39(x) y = Cast<to=1>(s)",
    functions=" ".join(
      f"""<domain: "mine", opset_import: ["" : 18, "mine" : 1]> F{index} (a) => (c)
          {{ b = {op}(a) c = {op}(b) }}"""
      for index, op in enumerate(["Neg", *(f"mine.F{called}" for called in range(39))])
    ),
  ),
  "a function that doubles": model_of(  # values are kept in it as well
    "s = mine.F(x) y = Cast<to=1>(s)",
    "int64[4]",
    functions=f"""<domain: "mine", opset_import: ["" : 18]> F (a) => (y) {{ {doubled(CONCAT, 34, "a")} }}""",
  ),
}


@one_in(12)
@parametrize("what", HOSTILE)
def test_small_files_take_little_memory_and_time(what, tmp_path):
  path = tmp_path / "hostile.onnx"
  path.write_bytes(HOSTILE[what].SerializeToString())
  program = f"""
        import re, resource
        resource.setrlimit(resource.RLIMIT_AS, ({ADDRESSES}, {ADDRESSES}))
        from ortplugin.cli import main
        options = ["-o", {str(tmp_path / "out.onnx")!r}, "--no-verify", "--skip", "inline-functions"]
        status = main([{str(path)!r}, *options])
        print(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1])  # KiB, of this program alone
        raise SystemExit(10 + status)
    """
  environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
  done = subprocess.run(
    [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=SECONDS, env=environment
  )
  assert done.returncode == 10, done.stderr
  assert done.stderr == ""
  assert int(done.stdout.splitlines()[-1]) < MEMORY


def test_every_operator_whose_values_onnx_keeps_is_known():
  """One that a new version of onnx adds has to be looked at: how its values can be kept small."""
  schemas = onnx.defs.get_all_schemas_with_history()
  kept = {each.name: [] for each in schemas if each.has_data_propagation_function}
  for each in schemas:
    if each.name in kept and each.has_data_propagation_function:
      kept[each.name].append(each.since_version)
  assert {name: min(versions) for name, versions in kept.items() if name not in ("Shape", "Size")} == dict(
    inference.KEPT_FROM
  )


def types(model):
  found = {}

  def visit(graph, place):
    for info in (*graph.value_info, *graph.output):
      tensor = info.type.tensor_type
      if info.type.HasField("tensor_type"):
        dims = [each.dim_value if each.HasField("dim_value") else each.dim_param for each in tensor.shape.dim]
        shape = [None if isinstance(each, str) and each.startswith("unk__") else each or None for each in dims]
        found[place + info.name] = tensor.elem_type, shape if tensor.HasField("shape") else None
    for each in graph.node:
      for attribute in each.attribute:
        if attribute.type == AttributeProto.GRAPH:
          visit(attribute.g, f"{place}{each.output[0]}/{attribute.name}/")

  visit(model.graph, "")
  return found


ONNX_MODELS = Path(onnx.backend.test.__file__).parent / "data"


@parametrize("folder", [lambda: DATA, architectures, lambda: ONNX_MODELS], ids=["exported", "wide", "onnx"])
def test_real_models_lose_nothing(folder):
  paths = sorted(folder().glob("**/*.onnx"))
  assert paths
  for path in paths:
    model = onnx.load(path)
    if any(each.domain == "ai.onnx.ml" for each in model.opset_import):
      continue  # whose operators are hidden from onnx; see `_hide_other`
    expected = types(onnx.shape_inference.infer_shapes(skeleton(model), data_prop=True))
    assert types(inference.infer_shapes(skeleton(model))) == expected, path


def inferred_without_output(model):
  model.graph.output[0].type.ClearField("value")
  return inference.infer_shapes(model)


@parametrize("use", ["Squeeze(x, axes)", "Unsqueeze(x, axes)"])
def test_views_along_unknown_axes_have_their_dtype(use):
  """Paddle's exporter writes axes behind an Identity. What comes after has a shape, if x has a dtype."""
  model = parsed(f"""(float16[N,3,1] data) => (float16 y) <int64[1] of = {{1}}, int64[2] to = {{-1,3}}>
    {{ x = Squeeze(data)  axes = Identity(of)  view = {use}  part = Relu(view)  y = Reshape(part, to) }}""")
  inferred = inferred_without_output(model)
  assert types(inferred)["view"] == (TensorProto.FLOAT16, None)
  assert types(inferred)["y"] == (TensorProto.FLOAT16, [None, 3])


def test_shapes_may_be_taken_apart_again_and_again():
  """As DeBERTa does, with more and more elements for all that a sum of what goes in can tell."""
  layers = 8
  nodes = "\n".join(
    f"""s{at} = Shape(r{at})  a{at} = Slice(s{at}, zero, one, zero)  b{at} = Slice(s{at}, minus_two, last)
      c{at} = Slice(s{at}, last, end, zero, one)  d{at} = Squeeze(b{at}, zero)  e{at} = Unsqueeze(d{at}, zero)
      f{at} = Concat<axis=0>(a{at}, e{at}, c{at})  h{at} = Concat<axis=0>(a{at}, last, c{at})
      v{at} = Reshape(r{at}, f{at})  w{at} = Reshape(v{at}, h{at})  r{at + 1} = Relu(w{at})"""
    for at in range(layers)
  )
  model = parsed(f"""(float[N,6,M] r0) => (float r{layers})
    <int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] last = {{-1}},
     int64[1] minus_two = {{-2}}, int64[1] end = {{9223372036854775807}}> {{ {nodes} }}""")
  model.graph.output[0].type.ClearField("value")
  expected = types(onnx.shape_inference.infer_shapes(model, data_prop=True))
  assert len(expected[f"r{layers}"][1]) == 3
  assert types(inference.infer_shapes(model)) == expected


@parametrize(
  "start, end, length",
  [(0, 3, 3), (1, 9, 8), (-3, -1, 2), (-2, 1 << 62, 2), (-9, 4, 4), (2, -2, 10), (3, 1, 0), (-1, -4, 0)],
)
def test_the_bound_of_a_slice(start, end, length):
  """Never less than what a Slice of any vector of up to ten elements leaves."""
  inputs = [Bound(10, 1, True), Bound(1, 1, True, (start,)), Bound(1, 1, True, (end,))]
  assert result_bound(helper.make_node("Slice", ["x", "s", "e"], ["y"]), inputs, 0).elements == length
  assert length >= max(len(range(size)[start:end]) for size in range(11))
  backwards = [*inputs, Bound(1, 1, True, (0,)), Bound(1, 1, True, (-1,))]
  assert result_bound(helper.make_node("Slice", ["x", "s", "e", "a", "t"], ["y"]), backwards, 0).elements == 10


# Nodes whose values are not kept, here because x is long, but whose shapes are inferred.
SHAPES_ONLY = {
  "Add(x, x)": [5000],
  "Sub(x, x)": [5000],
  "Mul(x, x)": [5000],
  "Cast<to=1>(x)": [5000],
  "Concat<axis=0>(x, x, x)": [15000],
  "Concat<axis=-1>(x, x)": [10000],
  "Slice(x, i, j)": [3],
  "Slice(x, i, j, zero)": [3],
  "Slice(x, i, j, , i)": [3],
  "Slice(t, i, j, one, i)": [20, 3],
  "Gather(x, pair)": [1, 2],
  "Gather(x, scalar)": [],
  "Gather<axis=-1>(t, pair)": [20, 1, 2],
  "Gather<axis=-2>(t, pair)": [1, 2, 250],
  "Gather<axis=1>(t, scalar)": [20],
  "Unsqueeze(x, zero)": [1, 5000],
  "Unsqueeze(x, ends)": [1, 5000, 1],
  "Squeeze(row, zero)": [5000],
  "Squeeze(row)": [5000],
}


@parametrize("text", SHAPES_ONLY)
def test_nodes_whose_values_are_not_kept_have_their_shapes(text):
  model = parsed(f"""(int64[5000] x) => (int64[A] y)
    <int64[1] i = {{1}}, int64[1] j = {{4}}, int64[1] zero = {{0}}, int64[1] one = {{1}},
     int64[1,2] pair = {{0,1}}, int64 scalar = {{3}}, int64[2] ends = {{0,2}},
     int64[2] of_t = {{20,250}}, int64[2] of_row = {{1,5000}}>
    {{ t = Reshape(x, of_t)  row = Reshape(x, of_row)  y = {text} }}""")
  del model.graph.output[0].type.tensor_type.shape.dim[:]
  inferred = inferred_without_output(model)
  assert inferred.graph.node[2].domain, "its values are kept"
  shape = inferred.graph.output[0].type.tensor_type.shape
  assert [each.dim_value for each in shape.dim] == SHAPES_ONLY[text]
  expected = FLOAT if "Cast" in text else INT64
  assert inferred.graph.output[0].type.tensor_type.elem_type == expected


def test_shapes_go_through_local_functions():
  model = parsed(
    """(float[2,3,8] x) => (float y) { s = Shape(x)  t = mine.F(x)  y = Reshape(t, s) }
      <domain: "mine", opset_import: ["" : 18]> F (x) => (y) {
          i = Constant<value_ints=[0]>()  j = Constant<value_ints=[4]>()  k = Constant<value_ints=[-1]>()
          a = Slice(x, i, j, k)  b = Slice(x, j, i, k)  c = Concat<axis=2>(a, a)  d = Add(c, x)
          e = Unsqueeze(d, i)  f = Squeeze(e, i)  h = Gather<axis=0>(f, i)  y = Cast<to=1>(f) }""",
    18,
    9,
    domains=["mine"],
  )
  inferred = inferred_without_output(model)
  types_of = {each.name: each.type.tensor_type for each in (*inferred.graph.value_info, *inferred.graph.output)}
  for name in "ty":
    assert [each.dim_value for each in types_of[name].shape.dim] == [2, 3, 8]
    assert types_of[name].elem_type == FLOAT


def test_a_slice_of_unknown_bounds_is_not_taken_for_one_from_zero():
  """onnx takes a start that it does not know for 0: it would make y's shape [2, 3] of x's [2, 3, 5]."""
  model = parsed("""(float[2,3,5] x, int64[1] start, float[1] one) => (float y) <int64[1] end = {2}>
    { s = Shape(x)  part = Slice(s, start, end)  y = Expand(one, part) }""")
  inferred = inferred_without_output(model)
  assert [each.dim_value for each in inferred.graph.output[0].type.tensor_type.shape.dim] != [2, 3]


TREE = """
    ai.onnx.ml.TreeEnsemble<n_targets = 1, nodes_featureids = [0], nodes_splits = float[1] {1},
    nodes_modes = uint8[1] {0}, nodes_truenodeids = [0], nodes_falsenodeids = [1], nodes_trueleafs = [1],
    nodes_falseleafs = [1], tree_roots = [0], leaf_targetids = [0, 0], leaf_weights = float[2] {2, 3}>"""


@parametrize(
  "nodes",
  [
    f"a = other.Operator(x)  t = {TREE}(a)",
    f"""a = other.Operator(x)  c = Constant<value=bool {{1}}>()
        t = If(c) <then_branch = g () => (float[A,B] p) {{ p = {TREE}(a) }},
                   else_branch = g () => (float[A,B] q) {{ q = {TREE}(a) }}>""",
    "t = local.trees(x)",
  ],
  ids=["graph", "body", "function"],
)
def test_onnx_does_not_see_other_domains_of_its_own(nodes):
  """In a process of its own: onnx's inference of a TreeEnsemble whose input has no known type dies."""
  text = f"""<ir_version: 9, opset_import: ["" : 18, "ai.onnx.ml" : 5, "local" : 1, "other" : 1]>
    g (float[3,2] x) => (float[3,2] y) {{ {nodes}  y = Relu(x) }}
    <domain: "local", opset_import: ["" : 18, "ai.onnx.ml" : 5, "other" : 1]>
    trees (v) => (w) {{ a = other.Operator(v)  w = {TREE}(a) }}"""
  script = f"""if True:
        import onnx.parser
        from ortplugin.graph.inference import infer_shapes
        model = onnx.parser.parse_model({text!r})
        found = infer_shapes(model)
        assert found.graph.output[0].type.tensor_type.shape.dim[0].dim_value == 3
    """
  done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
  assert done.returncode == 0, (done.returncode, done.stderr)
