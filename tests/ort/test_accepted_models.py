"""Models that ONNX Runtime runs though ONNX does not allow them: optimized, they run and compute the same."""

import glob
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnx.backend.test
import onnx.parser
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from onnx_models import add_weights, one_in, parametrize, raises

from ort.host import make
from ortplugin.cli import main
from ortplugin.errors import ModelError
from ortplugin.model.normalise import normalised
from ortplugin.model.storage import load, save_model
from ortplugin.model.upgrade import upgrade
from ortplugin.optimizer import optimize


def built(nodes, weights=None, opsets='"" : 17', ir=8, inputs="float[2,4] x", output="float[2,4] y"):
  """Nodes that make t of x; then y = t + Exp(Neg(x)), for the optimizer to have work."""
  graph = f"accepted ({inputs}) => ({output}) {{ {nodes} neg = Neg(x) exp = Exp(neg) y = Add(t, exp) }}"
  model = onnx.parser.parse_model(f"<ir_version: {ir}, opset_import: [{opsets}]> {graph}")
  add_weights(model, **{name: np.asarray(values, np.float32) for name, values in (weights or {}).items()})
  return model


def reversed_nodes():
  model = built("t = Relu(x)")
  model.graph.node.reverse()
  return model


def branches(read):
  return f"""If(c) <then_branch = then () => (float[2,4] p) {{ p = Relu({read}) }},
                    else_branch = other () => (float[2,4] q) {{ q = Abs({read}) }}>"""


def deprecated(opset):
  """GroupNormalization with a scale of each group, which onnx deprecates where it is defined."""
  norm = "t = GroupNormalization<num_groups=2>(x, scale, bias)"
  constants = {"scale": [0.5, 2], "bias": [1, -1]}
  return built(norm, constants, f'"" : {opset}', inputs="float[2,4,3] x", output="float[2,4,3] y")


def imported_twice(opsets):
  """Softmax flattened its input until opset 12: which import counts shows in what it computes."""
  return built("t = Softmax(x)", opsets=opsets, inputs="float[2,3,4] x", output="float[2,3,4] y")


def function_of_another_opset():
  opsets = '"" : 17, "mine" : 1'
  model = built("t = mine.F(x)", opsets=opsets, inputs="float[2,3,4] x", output="float[2,3,4] y")
  function = '<domain: "mine", opset_import: ["" : 11]> F (a) => (b) { b = Softmax(a) }'
  model.functions.append(onnx.parser.parse_function(function))
  return model


def sparse(indices, dtype, as_node):
  values = numpy_helper.from_array(np.arange(1, 1 + len(indices), dtype=np.float32), "" if as_node else "c")
  constant = helper.make_sparse_tensor(values, numpy_helper.from_array(np.array(indices, dtype), ""), [2, 4])
  model = built("t = Add(x, c)")
  if as_node:
    model.graph.node.insert(0, helper.make_node("Constant", [], ["c"], sparse_value=constant))
  else:
    model.graph.sparse_initializer.append(constant)
  return model


def without(side, what):
  """`side`: "input" or "output"; `what` it lacks: "shape" or "type"."""
  model = built("t = Relu(x)")
  (value,) = getattr(model.graph, side)
  if what == "shape":
    value.type.tensor_type.ClearField("shape")
  else:
    value.ClearField("type")
  return model


def of_dtype(number):
  model = built("t = Relu(x)")
  model.graph.input[0].type.tensor_type.elem_type = number
  return model


ADDED, ROW = "t = Add(x, w)", {"w": [[1, -2, 3, 0.5]]}
MODELS = {
  "nodes out of order": reversed_nodes,
  "a body before what it reads": lambda: built(f"t = {branches('late')} late = Sin(x)", inputs="float[2,4] x, bool c"),
  "com.microsoft not imported": lambda: built("t = com.microsoft.Gelu(x)"),
  "ai.onnx.ml not imported": lambda: built("t = ai.onnx.ml.Scaler<offset=[1.0], scale=[2.0]>(x)"),
  "IR 3, an initializer that is no input": lambda: built(ADDED, ROW, '"" : 13', 3),
  "IR 3, one that is and one that is not": lambda: built(
    f"s = Mul(x, v) {ADDED.replace('x', 's')}", {"v": ROW["w"], **ROW}, '"" : 13', 3, "float[2,4] x, float[1,4] w"
  ),
  "IR 3 and opset 8": lambda: built(ADDED, ROW, '"" : 8', 3),
  "an input without a shape": lambda: without("input", "shape"),
  "an output without a shape": lambda: without("output", "shape"),
  "an output without a type": lambda: without("output", "type"),
  "ai.onnx imported": lambda: built("t = Relu(x)", opsets='"ai.onnx" : 17'),
  "ai.onnx on a node": lambda: built("t = ai.onnx.Relu(x)"),
  "ai.onnx on both": lambda: built("t = ai.onnx.Relu(x)", opsets='"ai.onnx" : 17'),
  "imported twice": lambda: imported_twice('"" : 17, "" : 17'),
  "imported under both names": lambda: imported_twice('"ai.onnx" : 17, "" : 17'),
  "imported as 11, then 13": lambda: imported_twice('"" : 11, "" : 13'),
  "imported as 13, then 11": lambda: imported_twice('"" : 13, "ai.onnx" : 11'),
  "a function of another opset": function_of_another_opset,
  "deprecated, opset 18": lambda: deprecated(18),
  "deprecated, opset 20": lambda: deprecated(20),
  **{
    f"sparse, {dtype}, {'node' if as_node else 'initializer'}": partial(sparse, [1, 6], dtype, as_node)
    for dtype in ("int8", "int16", "int32", "int64")
    for as_node in (True, False)
  },
  "sparse, not sorted": lambda: sparse([6, 1, 3], np.int64, True),
  "sparse, coordinates not sorted": lambda: sparse([[1, 2], [0, 3], [1, 0]], np.int64, False),
}


