"""Many small architectures, as five exporters wrote them, through the optimizer and ONNX Runtime.

models/packed.py says where the files are from; architectures.json says which inputs each takes, and of what shapes.
Each is optimized as it is, and once more to float16 or with its channels last. Outputs are compared as verification
does.
"""

import json
import zlib
from collections import Counter
from functools import cache

import numpy as np
import onnx
import onnxruntime
import pytest
from exported import architectures

import ortplugin
from ortplugin.check.compare import Tolerance, compare, compare_form
from ortplugin.graph import walk_nodes

ENTRIES = json.loads((architectures() / "architectures.json").read_text())["models"]
VARIANTS = {"fp16": {"precision": "fp16"}, "nhwc": {"layout": "nhwc"}}
every_file = pytest.mark.parametrize("name", sorted(ENTRIES))


@cache
def reference(name):
  """The model, inputs of each of its shapes, and what it makes of them."""
  original, runs = onnx.load(architectures() / f"{name}.onnx"), feeds_of(name)
  return original, runs, outputs_of(original, runs, library=False)


def feeds_of(name):
  """Random inputs of each of the shapes that the entry gives: two where axes are open."""
  rng = np.random.default_rng(zlib.crc32(name.encode()))
  inputs = ENTRIES[name]["inputs"]
  runs = []
  for run in range(len(next(iter(inputs.values()))["shapes"])):
    feeds = {}
    for each, said in inputs.items():
      shape = said["shapes"][run]
      values = rng.integers(0, said["high"], shape) if "high" in said else rng.standard_normal(shape)
      if each.endswith("attention_mask"):
        values[:, ::2] = 1  # a window that is masked as a whole has no defined attention
      feeds[each] = values.astype(said["dtype"])
    runs.append(feeds)
  return runs


def outputs_of(model, runs, *, library, half=False):
  """The outputs by name of a session on the CPU provider, on each of the inputs.

  half: leave out ORT's last optimizations. In 1.31 and 1.32 they die of a Transpose of perm 1, 0, 2 and a MatMul in
  float16; verification, which runs in a process of its own, says so.
  """
  options = onnxruntime.SessionOptions()
  options.intra_op_num_threads = 1  # tiny tensors
  options.log_severity_level = 3  # exporters leave initializers that nothing uses
  if half:
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
  if library:
    ortplugin.register(options)
  session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
  names = [each.name for each in session.get_outputs()]
  return [dict(zip(names, session.run(None, feeds), strict=True)) for feeds in runs]


def assert_same(found, wanted, precision=None, *, form=False):
  assert [list(each) for each in found] == [list(each) for each in wanted]
  for got, want in zip(found, wanted, strict=True):
    for name, value in want.items():
      if form:
        result = compare_form(name, value, got[name])
        assert result.passed, f"{name}: {result.message}"
        continue
      result = compare(name, value, got[name], Tolerance(precision=precision))
      assert result.passed, f"{name}: {result.message}"
      assert "no element is finite" not in result.message


@pytest.mark.one_in(12)
@every_file
def test_optimized_and_restored(name):
  original, runs, wanted = reference(name)
  optimized, _ = ortplugin.optimize(original)
  assert_same(outputs_of(optimized, runs, library=True), wanted)
  restored = ortplugin.restore(optimized)
  assert not [node.name for node in walk_nodes(restored) if node.domain == "ortplugin"]
  assert_same(outputs_of(restored, runs, library=False), wanted)


@pytest.mark.one_in(9)
@every_file
def test_variant(name):
  """float16 or channels last, in turn."""
  which = list(VARIANTS)[zlib.crc32(name.encode()) % len(VARIANTS)]
  original, runs, wanted = reference(name)
  optimized, _ = ortplugin.optimize(original, **VARIANTS[which])
  precision = VARIANTS[which].get("precision")
  # the best of several values may be another once they are rounded
  form = precision is not None and ENTRIES[name]["chooses"]
  assert_same(outputs_of(optimized, runs, library=True, half=precision is not None), wanted, precision, form=form)


def test_every_exporter_is_there():
  by_exporter = Counter(said["exporter"] for said in ENTRIES.values())
  assert set(by_exporter) == {"torchscript", "dynamo", "tf2onnx", "skl2onnx", "paddle2onnx"}
  of_torch = [said for said in ENTRIES.values() if said["exporter"] in ("torchscript", "dynamo")]
  assert len({said["architecture"] for said in of_torch}) >= 40
  open_ones = {said["architecture"] for said in of_torch if said["dynamic"]}
  assert len(open_ones) >= 30
  for said in ENTRIES.values():
    assert {len(each["shapes"]) for each in said["inputs"].values()} == {2 if said["dynamic"] else 1}
