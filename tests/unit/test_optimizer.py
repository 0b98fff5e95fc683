"""The pipeline around the passes, with small passes of its own: order, choice, limits, rounds, faults, bisection."""

from dataclasses import dataclass

import onnx
import onnx_graphsurgeon as gs
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_models import built, ones, op_types as types_of, parsed, raises, value_infos, zeros

import ortplugin
from ortplugin import optimize, optimizer
from ortplugin.errors import ModelError, UsageError, VerificationError
from ortplugin.model.input_shapes import fix_input_shapes
from ortplugin.optimizer import api, pipeline as table
from ortplugin.passes.base import Change, NearMiss, PassResult
from ortplugin.passes.driver import Applied, Missed, RulePass
from ortplugin.report import CONVERSION, Dropped, Report


@dataclass
class Replace:
  name: str
  old: str
  new: str
  calls: int = 0
  summary: str = "turns one type into another"

  def __call__(self, graph, limit=None):
    self.calls += 1
    changes = []
    for node in graph.nodes:
      if node.op == self.old and (limit is None or len(changes) < limit):
        before = f"{node.name} ({node.op})"
        node.op = self.new
        changes.append(Change(self.name, (before,), f"{node.name} ({node.op})"))
    misses = (NearMiss(self.name, "somewhere", "never fits"),) if not changes else ()
    return PassResult(tuple(changes), misses)


@dataclass
class Broken(Replace):
  error: Exception | None = None

  def __call__(self, graph, limit=None):
    raise self.error


def chain(*types, dims=("n", 4)):
  names = ["x", *(f"t{i}" for i in range(len(types) - 1)), "y"]
  nodes = [helper.make_node(op, [names[i]], [names[i + 1]], f"node{i}") for i, op in enumerate(types)]
  value = f"float[{','.join(map(str, dims))}]"
  return built(nodes, f"{value} x", f"{value} y")


FUSE_POINTWISE = next(step for step in optimizer.PIPELINE if step.name == "fuse-pointwise")


@pytest.fixture
def pipeline(patch):
  def install(*passes):
    patch(table, "TABLE", passes)
    return passes

  return install


def test_the_real_pipeline_is_well_formed():
  names = [step.name for step in optimizer.PIPELINE]
  assert len(set(names)) == len(names) > 5
  assert all(step.summary and "\n" not in step.summary for step in optimizer.PIPELINE)
  assert all(name == name.lower() and " " not in name for name in names)


def test_passes_run_in_order_until_nothing_changes(pipeline):
  second, first = pipeline(Replace("b", "Exp", "Neg"), Replace("a", "Abs", "Exp"))
  model, report = optimize(chain("Abs", "Abs"))
  assert types_of(model) == ["Neg", "Neg"]
  assert [change.rewrite for change in report.changes] == ["a", "a", "b", "b"]
  assert report.rewrites == {"a": 2, "b": 2}
  assert report.fused == 0
  assert first.calls == second.calls == 3


def test_the_last_passes_wait_until_the_others_are_done(pipeline):
  """What they fuse is hidden from a pass that would take it in a later round."""
  taker, opener, last = pipeline(Replace("taker", "Exp", "Tanh"), Replace("opener", "Abs", "Exp"), FUSE_POINTWISE)
  assert last.stage == optimizer.Stage.QUIET_ROUND
  model, report = optimize(chain("Abs", "Neg", "Softmax", "Neg"))
  assert types_of(model) == ["FusedPointwise", "Softmax", "Neg"]
  assert [change.rewrite for change in report.changes] == ["opener", "taker", "fuse-pointwise"]
  assert (taker.calls, opener.calls) == (4, 4)


def test_rounds_are_bounded(pipeline):
  there, back = pipeline(Replace("there", "Abs", "Exp"), Replace("back", "Exp", "Abs"))
  optimize(chain("Abs"))
  assert there.calls == back.calls == optimizer.MAX_ROUNDS


def test_shapes_of_any_number_of_layers_are_folded():
  """Each is known once those before it are: a round for each layer, as in an Encodec from TorchScript."""
  layers = 2 * optimizer.MAX_ROUNDS
  nodes = "\n".join(
    f"""s{at} = Shape(r{at})  n{at} = Gather<axis=0>(s{at}, one)  h{at} = Div(n{at}, one)
      t{at} = Concat<axis=0>(h{at}, rest)  v{at} = Reshape(r{at}, t{at})  r{at + 1} = Softmax(v{at})"""
    for at in range(layers)
  )
  model = parsed(
    f"""(float[4,4] r0) => (float[4,4] r{layers}) <int64[1] one = {{1}}, int64[1] rest = {{-1}}> {{ {nodes} }}"""
  )
  optimized, _ = optimize(model)
  assert types_of(optimized) == ["Softmax"] * layers
  assert not optimize(optimized)[1].changes


def test_the_input_model_is_not_changed(pipeline):
  pipeline(Replace("a", "Abs", "Exp"))
  model = chain("Abs")
  before = model.SerializeToString()
  optimized, _ = optimize(model, input_shapes={"x": (3, 4)})
  assert model.SerializeToString() == before
  assert types_of(optimized) == ["Exp"]


