"""Shape inference: as much as onnx's, in bounded time and memory; RELIABILITY 43 and found from outside, 17."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.backend.test
import pytest
from exported import DATA, architectures
from onnx import AttributeProto, ModelProto, TensorProto, helper
from onnx_models import built, parsed

from ortplugin.graph import inference
from ortplugin.graph.bounds import Bound, result_bound
from ortplugin.model.checks import skeleton

ADDRESSES = 3 << 30  # bytes that the child may ask for
MEMORY = 300 << 10  # KiB that it may use; importing everything takes 60 MiB
SECONDS = 30
INT64, FLOAT = TensorProto.INT64, TensorProto.FLOAT


def model_of(
  nodes: list[onnx.NodeProto], dtype: int = FLOAT, shape: list[Any] | None = None, opset: int = 18, **constants: Any
) -> ModelProto:
  """Nodes that make y of x and of constants."""
  weights = {name: np.asarray(value) for name, value in constants.items()}
  return built(nodes, {"x": (dtype, [1] if shape is None else shape)}, {"y": (FLOAT, [None])}, opset, weights=weights)


def doubled(op: str, count: int, first: str, **attributes: Any) -> list[onnx.NodeProto]:
  """A chain of op(c, c) that begins with `first` and ends in a float output y."""
  names = [first, *(f"c{index}" for index in range(count))]
  nodes = [helper.make_node(op, [a, a], [b], **attributes) for a, b in pairwise(names)]
  return [*nodes, helper.make_node("Cast", [names[-1]], ["y"], to=FLOAT)]


def then(*nodes: onnx.NodeProto) -> list[onnx.NodeProto]:
  return [*nodes, helper.make_node("Cast", [nodes[-1].output[0]], ["y"], to=FLOAT)]


node = helper.make_node
FOUR = np.arange(4, dtype=np.int64)
LONG = np.int64(1 << 40)

HOSTILE = {
  "a range": model_of([*then(node("Range", ["a", "b", "c"], ["r"]))], a=np.int64(0), b=LONG, c=np.int64(1)),
  "constants that double": model_of(doubled("Concat", 34, "c", axis=0), c=FOUR),
  "inputs that double": model_of(doubled("Concat", 34, "x", axis=0), INT64, [4]),
  "sums of what doubled": model_of(
    [*doubled("Concat", 30, "x", axis=0), node("Add", ["c29", "c29"], ["z"])], INT64, [4]
  ),
  "a long input": model_of(then(node("Add", ["x", "x"], ["s"])), INT64, [1 << 40]),
  "a long shape": model_of([node("ConstantOfShape", ["x"], ["s"]), node("Identity", ["s"], ["y"])], INT64, [1 << 40]),
  "the rank of a table of indices": model_of(doubled("Gather", 40, "x"), INT64, [2, 2]),
  "a table of what doubled": model_of(
    [*doubled("Concat", 34, "x", axis=0), node("Gather", ["c33", "i"], ["z"])], INT64, [4], i=FOUR
  ),
  "views of what doubled": model_of(
    [
      *doubled("Concat", 34, "x", axis=0),
      node("Unsqueeze", ["c33", "i"], ["u"]),
      node("Squeeze", ["u", "i"], ["v"]),
      node("Slice", ["v", "i", "j"], ["w"]),
      node("Mul", ["w", "w"], ["z"]),
    ],
    INT64,
    [4],
    i=np.array([0]),
    j=np.array([1 << 50]),
  ),
  "an expanded shape": model_of(
    then(node("Expand", ["x", "s"], ["e"]), node("Sub", ["e", "x"], ["d"])), INT64, [1], s=np.array([1 << 40])
  ),
  "outputs that no one asks for": model_of(
    [node("Split", ["x"], ["s", "t"], num_outputs=1 << 40), node("Identity", ["s"], ["y"])], FLOAT, [1 << 41]
  ),
  "a slice of a negative length": model_of(
    [node("MaxPool", ["x"], ["p"], kernel_shape=[9]), node("Slice", ["p", "i", "j", "i", "k"], ["y"])],
    FLOAT,
    [1, 1, 4],
    i=np.array([2]),
    j=np.array([-100]),
    k=np.array([-1]),
  ),
  "a slice of a length that is declared negative": model_of(
    [node("Slice", ["x", "i", "j"], ["y"])], FLOAT, [-7], i=np.array([0]), j=np.array([5])
  ),
  "a slice of opset 11": model_of(
    [node("MaxPool", ["x"], ["p"], kernel_shape=[9]), node("Slice", ["p", "i", "j", "i", "k"], ["y"])],
    FLOAT,
    [1, 1, 4],
    11,
    i=np.array([2]),
    j=np.array([-100]),
    k=np.array([-1]),
  ),
  "scattered constants": model_of(
    then(node("ScatterElements", ["c", "i", "u"], ["s"])),
    c=np.zeros(1 << 17, np.int64),
    i=np.zeros(1 << 20, np.int64),
    u=np.zeros(1 << 20, np.int64),
  ),
}


def calls_that_double() -> ModelProto:
  """Each function calls the one before twice."""
  model = model_of(then(node("F39", ["x"], ["s"], domain="mine")))
  imports = [helper.make_opsetid("", 18), helper.make_opsetid("mine", 1)]
  model.opset_import.add(domain="mine", version=1)
  for index in range(40):
    call = {"domain": "mine"} if index else {}
    op = f"F{index - 1}" if index else "Neg"
    body = [node(op, ["a"], ["b"], **call), node(op, ["b"], ["c"], **call)]
    model.functions.append(helper.make_function("mine", f"F{index}", ["a"], ["c"], body, imports))
  return model


HOSTILE["calls that double"] = calls_that_double()


def function_that_doubles() -> ModelProto:
  """A function of the model's own, in which values are kept as well."""
  model = model_of(then(node("F", ["x"], ["s"], domain="mine")), INT64, [4])
  names = ["a", *(f"b{index}" for index in range(34))]
  body = [node("Concat", [a, a], [b], axis=0) for a, b in pairwise(names)]
  imports = [helper.make_opsetid("", 18)]
  model.functions.append(helper.make_function("mine", "F", ["a"], [names[-1]], body, imports))
  model.opset_import.add(domain="mine", version=1)
  return model


