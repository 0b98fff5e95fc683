"""What the tests of passes share: models as text, passes by hand, outputs compared in ONNX Runtime."""

import zlib

import numpy as np
import onnx
import onnxruntime
from hypothesis import HealthCheck, settings
from ml_dtypes import bfloat16
from onnx_models import add_weights, all_attributes, annotated, built, nodes_of, parametrize, parsed, value_infos  # noqa: F401
from sample import examples

from ortplugin.graph.convert import all_graphs
from ortplugin.graph.export import export_model
from ortplugin.model.annotate import annotate
from ortplugin.ops import find
from ortplugin.passes.base import PassResult

# Names of dimensions in the tests' models, and their lengths.
LENGTHS = {"batch": 2, "rows": 5, "length": 3, "N": 3, "M": 4, "any": 8}
TOLERANCES = {"float16": (4e-3, 4e-3), "bfloat16": (2e-2, 2e-2), "float32": (2e-5, 2e-5), "float64": (1e-9, 1e-9)}


def tries(count):
  """So many random cases, the same in every run, of which a sample has fewer."""
  return settings(
    max_examples=examples(count), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
  )


def model(graph, opset=17, contrib=False, ir=8):
  """A model of text, as of `parsed`."""
  return parsed(graph, opset, ir, domains=["com.microsoft"] if contrib else ())


def _model_of(original):
  return model(original) if isinstance(original, str) else original


def _assert_no_strays(graph):
  """No tensor has a maker or a reader that is in no graph: scope.used_beyond would take it for one in a body."""
  nodes = [node for each in all_graphs(graph) for node in each.nodes]
  known = {id(node) for node in nodes}
  for tensor in (tensor for node in nodes for tensor in (*node.inputs, *node.outputs)):
    strays = [node.op for node in (*tensor.inputs, *tensor.outputs) if id(node) not in known]
    assert not strays, f"'{tensor.name}' has to do with {strays}, which the graph does not hold"


def run_pass(original, *passes, limit=None, into=None, program=None, changes=None):
  """The model after the passes, and what they did together; each is checked to be idempotent. A text is a `model`.

  `into` are the operators that the model must have then, as a list or in one text, `program` the statements of its
  first fused node, `changes` how much there must have been to change.

  Without a `limit` the passes are also run on the model with nodes named like their outputs, as converters from MXNet
  and Darknet write them: ONNX Runtime loads no model in which two nodes have one name.
  """
  original = _model_of(original)
  if limit is None:
    _assert_names_stay_unique(original, passes)
  graph = annotated(original)
  made = []
  misses = []
  for each in passes:
    left = None if limit is None else limit - len(made)
    result = each(graph, left)
    made += result.changes
    misses += result.near_misses
    if limit is None:
      again = each(graph)
      assert not again.changes, f"{each.name} changes its own output"
      assert again.near_misses == result.near_misses
    _assert_no_strays(graph)
  annotate(graph)
  optimized = export_model(graph, original)
  onnx.checker.check_model(restore(optimized))
  if into is not None:
    assert operators(optimized) == (into.split() if isinstance(into, str) else list(into))
  if program is not None:
    assert lines(programs(optimized)[0]) == list(program)
  if changes is not None:
    assert len(made) == changes
  return optimized, PassResult(tuple(made), tuple(misses))


def _assert_names_stay_unique(original, passes):
  named = onnx.ModelProto()
  named.CopyFrom(original)
  for each in _nodes(named.graph):
    each.name = each.output[0]
  graph = annotated(named)
  for each in passes:
    each(graph)
  names = [each.name for each in _nodes(export_model(graph, named).graph)]
  assert len(names) == len(set(names)), [name for name in set(names) if names.count(name) > 1]


def _nodes(graph):
  for node in graph.node:
    yield node
    for attribute in node.attribute:
      if attribute.type == onnx.AttributeProto.GRAPH:
        yield from _nodes(attribute.g)


def restore(optimized):
  """The model with every fused operator decomposed, which ONNX Runtime runs without the library."""
  restored = onnx.ModelProto()
  restored.CopyFrom(optimized)
  opset = next(each.version for each in optimized.opset_import if each.domain == "")
  _restore(restored.graph, opset)
  kept = [onnx.helper.make_opsetid(e.domain, e.version) for e in restored.opset_import if e.domain != "ortplugin"]
  del restored.opset_import[:]
  restored.opset_import.extend(kept)
  return restored