def outputs(session):
  rng = np.random.default_rng(7)
  feeds = {
    each.name: np.array(True)
    if each.type == "tensor(bool)"
    else rng.standard_normal(each.shape or [2, 4]).astype(np.float32)
    for each in session.get_inputs()
  }
  return list(session.run(None, feeds))


@one_in(8)
@parametrize("what", MODELS)
def test_is_optimized_and_computes_the_same(what, tmp_path):
  model = MODELS[what]()
  source, target = tmp_path / "in.onnx", tmp_path / "out.onnx"
  source.write_bytes(model.SerializeToString())
  shapes = ["--input-shape", "x:2,4"] if what == "an input without a shape" else []
  assert main([str(source), "-o", str(target), "--provider", "cpu", *shapes]) == 0
  assert [each.op_type for each in onnx.load(target).graph.node if each.domain == "ortplugin"], "nothing was done"
  expected = outputs(onnxruntime.InferenceSession(str(source)))
  for a, b in zip(expected, outputs(make(target.read_bytes())), strict=True):
    np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-6)


@parametrize("what", MODELS)
def test_the_callers_model_is_not_changed(what):
  model = MODELS[what]()
  before = model.SerializeToString(deterministic=True)
  optimize(model)
  assert model.SerializeToString(deterministic=True) == before
  again = normalised(model)
  assert normalised(again) is again


def test_an_input_without_a_shape_is_named_with_the_remedy(tmp_path, capsys):
  source = tmp_path / "in.onnx"
  model = built("again = Identity(x) t = Relu(again)")  # so that there is something to verify
  model.graph.input[0].type.tensor_type.ClearField("shape")
  source.write_bytes(model.SerializeToString())
  assert main([str(source), "-o", str(tmp_path / "out.onnx"), "--provider", "cpu"]) == 1
  assert "input 'x' has no shape in the model; give --input-shape x:" in capsys.readouterr().err
  assert main([str(source), "-o", str(tmp_path / "out.onnx"), "--no-verify"]) == 0


def test_a_cycle_is_refused_with_its_nodes(tmp_path):
  path = tmp_path / "in.onnx"
  long = " ".join(f"v{(i + 1) % 50} = Neg(v{i})" for i in range(50))
  for model, words in (
    (built("[first] a = Add(x, b)  b = Neg(a)  t = Sin(b)"), r"'first' \(Add\) -> 'b' \(Neg\) -> 'first' \(Add\)"),
    (built(f"{long} t = Neg(v3)"), r"'\w+' \(Neg\) -> .* -> \.\.\. -> '\w+' \(Neg\)"),
    (built(f"[if] t = {branches('t')}", inputs="float[2,4] x, bool c"), r"'if' \(If\) -> 'if' \(If\)"),
  ):
    path.write_bytes(model.SerializeToString())
    with raises(ModelError, f"cycle: {words}; export"):
      load(path)


@parametrize(
  "model, words",
  [
    (built("t = foo.Foo(x)"), "(Foo) is of domain 'foo', which the model does not import"),
    (
      built("t = com.microsoft.Gelu(x)", opsets='"com.microsoft" : 1'),
      "ONNX Runtime takes its newest opset, whichever that is",
    ),
    (built("t = Scatter(x, x, x)"), "Scatter is deprecated"),
    (without("input", "type"), "its input 'x' has no type"),
    (of_dtype(77), "its input 'x' has the unknown dtype 77"),
  ],
)
def test_what_stays_refused_is_named(model, words, tmp_path):
  path = tmp_path / "in.onnx"
  path.write_bytes(model.SerializeToString())
  with pytest.raises(ModelError) as caught:
    load(path)
  assert words in str(caught.value)


OLD = sorted(glob.glob(str(Path(onnx.backend.test.__file__).parent / "data" / "pytorch-*" / "*" / "model.onnx")))


def test_opset_6_is_upgraded_where_onnx_runtime_runs_it(tmp_path):
  """Of onnx's 112 models of opset 6: the same outputs for each that runs, and a reason for each that does not."""
  ran = refused = 0
  for path in OLD:
    model = onnx.load(path)
    if model.opset_import[0].version > 6:
      continue
    try:
      session = onnxruntime.InferenceSession(path, _quiet())
    except Exception:
      with raises(ModelError, r"opset 6 to 11: node '\w+' \(\w+\) changed before opset 7; export"):
        upgrade(load(path).proto)
      refused += 1
      continue
    ran += 1
    save_model(upgrade(load(path).proto), tmp_path / "new.onnx", durable=False)
    upgraded = onnxruntime.InferenceSession(str(tmp_path / "new.onnx"), _quiet())
    folder = Path(path).parent / "test_data_set_0"
    arrays = [numpy_helper.to_array(onnx.load_tensor(str(each))) for each in sorted(folder.glob("input_*.pb"))]
    results = [
      each.run(None, {value.name: array for value, array in zip(each.get_inputs(), arrays, strict=True)})
      for each in (session, upgraded)
    ]
    for a, b in zip(*results, strict=True):
      np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-6, err_msg=path)
  assert (ran, refused) == (78, 34)


def _quiet():
  options = onnxruntime.SessionOptions()
  options.log_severity_level = 4
  return options
