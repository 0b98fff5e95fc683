"""Every model in tests/data, as PyTorch's exporters wrote it, through the optimizer and ONNX Runtime.

models/packed.py says where the files are from; expected.json says how many norms and which scatters each has.
"""

import json
from collections import Counter

import numpy as np
import onnx
import pytest
from exported import DATA
from sample import SAMPLING, is_taken, taken

import ortplugin
from ort.host import make, plain
from ortplugin.graph import import_model, label, scopes
from ortplugin.graph.shape_values import shape_values
from ortplugin.model.annotate import annotate
from ortplugin.passes.pointwise.fuse_pointwise import find_members

EXPECTED = json.loads((DATA / "expected.json").read_text())
NUMPY_DTYPES = {"float": np.float32, "float16": np.float16, "int64": np.int64, "bool": np.bool_, "index": np.int64}
# rtol, atol of a whole network. The original rounds to fp16 after every operator, the fused one once: they may
# differ by some fp16 steps of the largest value in each layer.
TOLERANCES = {"float": (1e-4, 2e-5), "float16": (2e-2, 2e-2)}

# A model's tests are one worker's, which optimizes it once; a sample has every other network, of one exporter.
CASES = {f"[{name}]": 1 for name in EXPECTED}
TAKEN = {n for n in taken(CASES) if "scatters" in EXPECTED[n[1:-1]] or is_taken(n, 2)} if SAMPLING else CASES
pytestmark = pytest.mark.parametrize(
  "name",
  [
    pytest.param(n, marks=[pytest.mark.xdist_group(n), pytest.mark.one_in(int(f"[{n}]" in TAKEN))])
    for n in sorted(EXPECTED)
  ],
)


def original_of(name):
  return onnx.load(DATA / f"{name}.onnx")


def feeds_of(name, rng, rows=None):
  """Random inputs as expected.json describes them; `rows` replaces the size of the batch where that is open."""
  feeds = {}
  first = {each.name: each.type.tensor_type.shape.dim[0] for each in original_of(name).graph.input}
  for input_name, spec in EXPECTED[name]["inputs"].items():
    is_open = bool(rows and first[input_name].dim_param)
    shape = [rows if is_open else spec["shape"][0], *spec["shape"][1:]]
    if spec["dtype"] == "index":  # without duplicates
      values = rng.permutation(spec["high"])[: np.prod(shape)].reshape(shape)
    elif spec["high"]:
      values = rng.integers(0, spec["high"], shape)
      if input_name == "attention_mask":
        values[:, 0] = 1  # a row that masks everything has no defined attention
    else:
      values = rng.standard_normal(shape)
    feeds[input_name] = values.astype(NUMPY_DTYPES[spec["dtype"]])
  return feeds


def run_in(session, feeds):
  """The only output."""
  return session.run(None, {i.name: feeds[i.name] for i in session.get_inputs()})[0]


def run_plain(model, feeds):
  """In an ONNX Runtime that has not loaded the library."""
  return run_in(plain(model), feeds)


def assert_close(got, wanted, dtype):
  assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
  assert np.isfinite(wanted).all()
  rtol, atol = TOLERANCES[dtype]
  np.testing.assert_allclose(got, wanted, rtol=rtol, atol=atol)