def test_nothing_to_do_gives_the_same_bytes(pipeline):
  pipeline(Replace("a", "Cos", "Exp"))
  model = chain("Abs")
  optimized, report = optimize(model)
  assert optimized is not model
  assert optimized.SerializeToString() == model.SerializeToString()
  assert not report.changes
  assert report.before == report.after
  assert report.near_misses == [NearMiss("a", "somewhere", "never fits")]


def test_a_limit_makes_the_first_changes(pipeline):
  pipeline(Replace("a", "Abs", "Exp"), Replace("b", "Exp", "Neg"))
  model = chain("Abs", "Abs", "Abs")
  _, everything = optimize(model)
  for limit in range(len(everything.changes) + 2):
    _, report = optimize(model, limit=limit)
    assert report.changes == everything.changes[:limit]
  with raises(UsageError, "-1"):
    optimize(model, limit=-1)


def test_only_and_skip(pipeline):
  pipeline(Replace("one", "Abs", "Exp"), Replace("two", "Cos", "Sin"))
  model = chain("Abs", "Cos")
  assert types_of(optimize(model, only=["two"])[0]) == ["Abs", "Sin"]
  assert types_of(optimize(model, skip=["two"])[0]) == ["Exp", "Cos"]
  assert types_of(optimize(model, only=["two"], skip=["two"])[0]) == ["Abs", "Cos"]
  assert types_of(optimize(model, only=[])[0]) == ["Abs", "Cos"]
  for choice in ({"only": ["tow"]}, {"skip": ["tow"]}):
    with raises(UsageError, "no pass 'tow'; did you mean two"):
      optimize(model, **choice)


def test_a_pass_that_fails_is_named(pipeline):
  pipeline(Replace("a", "Abs", "Exp"), Broken("broken", "", "", error=ZeroDivisionError("by zero")))
  with raises(optimizer.PassError, "'broken' failed after rewrites by a: by zero; --skip broken"):
    optimize(chain("Abs"))


def test_a_pass_that_undoes_what_it_did_comes_to_an_end(pipeline):
  def turn(scope, node):
    scope.replace([node], new := gs.Node("Abs" if node.op == "Neg" else "Neg", "", {}, node.inputs), node.outputs[:])
    return Applied(("turned",), new)

  pipeline(RulePass("turn", "", turn))
  with raises(optimizer.PassError, r"'turn' failed .* no end: .* rewrites .* turned; --skip turn"):
    optimize(chain("Abs"))


def test_a_rule_that_misses_what_it_has_put_nodes_before_comes_to_an_end(pipeline):
  def look(scope, node):
    scope.insert(gs.Node("Abs", "", {}, node.inputs, [gs.Variable("stray")]), node)
    return Missed(node, "near")

  pipeline(RulePass("look", "", look))
  assert optimize(chain("Neg"))[1].near_misses


def test_a_pass_that_fails_on_a_model_that_contradicts_itself(pipeline):
  """Such a model is refused with what is wrong with it; on a valid one it is a defect of the pass, as above."""
  pipeline(Broken("broken", "", "", error=IndexError("list index out of range")))
  model = chain("Abs")
  model.graph.node.append(helper.make_node("Concat", ["x", "x"], ["z"], "bad", axis=7))
  with raises(ModelError, r"it is not valid ONNX, so that the pass 'broken' fails: .*axis"):
    optimize(model)


def test_an_invalid_result_is_a_defect_not_an_output(pipeline):
  class Disconnects(Replace):
    def __call__(self, graph, limit=None):
      if not graph.nodes[0].inputs:
        return PassResult(())
      graph.nodes[0].inputs.clear()
      return PassResult((Change("cut", ("node0",), ""),))

  pipeline(Disconnects("cut", "", ""))
  with raises(RuntimeError, "defect of ortplugin"):
    optimize(chain("Abs"))


def test_what_optimize_takes(tmp_path):
  model = chain("Softmax")
  onnx.save(model, tmp_path / "m.onnx")
  for form in (tmp_path / "m.onnx", str(tmp_path / "m.onnx"), model):
    assert types_of(optimize(form)[0]) == ["Softmax"]
  with raises(UsageError, "bytes"):
    optimize(model.SerializeToString())
  model.graph.node[0].input[0] = "nobody"
  with raises(ModelError, "nobody"):
    optimize(model)


def test_weights_in_other_files_must_be_loaded():
  model = chain("Abs")
  tensor = model.graph.initializer.add()
  tensor.CopyFrom(numpy_helper.from_array(ones(3), "w"))
  tensor.ClearField("raw_data")
  tensor.data_location = TensorProto.EXTERNAL
  tensor.external_data.add(key="location", value="w.bin")
  with raises(ModelError, "pass the model's path"):
    optimize(model)