HOSTILE["a function that doubles"] = function_that_doubles()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("what", HOSTILE)
def test_small_files_take_little_memory_and_time(what: str, tmp_path: Path) -> None:
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


def test_every_operator_whose_values_onnx_keeps_is_known() -> None:
  """One that a new version of onnx adds has to be looked at: how its values can be kept small."""
  schemas = onnx.defs.get_all_schemas_with_history()
  kept = {each.name: [] for each in schemas if each.has_data_propagation_function}
  for each in schemas:
    if each.name in kept and each.has_data_propagation_function:
      kept[each.name].append(each.since_version)
  assert {name: min(versions) for name, versions in kept.items() if name not in ("Shape", "Size")} == dict(
    inference.KEPT_FROM
  )


def types(model: ModelProto) -> dict[str, Any]:
  """What is known of each value, names that inference made up apart."""
  found: dict[str, Any] = {}

  def visit(graph: onnx.GraphProto, place: str) -> None:
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


@pytest.mark.parametrize("folder", [lambda: DATA, architectures, lambda: ONNX_MODELS], ids=["exported", "wide", "onnx"])
def test_real_models_lose_nothing(folder: Callable[[], Path]) -> None:
  paths = sorted(folder().glob("**/*.onnx"))
  assert paths
  for path in paths:
    model = onnx.load(path)
    if any(each.domain == "ai.onnx.ml" for each in model.opset_import):
      continue  # whose operators are hidden from onnx; see `_hide_other`
    expected = types(onnx.shape_inference.infer_shapes(skeleton(model), data_prop=True))
    assert types(inference.infer_shapes(skeleton(model))) == expected, path


