import json
import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from exported import DATA
from mistakes import check_mistake
from onnx_models import ones, parsed

import ortplugin
from ortplugin.optimizer import api, pipeline
from ortplugin.passes.base import Change, NearMiss, PassResult

BERT = DATA / "bert_torchscript_opset17_dynamic.onnx"


def two_adds():
  return parsed("""(float[n,4] x) => (y, z) <float one = {1}> {
    [abs] a = Abs(x)  [add_y] y = Add(a, one)  [exp] e = Exp(x)  [add_z] z = Add(e, one) }""")


class Rename:
  def __init__(self, name, change):
    self.name, self.summary, self.change = name, "for a test", change

  def __call__(self, graph, limit=None):
    changes = []
    for node in graph.nodes:
      before = f"{node.name} ({node.op})"
      if (limit is None or len(changes) < limit) and self.change(node):
        changes.append(Change(self.name, (before,), f"{node.name} ({node.op})"))
    return PassResult(tuple(changes), (NearMiss(self.name, "abs (Abs)", "it is no Add"),))


def renamed(node):
  if node.name.endswith("_new"):
    return False
  node.name += "_new"
  return True


def broken(node):
  if node.op != "Add" or not node.name.startswith("add_z"):
    return False
  node.op = "Sub"
  return True


def save(model, path):
  path.write_bytes(model.SerializeToString())
  return path


def places(folder):
  return save(two_adds(), folder / "in.onnx"), folder / "out.onnx", folder / "r.json"


def succeeded(done):
  """The text of a run that ended well and had nothing to complain of."""
  status, text, errors = done
  assert (status, errors) == (0, "")
  return text


def failed(done):
  """The text of a run that found a failure, and the one line that says which."""
  status, text, errors = done
  assert status == 1
  assert errors.count("\n") == 1
  return text, errors


@pytest.fixture
def passes(patch):
  """Those of the pipeline: the ones given, or one that renames all nodes."""
  return lambda *table: patch(pipeline, "TABLE", table or (Rename("rename", renamed),))


# ---- the main job


def test_a_real_model_is_optimized_verified_and_runs(tmp_path, run):
  out, report_path = tmp_path / "fast.onnx", tmp_path / "report.json"
  before = BERT.read_bytes()
  text = succeeded(run(BERT, "-o", out, "--report", report_path))
  assert BERT.read_bytes() == before
  for words in ("FusedLayerNorm", "fuse-layer-norm", "agrees", "times as fast", f"Wrote {out}", "largest error"):
    assert words in text
  report = json.loads(report_path.read_text())
  assert report["fused"]
  assert report["output"] == str(out)
  assert report["guilty"] is None
  assert report["operators"]["after"]["ortplugin::FusedLayerNorm"] == 5
  (verification,) = report["verification"]
  assert verification["passed"]
  assert verification["provider"] == "CPUExecutionProvider"
  assert len(verification["inputs"]) == 2  # two sets of sizes, since the model has dynamic dimensions
  assert verification["original_ms"] > 0
  assert verification["optimized_ms"] > 0
  assert ortplugin.session(out, providers=["cpu"]).get_providers() == ["CPUExecutionProvider"]


def test_the_same_input_gives_the_same_bytes_and_a_second_run_changes_nothing(tmp_path, run):
  first, second, again = (tmp_path / name for name in ("1.onnx", "2.onnx", "3.onnx"))
  assert run(BERT, "-o", first)[0] == 0
  environment = {**os.environ, "PYTHONHASHSEED": "12345"}
  command = [sys.executable, "-m", "ortplugin.cli", BERT, "-o", second, "--no-verify"]
  subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
  assert first.read_bytes() == second.read_bytes()
  status, text, _ = run(first, "-o", again)
  assert status == 0
  assert "Nothing to rewrite: 0 rewrites" in text
  assert again.read_bytes() == first.read_bytes()


def test_restore_runs_without_the_library(tmp_path, run):
  fast, plain = tmp_path / "fast.onnx", tmp_path / "plain.onnx"
  assert run(BERT, "-o", fast, "--no-verify")[0] == 0
  text = succeeded(run("--restore", fast, "-o", plain))
  assert "agrees" in text
  assert "restore" in text
  onnxruntime.InferenceSession(plain, providers=["CPUExecutionProvider"])
  assert "ortplugin" not in {entry.domain for entry in onnx.load(plain).opset_import}
  status, text, _ = run("--restore", plain, "-o", tmp_path / "same.onnx")
  assert status == 0
  assert "Nothing to restore" in text