def test_guilty_passes_are_dropped_one_by_one(patch):
  """A conversion is not, nor the same pass twice, nor anything where nothing is to blame, as after tuning."""
  trials = [
    Report(guilty=Change("fuse-x", ("a (Add)",), "f (F)")),
    Report(guilty=Change("inline-functions", ("local::f",), "")),
    Report(guilty=Change("allow-tf32", ("c (Conv)",), "c (Conv)")),
    Report(guilty=Change(CONVERSION, ("'m' (Mul)",), "")),
  ]
  asked = []

  def failing(model, options):
    asked.append((options.only, options.skip))
    error = VerificationError(f"trial {len(asked)}; a remedy")
    error.report = trials[len(asked) - 1]
    raise error

  patch(api, "_optimize_once", failing)
  given = {"only": iter(["fuse-x", "fuse-y"]), "skip": ["fuse-z"]}
  with raises(VerificationError, "trial 4") as failed:
    optimizer.optimize(onnx.ModelProto(), **given, verify=True, drop_guilty=True)
  skipped = ("fuse-z", "fuse-x", "inline-functions", "allow-tf32")
  assert asked == [(("fuse-x", "fuse-y"), skipped[:count]) for count in (1, 2, 3, 4)]
  assert failed.value.report.dropped == [
    Dropped("fuse-x", ("a (Add)",), "trial 1"),
    Dropped("inline-functions", ("local::f",), "trial 2"),
    Dropped("allow-tf32", ("c (Conv)",), "trial 3"),
  ]
  asked.clear()
  with raises(VerificationError, "trial 1"):
    optimizer.optimize(onnx.ModelProto(), skip=["fuse-x"], verify=True, drop_guilty=True)
  asked.clear()
  with raises(VerificationError, "trial 1"):
    optimizer.optimize(onnx.ModelProto(), verify=True)
  asked.clear()
  trials[0] = Report(functions={"local::f": 1})
  with raises(VerificationError, "trial 1"):
    optimizer.optimize(onnx.ModelProto(), verify=True, drop_guilty=True)
  with raises(UsageError, "verify=True"):
    optimizer.optimize(onnx.ModelProto(), drop_guilty=True)


def test_what_is_no_pass_of_the_pipeline_can_be_skipped():
  for name in ("inline-functions", "allow-tf32", "forbid-tf32"):
    assert optimizer.select_passes(skip=[name]) == optimizer.select_passes()
    with raises(UsageError, "there is no pass"):
      optimizer.select_passes(only=[name])


def test_progress_is_told():
  told = []
  optimize(chain("Abs"), progress=told.append)
  assert told[0] == "loading"
  assert optimizer.PIPELINE[0].name in told


def test_restore_gives_standard_onnx():
  optimized, _ = optimize(norm_model())
  before = optimized.SerializeToString()
  restored = ortplugin.restore(optimized)
  assert optimized.SerializeToString() == before
  assert not any(node.domain == "ortplugin" for node in restored.graph.node)
  assert [entry.domain for entry in restored.opset_import] == [""]
  onnx.checker.check_model(restored, full_check=True)
  assert ortplugin.restore(norm_model()) == norm_model()
  optimized.graph.node[0].op_type = "FusedFuture"
  with raises(ModelError, r"FusedFuture.*upgrade"):
    ortplugin.restore(optimized)


def norm_model():
  return parsed(
    "(float[n,8] x) => (y) { [ln] y = LayerNormalization <axis=-1>(x, g, b) }", weights={"g": ones(8), "b": zeros(8)}
  )


# ---- input shapes


def dims(value):
  return [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]


def test_shapes_are_fixed_everywhere():
  model = chain("Abs", "Exp")
  model.graph.value_info.extend(value_infos("float[n,4] t0"))
  fix_input_shapes(model, {"x": (3, 4)})
  assert [dims(v) for v in (*model.graph.input, *model.graph.value_info, *model.graph.output)] == [[3, 4]] * 3


def test_outputs_without_a_symbol_are_inferred():
  model = chain("Abs")
  model.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "unrelated"
  fix_input_shapes(model, {"x": (3, 4)})
  assert dims(model.graph.output[0])[1] == 4


def test_an_unknown_rank_can_be_fixed():
  model = chain("Abs")
  model.graph.input[0].type.tensor_type.ClearField("shape")
  fix_input_shapes(model, {"x": (3, 4)})
  assert dims(model.graph.input[0]) == [3, 4]


@pytest.mark.parametrize(
  "shapes, words",
  [
    ({"xx": (3, 4)}, "no input 'xx'; did you mean x"),
    ({"x": (3,)}, "2 dimensions"),
    ({"x": (3, 5)}, "is 4 in the model"),
    ({"x": (-1, 4)}, "negative"),
    ({"x": (2**62, 4)}, "overflows 63 bits; give smaller sizes"),
  ],
)
def test_shapes_that_do_not_fit(shapes, words):
  with pytest.raises(UsageError) as caught:
    optimize(chain("Abs"), input_shapes=shapes)
  assert words in str(caught.value)
  assert "\n" not in str(caught.value)


def test_one_symbol_has_one_size():
  model = chain("Abs")
  model.graph.input.extend(value_infos("float[n] z"))
  with raises(UsageError, "'n' would be 3 by input 'x' and 5 by input 'z'"):
    optimize(model, input_shapes={"x": (3, 4), "z": (5,)})
  fix_input_shapes(model, {"x": (3, 4)})
  assert dims(model.graph.input[1]) == [3]