@pytest.mark.parametrize("use", ["Squeeze(x, axes)", "Unsqueeze(x, axes)"])
def test_views_along_unknown_axes_have_their_dtype(use: str) -> None:
  """Paddle's exporter writes axes behind an Identity. What comes after has a shape, if x has a dtype."""
  model = parsed(f"""g (float16[N,3,1] data) => (float16 y) <int64[1] of = {{1}}, int64[2] to = {{-1, 3}}>
    {{ x = Squeeze(data)  axes = Identity(of)  view = {use}  part = Relu(view)  y = Reshape(part, to) }}""")
  model.graph.output[0].type.ClearField("value")
  inferred = inference.infer_shapes(model)
  assert types(inferred)["view"] == (TensorProto.FLOAT16, None)
  assert types(inferred)["y"] == (TensorProto.FLOAT16, [None, 3])


def test_shapes_may_be_taken_apart_again_and_again() -> None:
  """As DeBERTa does, with more and more elements for all that a sum of what goes in can tell."""
  layers = 8
  nodes = "\n".join(
    f"""s{at} = Shape(r{at})  a{at} = Slice(s{at}, zero, one, zero)  b{at} = Slice(s{at}, minus_two, last)
      c{at} = Slice(s{at}, last, end, zero, one)  d{at} = Squeeze(b{at}, zero)  e{at} = Unsqueeze(d{at}, zero)
      f{at} = Concat<axis = 0>(a{at}, e{at}, c{at})  h{at} = Concat<axis = 0>(a{at}, last, c{at})
      v{at} = Reshape(r{at}, f{at})  w{at} = Reshape(v{at}, h{at})  r{at + 1} = Relu(w{at})"""
    for at in range(layers)
  )
  model = parsed(f"""g (float[N,6,M] r0) => (float r{layers})
    <int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] last = {{-1}},
     int64[1] minus_two = {{-2}}, int64[1] end = {{9223372036854775807}}> {{ {nodes} }}""")
  model.graph.output[0].type.ClearField("value")
  expected = types(onnx.shape_inference.infer_shapes(model, data_prop=True))
  assert len(expected[f"r{layers}"][1]) == 3
  assert types(inference.infer_shapes(model)) == expected


@pytest.mark.parametrize(
  ("start", "end", "length"),
  [(0, 3, 3), (1, 9, 8), (-3, -1, 2), (-2, 1 << 62, 2), (-9, 4, 4), (2, -2, 10), (3, 1, 0), (-1, -4, 0)],
)
def test_the_bound_of_a_slice(start: int, end: int, length: int) -> None:
  """Never less than what a Slice of any vector of up to ten elements leaves."""
  inputs = [Bound(10, 1, True), Bound(1, 1, True, (start,)), Bound(1, 1, True, (end,))]
  assert result_bound(node("Slice", ["x", "s", "e"], ["y"]), inputs, 0).elements == length
  assert length >= max(len(range(size)[start:end]) for size in range(11))
  backwards = [*inputs, Bound(1, 1, True, (0,)), Bound(1, 1, True, (-1,))]
  assert result_bound(node("Slice", ["x", "s", "e", "a", "t"], ["y"]), backwards, 0).elements == 10


# Nodes whose values are not kept, here because x is long, but whose shapes are inferred.
SHAPES_ONLY = {
  "Add(x, x)": [5000],
  "Sub(x, x)": [5000],
  "Mul(x, x)": [5000],
  "Cast<to = 1>(x)": [5000],
  "Concat<axis = 0>(x, x, x)": [15000],
  "Concat<axis = -1>(x, x)": [10000],
  "Slice(x, i, j)": [3],
  "Slice(x, i, j, zero)": [3],
  "Slice(x, i, j, , i)": [3],
  "Slice(t, i, j, one, i)": [20, 3],
  "Gather(x, pair)": [1, 2],
  "Gather(x, scalar)": [],
  "Gather<axis = -1>(t, pair)": [20, 1, 2],
  "Gather<axis = -2>(t, pair)": [1, 2, 250],
  "Gather<axis = 1>(t, scalar)": [20],
  "Unsqueeze(x, zero)": [1, 5000],
  "Unsqueeze(x, ends)": [1, 5000, 1],
  "Squeeze(row, zero)": [5000],
  "Squeeze(row)": [5000],
}


