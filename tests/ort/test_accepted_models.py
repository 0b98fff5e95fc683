"""Models that ONNX Runtime runs though ONNX does not allow them: optimized, they run and compute the same."""

from __future__ import annotations

import glob
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.backend.test
import onnxruntime
import pytest
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from ort.host import make
from ortplugin.cli import main
from ortplugin.errors import ModelError
from ortplugin.model.normalise import normalised
from ortplugin.model.storage import load, save_model
from ortplugin.model.upgrade import upgrade
from ortplugin.optimizer import optimize

SHAPE = [2, 4]
node = helper.make_node


def value(name: str, shape: list[Any] | None = SHAPE, dtype: int = TensorProto.FLOAT) -> ValueInfoProto:
  return helper.make_tensor_value_info(name, dtype, shape)


def tensor(name: str, values: Any = ((1, -2, 3, 0.5),)) -> TensorProto:
  return numpy_helper.from_array(np.asarray(values, np.float32), name)


def built(
  nodes: list[NodeProto],
  initializers: list[TensorProto] | None = None,
  opsets: list[tuple[str, int]] | None = None,
  ir: int = 8,
  inputs: list[ValueInfoProto] | None = None,
  **fields: Any,
) -> ModelProto:
  """Nodes that make t of x; then y = t + Exp(Neg(x)), for the optimizer to have work."""
  chain = [node("Neg", ["x"], ["neg"]), node("Exp", ["neg"], ["exp"]), node("Add", ["t", "exp"], ["y"])]
  graph = helper.make_graph(
    [*nodes, *chain], "accepted", inputs or [value("x")], [value("y")], initializers or [], **fields
  )
  imports = [helper.make_opsetid(*each) for each in opsets or [("", 17)]]
  return helper.make_model(graph, opset_imports=imports, ir_version=ir)


def reversed_nodes() -> ModelProto:
  model = built([node("Relu", ["x"], ["t"])])
  nodes = [NodeProto.FromString(each.SerializeToString()) for each in reversed(model.graph.node)]
  del model.graph.node[:]
  model.graph.node.extend(nodes)
  return model


def body_before_what_it_reads() -> ModelProto:
  branches = {
    "then_branch": helper.make_graph([node("Relu", ["late"], ["p"])], "then", [], [value("p")]),
    "else_branch": helper.make_graph([node("Abs", ["late"], ["q"])], "else", [], [value("q")]),
  }
  inputs = [value("x"), value("c", [], TensorProto.BOOL)]
  return built([node("If", ["c"], ["t"], **branches), node("Sin", ["x"], ["late"])], inputs=inputs)


def deprecated(opset: int) -> ModelProto:
  """GroupNormalization with a scale of each group, which onnx deprecates where it is defined."""
  norm = node("GroupNormalization", ["x", "scale", "bias"], ["t"], num_groups=2)
  constants = [tensor("scale", [0.5, 2]), tensor("bias", [1, -1])]
  model = built([norm], constants, opsets=[("", opset)], inputs=[value("x", [2, 4, 3])])
  model.graph.output[0].CopyFrom(value("y", [2, 4, 3]))
  return model


def imported_twice(*opsets: tuple[str, int]) -> ModelProto:
  """Softmax flattened its input until opset 12: which import counts shows in what it computes."""
  model = built([node("Softmax", ["x"], ["t"])], opsets=list(opsets), inputs=[value("x", [2, 3, 4])])
  model.graph.output[0].CopyFrom(value("y", [2, 3, 4]))
  return model


def function_of_another_opset() -> ModelProto:
  model = built([node("F", ["x"], ["t"], domain="mine")], opsets=[("", 17), ("mine", 1)])
  imports = [helper.make_opsetid("", 11)]
  model.functions.append(helper.make_function("mine", "F", ["a"], ["b"], [node("Softmax", ["a"], ["b"])], imports))
  model.graph.input[0].CopyFrom(value("x", [2, 3, 4]))
  model.graph.output[0].CopyFrom(value("y", [2, 3, 4]))
  return model


def sparse(indices: Any, dtype: Any, as_node: bool) -> ModelProto:
  values = tensor("c" if not as_node else "", np.arange(1, 1 + len(indices)))
  constant = helper.make_sparse_tensor(values, numpy_helper.from_array(np.array(indices, dtype), ""), SHAPE)
  nodes = [node("Constant", [], ["c"], sparse_value=constant)] if as_node else []
  model = built([*nodes, node("Add", ["x", "c"], ["t"])])
  if not as_node:
    model.graph.sparse_initializer.append(constant)
  return model