def test_external_data_come_out_as_external_data(tmp_path, run):
  source = tmp_path / "in.onnx"
  onnx.save(onnx.load(BERT), source, save_as_external_data=True, location="weights.bin", size_threshold=0)
  before = (tmp_path / "weights.bin").read_bytes()
  (tmp_path / "out").mkdir()
  succeeded(run(source, "-o", tmp_path / "out" / "fast.onnx"))
  names = sorted(path.name for path in (tmp_path / "out").iterdir())
  assert len(names) == 2
  assert names[1].startswith("fast.onnx.")
  assert names[1].endswith(".data")
  assert (tmp_path / "weights.bin").read_bytes() == before
  ortplugin.session(tmp_path / "out" / "fast.onnx", providers=["cpu"])


def test_the_users_inputs_and_shapes(tmp_path, run):
  names = [value.name for value in onnx.load(BERT).graph.input]
  np.savez(tmp_path / "data.npz", **{name: np.ones((1, 7), np.int64) for name in names})
  report = tmp_path / "r.json"
  arguments = [word for name in names for word in ("--input-shape", f"{name}:1,7")]
  text = succeeded(
    run(BERT, "-o", tmp_path / "o.onnx", "--inputs", tmp_path / "data.npz", "--report", report, *arguments)
  )
  assert "data.npz" in text
  cases = json.loads(report.read_text())["verification"][0]["inputs"]
  assert next(case["name"] for case in cases) == str(tmp_path / "data.npz")
  shape = onnx.load(tmp_path / "o.onnx").graph.input[0].type.tensor_type.shape
  assert [dim.dim_value for dim in shape.dim] == [1, 7]


# ---- verification's verdict


def test_a_wrong_rewrite_is_found_named_and_not_written(tmp_path, run, passes):
  passes(Rename("rename", renamed), Rename("fuse-wrongly", broken))
  source, out, report_path = places(tmp_path)
  out.write_bytes(b"the old output")
  text, errors = failed(run(source, "-o", out, "--report", report_path))
  for words in ("'z'", "fuse-wrongly", "add_z_new (Add)", "--skip fuse-wrongly", "CPU"):
    assert words in errors
  assert "differs" in text
  assert "Wrote" not in text
  assert out.read_bytes() == b"the old output"
  report = json.loads(report_path.read_text())
  assert report["guilty"]["rewrite"] == "fuse-wrongly"
  assert report["output"] is None
  outputs = report["verification"][0]["inputs"][0]["outputs"]
  assert [output["passed"] for output in outputs] == [True, False]
  status, _, _ = run(source, "-o", out, "--skip", "fuse-wrongly")
  assert status == 0
  assert onnx.load(out).graph.node[0].name == "abs_new"


def unknown(node):
  if node.op != "Exp":
    return False
  node.op = "NobodyHasThis"
  return True


def test_guilty_rewrites_can_be_dropped(tmp_path, run, passes):
  """One that makes the model fail to load, one whose outputs differ, and one that is right."""
  passes(Rename("rename", renamed), Rename("fuse-into-nothing", unknown), Rename("fuse-wrongly", broken))
  source, out, report_path = places(tmp_path)
  text = succeeded(run(source, "-o", out, "--drop-guilty", "--report", report_path))
  assert text.count("Left out the pass") == 2
  report = json.loads(report_path.read_text())
  assert {each["rewrite"] for each in report["dropped"]} == {"fuse-wrongly", "fuse-into-nothing"}
  wrong = next(each for each in report["dropped"] if each["rewrite"] == "fuse-wrongly")
  assert wrong["nodes"] == ["add_z_new (Add)"]
  assert "'z' differs" in wrong["reason"]
  assert "--skip" not in wrong["reason"]
  assert report["guilty"] is None
  assert set(report["rewrites"]) == {"rename"}
  assert report["verification"][0]["passed"]
  names = [node.name for node in onnx.load(out).graph.node]
  assert all(name.endswith("_new") for name in names)
  assert {node.op_type for node in onnx.load(out).graph.node} == {node.op_type for node in two_adds().graph.node}