@pytest.mark.parametrize("text", SHAPES_ONLY)
def test_nodes_whose_values_are_not_kept_have_their_shapes(text: str) -> None:
  model = parsed(f"""g (int64[5000] x) => (int64[A] y)
    <int64[1] i = {{1}}, int64[1] j = {{4}}, int64[1] zero = {{0}}, int64[1] one = {{1}},
     int64[1,2] pair = {{0, 1}}, int64 scalar = {{3}}, int64[2] ends = {{0, 2}},
     int64[2] of_t = {{20, 250}}, int64[2] of_row = {{1, 5000}}>
    {{ t = Reshape(x, of_t)  row = Reshape(x, of_row)  y = {text} }}""")
  del model.graph.output[0].type.tensor_type.shape.dim[:]
  model.graph.output[0].type.ClearField("value")
  inferred = inference.infer_shapes(model)
  assert inferred.graph.node[2].domain, "its values are kept"
  shape = inferred.graph.output[0].type.tensor_type.shape
  assert [each.dim_value for each in shape.dim] == SHAPES_ONLY[text]
  expected = FLOAT if "Cast" in text else INT64
  assert inferred.graph.output[0].type.tensor_type.elem_type == expected


def test_shapes_go_through_local_functions() -> None:
  model = parsed(
    """g (float[2,3,8] x) => (float y) { s = Shape(x)  t = mine.F(x)  y = Reshape(t, s) }
      <domain: "mine", opset_import: ["" : 18]> F (x) => (y) {
          i = Constant<value_ints = [0]>()  j = Constant<value_ints = [4]>()  k = Constant<value_ints = [-1]>()
          a = Slice(x, i, j, k)  b = Slice(x, j, i, k)  c = Concat<axis = 2>(a, a)  d = Add(c, x)
          e = Unsqueeze(d, i)  f = Squeeze(e, i)  h = Gather<axis = 0>(f, i)  y = Cast<to = 1>(f) }""",
    18,
    9,
    domains=["mine"],
  )
  model.graph.output[0].type.ClearField("value")
  inferred = inference.infer_shapes(model)
  types_of = {each.name: each.type.tensor_type for each in (*inferred.graph.value_info, *inferred.graph.output)}
  for name in "ty":
    assert [each.dim_value for each in types_of[name].shape.dim] == [2, 3, 8]
    assert types_of[name].elem_type == FLOAT


def test_a_slice_of_unknown_bounds_is_not_taken_for_one_from_zero() -> None:
  """onnx takes a start that it does not know for 0: it would make y's shape [2, 3] of x's [2, 3, 5]."""
  model = parsed("""g (float[2,3,5] x, int64[1] start, float[1] one) => (float y) <int64[1] end = {2}>
    { s = Shape(x)  part = Slice(s, start, end)  y = Expand(one, part) }""")
  model.graph.output[0].type.ClearField("value")
  inferred = inference.infer_shapes(model)
  assert [each.dim_value for each in inferred.graph.output[0].type.tensor_type.shape.dim] != [2, 3]


TREE = """
    ai.onnx.ml.TreeEnsemble<n_targets = 1, nodes_featureids = [0], nodes_splits = float[1] {1},
    nodes_modes = uint8[1] {0}, nodes_truenodeids = [0], nodes_falsenodeids = [1], nodes_trueleafs = [1],
    nodes_falseleafs = [1], tree_roots = [0], leaf_targetids = [0, 0], leaf_weights = float[2] {2, 3}>"""


@pytest.mark.parametrize(
  "nodes",
  [
    f"a = other.Operator(x)  t = {TREE}(a)",
    f"""a = other.Operator(x)  c = Constant<value = bool {{1}}> ()
        t = If(c) <then_branch = g () => (float[A,B] p) {{ p = {TREE}(a) }},
                   else_branch = g () => (float[A,B] q) {{ q = {TREE}(a) }}>""",
    "t = local.trees(x)",
  ],
  ids=["graph", "body", "function"],
)
def test_onnx_does_not_see_other_domains_of_its_own(nodes: str) -> None:
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