def without(what: str) -> ModelProto:
  model = built([node("Relu", ["x"], ["t"])])
  if what == "input shape":
    model.graph.input[0].CopyFrom(value("x", None))
  elif what == "output shape":
    model.graph.output[0].CopyFrom(value("y", None))
  else:
    model.graph.output[0].CopyFrom(ValueInfoProto(name="y"))
  return model


ADDED = node("Add", ["x", "w"], ["t"])
MODELS: dict[str, Callable[[], ModelProto]] = {
  "nodes out of order": reversed_nodes,
  "a body before what it reads": body_before_what_it_reads,
  "com.microsoft not imported": lambda: built([node("Gelu", ["x"], ["t"], domain="com.microsoft")]),
  "ai.onnx.ml not imported": lambda: built(
    [node("Scaler", ["x"], ["t"], domain="ai.onnx.ml", offset=[1.0], scale=[2.0])]
  ),
  "IR 3, an initializer that is no input": lambda: built([ADDED], [tensor("w")], [("", 13)], 3),
  "IR 3, one that is and one that is not": lambda: built(
    [node("Mul", ["x", "v"], ["s"]), node("Add", ["s", "w"], ["t"])],
    [tensor("v"), tensor("w")],
    [("", 13)],
    3,
    [value("x"), value("w", [1, 4])],
  ),
  "IR 3 and opset 8": lambda: built([ADDED], [tensor("w")], [("", 8)], 3),
  "an input without a shape": lambda: without("input shape"),
  "an output without a shape": lambda: without("output shape"),
  "an output without a type": lambda: without("output type"),
  "ai.onnx imported": lambda: built([node("Relu", ["x"], ["t"])], opsets=[("ai.onnx", 17)]),
  "ai.onnx on a node": lambda: built([node("Relu", ["x"], ["t"], domain="ai.onnx")]),
  "ai.onnx on both": lambda: built([node("Relu", ["x"], ["t"], domain="ai.onnx")], opsets=[("ai.onnx", 17)]),
  "imported twice": lambda: imported_twice(("", 17), ("", 17)),
  "imported under both names": lambda: imported_twice(("ai.onnx", 17), ("", 17)),
  "imported as 11, then 13": lambda: imported_twice(("", 11), ("", 13)),
  "imported as 13, then 11": lambda: imported_twice(("", 13), ("ai.onnx", 11)),
  "a function of another opset": function_of_another_opset,
  "deprecated, opset 18": lambda: deprecated(18),
  "deprecated, opset 20": lambda: deprecated(20),
  **{
    f"sparse, {np.dtype(dtype)}, {'node' if as_node else 'initializer'}": lambda dtype=dtype, as_node=as_node: sparse(
      [1, 6], dtype, as_node
    )
    for dtype in (np.int8, np.int16, np.int32, np.int64)
    for as_node in (True, False)
  },
  "sparse, not sorted": lambda: sparse([6, 1, 3], np.int64, True),
  "sparse, coordinates not sorted": lambda: sparse([[1, 2], [0, 3], [1, 0]], np.int64, False),
}


def outputs(session: Any, shapes: dict[str, list[int]] | None = None) -> list[Any]:
  rng = np.random.default_rng(7)
  feeds = {
    each.name: np.array(True)
    if each.type == "tensor(bool)"
    else rng.standard_normal(each.shape or SHAPE).astype(np.float32)
    for each in session.get_inputs()
  }
  return list(session.run(None, feeds))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("what", MODELS)
def test_is_optimized_and_computes_the_same(what: str, tmp_path: Path) -> None:
  model = MODELS[what]()
  source, target = tmp_path / "in.onnx", tmp_path / "out.onnx"
  source.write_bytes(model.SerializeToString())
  shapes = ["--input-shape", "x:2,4"] if what == "an input without a shape" else []
  assert main([str(source), "-o", str(target), "--provider", "cpu", *shapes]) == 0
  optimized = onnx.load(target)
  assert [each.op_type for each in optimized.graph.node if each.domain == "ortplugin"], "nothing was done"
  expected = outputs(onnxruntime.InferenceSession(str(source)))
  for a, b in zip(expected, outputs(make(target.read_bytes())), strict=True):
    np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("what", MODELS)