def _restore(graph, opset):
  nodes = []
  for node in graph.node:
    for attribute in node.attribute:
      if attribute.type == onnx.AttributeProto.GRAPH:
        _restore(attribute.g, opset)
    operator = find(node.domain, node.op_type)
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    nodes += operator.decompose(node, opset) if operator else [copy]
  del graph.node[:]
  graph.node.extend(nodes)


def operators(model):
  """The operators in order, Constants left out."""
  graph = model.graph if isinstance(model, onnx.ModelProto) else model
  return [node.op_type for node in graph.node if node.op_type != "Constant"]


def programs(model):
  graph = model.graph if isinstance(model, onnx.ModelProto) else model
  return [a.s.decode() for node in graph.node for a in node.attribute if a.name == "program"]


def lines(program):
  """The statements of a program, without the frame."""
  return [line.strip() for line in program.splitlines()[1:-1]]


def random_feeds(model, rng, **lengths):
  """Random values for every input that has no initializer. `lengths` of dimensions override LENGTHS."""
  given = {each.name for each in model.graph.initializer}
  feeds = {}
  for each in model.graph.input:
    if each.name in given:
      continue
    tensor = each.type.tensor_type
    shape = [d.dim_value if d.HasField("dim_value") else {**LENGTHS, **lengths}[d.dim_param] for d in tensor.shape.dim]
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    if dtype == np.bool_:
      feeds[each.name] = np.asarray(rng.random(shape) < 0.5)
    elif dtype.kind in "iu":
      feeds[each.name] = rng.integers(0, 3, shape).astype(dtype)
    else:
      feeds[each.name] = np.asarray(rng.standard_normal(shape) * 2 + 0.5).astype(dtype)
  return feeds


def run(model, feeds):
  """The outputs in ONNX Runtime on the CPU, with its own optimizations off."""
  options = onnxruntime.SessionOptions()
  options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
  options.log_severity_level = 3
  session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
  return session.run(None, dict(feeds))


def same_outputs(original, optimized, precision="", rng=None, **lengths):
  """Both models, the second decomposed, give the same in ONNX Runtime, to the dtype's or `precision`'s tolerance."""
  feeds = random_feeds(original, rng or seeded(original), **lengths)
  for info, expected, found in zip(
    original.graph.output, run(original, feeds), run(restore(optimized), feeds), strict=True
  ):
    assert_close(expected, found, info.name, precision)


def assert_same_values(original, optimized, feeds):
  """Both models, the second decomposed, give the very same numbers of these inputs."""
  for expected, found in zip(run(original, feeds), run(restore(optimized), feeds), strict=True):
    np.testing.assert_array_equal(found, expected, strict=True)


def seeded(model):
  return np.random.default_rng(zlib.crc32(model.SerializeToString(deterministic=True)))


def run_same(
  original, *passes, start=None, precision="", rng=None, limit=None, into=None, program=None, changes=None, **lengths
):
  """`run_pass`, on `start` if it is not the original, after which the original's outputs are the same."""
  original = _model_of(original)
  optimized, result = run_pass(start or original, *passes, limit=limit, into=into, program=program, changes=changes)
  same_outputs(original, optimized, precision, rng, **lengths)
  return optimized, result


def assert_close(expected, found, name="", precision=""):
  """Equal dtype, shape and NaNs; values within the tolerance, those that are no floating ones equal."""
  assert (found.dtype, found.shape) == (expected.dtype, expected.shape), name
  if expected.dtype.name not in TOLERANCES:
    np.testing.assert_array_equal(found, expected, err_msg=name)
    return
  rtol, atol = TOLERANCES[precision or expected.dtype.name]
  wide = [each.astype(np.float64) if each.dtype == bfloat16 else each for each in (found, expected)]
  np.testing.assert_allclose(*wide, rtol=rtol, atol=atol, err_msg=name)


def reasons(result):
  """The near misses as 'node: reason'."""
  return [f"{each.node}: {each.reason}" for each in result.near_misses]


def stays(original, passes, *fragments):
  """One or several passes change nothing; each fragment is in a near miss's reason; without any, there is none."""
  original = _model_of(original)
  optimized, result = run_pass(original, *(passes if isinstance(passes, (list, tuple)) else [passes]))
  assert not result.changes, result.changes
  assert optimized == original
  found = reasons(result)
  if not fragments:
    assert not found
  for fragment in fragments:
    assert any(fragment in reason for reason in found), found