def nodes_of(graph):
  for node in graph.node:
    yield node
    for attribute in node.attribute:
      for body in [attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else attribute.graphs:
        yield from nodes_of(body)


def fused_norms(model):
  """FusedLayerNorm nodes by the core operator in their program."""
  counts = {"LayerNormalization": 0, "RMSNormalization": 0}
  for node in nodes_of(model.graph):
    if node.op_type == "FusedLayerNorm":
      program = next(a.s.decode() for a in node.attribute if a.name == "program")
      for core in counts:
        counts[core] += f"{core}<" in program or f"{core}(" in program
  return counts


@pytest.fixture(scope="module")
def optimized_models():
  return {}


@pytest.fixture
def reported(name, optimized_models):
  """The optimized form of tests/data/<name>.onnx and its report, made once."""
  if name not in optimized_models:
    optimized_models[name] = ortplugin.optimize(original_of(name))
  return optimized_models[name]


@pytest.fixture
def optimized(reported):
  return reported[0]


def test_every_norm_is_fused(name, optimized):
  expected = EXPECTED[name]
  assert fused_norms(optimized) == {
    "LayerNormalization": expected["layer_norms"],
    "RMSNormalization": expected["rms_norms"],
  }
  left = [n.name for n in nodes_of(optimized.graph) if n.op_type.endswith("Normalization") and n.domain == ""]
  assert not left


def test_every_convolution_is_ours(name, optimized):
  before = Counter(node.op_type for node in nodes_of(original_of(name).graph))
  after = Counter(node.op_type for node in nodes_of(optimized.graph))
  assert not after["Conv"]
  # Linear layers of images with channels last are convolutions, too; of attention they are merged.
  products = ("MatMul", "Gemm", "FusedMatMul")
  counts = before["Conv"] and not after["FusedAttention"]
  linear = sum(before[op] - after[op] for op in products) if counts else 0
  assert after["FusedConv"] == before["Conv"] + linear


def test_every_scatter_is_ours(name, optimized):
  names = ("ScatterND", "ScatterElements", "UpdateSlice")
  found = Counter(n.op_type for n in nodes_of(optimized.graph) if n.domain == "ortplugin" and n.op_type in names)
  assert found == EXPECTED[name].get("scatters", {})


def test_every_pointwise_operator_is_fused_or_has_no_partner(name, reported):
  """One that is left has no pointwise neighbour, or the report says of each why they are not one."""
  optimized, report = reported
  graph = import_model(optimized)
  annotate(graph)
  on_shapes = shape_values(graph)
  said = [f"{miss.node}: {miss.reason}" for miss in report.near_misses if miss.rewrite == "fuse-pointwise"]
  fused = 0
  for scope in scopes(graph):
    members, _ = find_members(scope, on_shapes)
    for member in members.values():
      fused += member.node.op == "FusedPointwise"
      for tensor in member.inputs:
        maker = scope.producer(tensor)
        if maker is not None and scope.position[id(maker)] in members:
          made = [each.name for each in maker.outputs]
          assert any(f"'{each}'" in reason for each in made for reason in said), (
            f"{label(maker)} and {label(member.node)} are apart, and nothing says why"
          )
  if "scatters" not in EXPECTED[name]:  # a network, not a program of assignments
    products = ("FusedConv", "FusedMatMul")  # which draw in all that there is
    assert fused >= 1 or any(node.op_type in products for node in optimized.graph.node)


def test_outputs_are_those_of_the_original(name, optimized, rng):
  feeds = feeds_of(name, rng)
  assert_close(run_in(make(optimized), feeds), run_plain(original_of(name), feeds), EXPECTED[name]["dtype"])


def test_another_batch_size_where_the_batch_is_open(name, optimized, rng):
  original = original_of(name)
  if not original.graph.input[0].type.tensor_type.shape.dim[0].dim_param:
    assert not optimized.graph.input[0].type.tensor_type.shape.dim[0].dim_param
    return
  feeds = feeds_of(name, rng, rows=3)
  assert_close(run_in(make(optimized), feeds), run_plain(original, feeds), EXPECTED[name]["dtype"])


def test_optimizing_again_changes_nothing(name, optimized):
  again, _ = ortplugin.optimize(optimized)
  assert again == optimized


def test_restored_runs_without_the_library(name, optimized, rng):
  restored = ortplugin.restore(optimized)
  assert not [n.name for n in nodes_of(restored.graph) if n.domain == "ortplugin"]
  onnx.checker.check_model(restored, full_check=True)
  feeds = feeds_of(name, rng)
  assert_close(run_plain(restored, feeds), run_plain(original_of(name), feeds), EXPECTED[name]["dtype"])