def test_the_callers_model_is_not_changed(what: str) -> None:
  model = MODELS[what]()
  before = model.SerializeToString(deterministic=True)
  optimize(model)
  assert model.SerializeToString(deterministic=True) == before
  again = normalised(model)
  assert normalised(again) is again


def test_an_input_without_a_shape_is_named_with_the_remedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
  source = tmp_path / "in.onnx"
  model = without("input shape")
  model.graph.node.insert(0, node("Identity", ["x"], ["again"]))  # so that there is something to verify
  model.graph.node[1].input[0] = "again"
  source.write_bytes(model.SerializeToString())
  assert main([str(source), "-o", str(tmp_path / "out.onnx"), "--provider", "cpu"]) == 1
  assert "input 'x' has no shape in the model; give --input-shape x:" in capsys.readouterr().err
  assert main([str(source), "-o", str(tmp_path / "out.onnx"), "--no-verify"]) == 0


def test_a_cycle_is_refused_with_its_nodes(tmp_path: Path) -> None:
  cycle = [node("Add", ["x", "b"], ["a"], "first"), node("Neg", ["a"], ["b"]), node("Sin", ["b"], ["t"])]
  path = tmp_path / "in.onnx"
  path.write_bytes(built(cycle).SerializeToString())
  with pytest.raises(ModelError, match=r"cycle: 'first' \(Add\) -> 'b' \(Neg\) -> 'first' \(Add\); export"):
    load(path)
  long = [node("Neg", [f"v{i}"], [f"v{(i + 1) % 50}"]) for i in range(50)]
  path.write_bytes(built([*long, node("Neg", ["v3"], ["t"])]).SerializeToString())
  with pytest.raises(ModelError, match=r"cycle: '\w+' \(Neg\) -> .* -> \.\.\. -> '\w+' \(Neg\); export"):
    load(path)
  body = helper.make_graph([node("Add", ["x", "t"], ["p"])], "then", [], [value("p")])
  other = helper.make_graph([node("Neg", ["x"], ["q"])], "else", [], [value("q")])
  inputs = [value("x"), value("c", [], TensorProto.BOOL)]
  through = built([node("If", ["c"], ["t"], "if", then_branch=body, else_branch=other)], inputs=inputs)
  path.write_bytes(through.SerializeToString())
  with pytest.raises(ModelError, match=r"cycle: 'if' \(If\) -> 'if' \(If\); export"):
    load(path)


@pytest.mark.parametrize(
  ("model", "words"),
  [
    (built([node("Foo", ["x"], ["t"], domain="foo")]), "(Foo) is of domain 'foo', which the model does not import"),
    (
      built([node("Gelu", ["x"], ["t"], domain="com.microsoft")], opsets=[("com.microsoft", 1)]),
      "ONNX Runtime takes its newest opset, whichever that is",
    ),
    (built([node("Scatter", ["x", "x", "x"], ["t"])]), "Scatter is deprecated"),
    (built([ADDED], [tensor("w")], inputs=[ValueInfoProto(name="x")]), "its input 'x' has no type"),
    (built([ADDED], [tensor("w")], inputs=[value("x", SHAPE, 77)]), "its input 'x' has the unknown dtype 77"),
  ],
)
def test_what_stays_refused_is_named(model: ModelProto, words: str, tmp_path: Path) -> None:
  path = tmp_path / "in.onnx"
  path.write_bytes(model.SerializeToString())
  with pytest.raises(ModelError) as caught:
    load(path)
  assert words in str(caught.value)


OLD = sorted(glob.glob(str(Path(onnx.backend.test.__file__).parent / "data" / "pytorch-*" / "*" / "model.onnx")))


def test_opset_6_is_upgraded_where_onnx_runtime_runs_it(tmp_path: Path) -> None:
  """Of onnx's 112 models of opset 6: the same outputs for each that runs, and a reason for each that does not."""
  ran = refused = 0
  for path in OLD:
    model = onnx.load(path)
    if model.opset_import[0].version > 6:
      continue
    try:
      session = onnxruntime.InferenceSession(path, _quiet())
    except Exception:
      with pytest.raises(ModelError, match=r"opset 6 to 11: node '\w+' \(\w+\) changed before opset 7; export"):
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


def _quiet() -> onnxruntime.SessionOptions:
  options = onnxruntime.SessionOptions()
  options.log_severity_level = 4
  return options