def test_bodies_of_functions_can_be_to_blame(tmp_path, run, patch, passes):
  def wrong(model):
    result = onnx.ModelProto()
    result.CopyFrom(model)
    result.graph.node[0].op_type = "Neg"
    return result, {"local::f": 2}, []

  patch(api, "inline_functions", wrong)
  passes()
  source, out, report_path = places(tmp_path)
  status, _, errors = run(source, "-o", out, "--report", report_path)
  assert status == 1
  for words in ("'y' differs", "'inline-functions' of local::f", "--skip inline-functions"):
    assert words in errors
  assert json.loads(report_path.read_text())["guilty"]["nodes"] == ["local::f"]
  text = succeeded(run(source, "-o", out, "--drop-guilty"))
  assert "Left out the pass 'inline-functions'" in text
  assert onnx.load(out).graph.node[0].op_type == "Abs"


def test_tolerances_decide(tmp_path, run, passes):
  def nudge(node):
    if node.op != "Abs":
      return False
    node.op = "Identity"
    return True

  passes(Rename("drop-abs", nudge))
  source, out, _ = places(tmp_path)
  assert run(source, "-o", out)[0] == 1
  assert run(source, "-o", out, "--atol", "100")[0] == 0
  assert run(source, "-o", out, "--no-verify")[0] == 0


def test_random_outputs_are_compared_by_shape(tmp_path, run, passes):
  passes()
  model = parsed("(float[n,4] x) => (y) { [random] r = RandomNormalLike(x)  [a] y = Add(x, r) }")
  report = tmp_path / "r.json"
  succeeded(run(save(model, tmp_path / "in.onnx"), "-o", tmp_path / "out.onnx", "--report", report))
  assert "only shape and dtype were compared" in report.read_text()


def test_sequences_and_maps_are_compared(tmp_path, run, passes):
  passes()
  model = parsed("""(float[n,4] x) => (seq(float[]) s, seq(map(int64, float[])) m) {
    [construct] s = SequenceConstruct(x, x)
    [zip] m = ai.onnx.ml.ZipMap <classlabels_int64s=[1,2,3,4]>(x) }""")
  model.opset_import.add(domain="ai.onnx.ml", version=3)
  assert succeeded(run(save(model, tmp_path / "in.onnx"), "-o", tmp_path / "out.onnx")).count("agrees") >= 2


def test_bfloat16_models_are_compared(tmp_path, run, passes):
  passes()
  model = parsed("(bfloat16[2,4] x) => (y) { [up] f = Cast <to=1>(x)  [down] y = Cast <to=16>(f) }")
  np.savez(tmp_path / "data.npz", x=np.ones((2, 4), ml_dtypes.bfloat16))
  source = save(model, tmp_path / "in.onnx")
  text = succeeded(run(source, "-o", tmp_path / "out.onnx", "--inputs", tmp_path / "data.npz"))
  assert "agrees" in text


def test_a_model_that_can_not_be_fed_asks_for_inputs(tmp_path, run, passes):
  passes()
  model = parsed("(float[6] x, int64[2] shape) => (float[a,b] y) { [reshape] y = Reshape(x, shape) }")
  source, out = save(model, tmp_path / "in.onnx"), tmp_path / "out.onnx"
  _, errors = failed(run(source, "-o", out))
  assert not out.exists()
  for remedy in ("--inputs", "--input-shape", "--no-verify"):
    assert remedy in errors
  np.savez(tmp_path / "data.npz", x=ones(6), shape=np.int64([2, 3]))
  assert run(source, "-o", out, "--inputs", tmp_path / "data.npz")[0] == 0


# ---- users' mistakes


MISTAKES = {
  "unknown provider": ("{bert} -o {tmp}/o.onnx --provider quantum", 2, "'quantum'"),
  "missing inputs": ("{bert} -o {tmp}/o.onnx --inputs {tmp}/none.npz", 2, "does not exist"),
  "wrong inputs": ("{bert} -o {tmp}/o.onnx --inputs {tmp}/wrong.npz", 2, "no input 'nobody'"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line(name, tmp_path, run):
  check_mistake(MISTAKES[name], BERT, tmp_path, run)


def test_cuda_where_there_is_none(tmp_path, run):
  if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
    pytest.skip("this ONNX Runtime has a CUDA provider")
  _, errors = failed(run(BERT, "-o", tmp_path / "o.onnx", "--provider", "cuda"))
  assert "onnxruntime-gpu" in errors
  assert not (tmp_path / "o.onnx").exists()
