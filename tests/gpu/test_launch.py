"""Kernels overlap by the rule of launch.cc: in a CUDA graph a programmatic edge joins two kernels of ours or there is
none, and what the kernels of a library read has been written, though they may not wait for it."""

import numpy as np
from node_cases import OPSET
from onnx import helper
from onnx_models import built, parametrize

import ortplugin
from gpu.cuda_graph import AT_EXIT, AT_LAUNCH, captured, our_kernels
from gpu.device import bind, cupy, host, make, same_bits
from gpu.sessions import session_on

SLOW = "(float16 x) => (float16 y) {\n  a0 = Sin(x)\n" + "".join(f"  a{i} = Sin(a{i - 1})\n" for i in range(1, 200))
SLOW += "  y = Mul(a199, 1.25)\n}"
QUICK = "(float16 x) => (float16 y) {\n  y = Add(x, 1.0)\n}"
SUM = "(float16 c, float16 r) => (float16 y) {\n  y = Add(c, r)\n}"
# Batch, pixels along a side, channels and filters of pointwise convolutions with a residual, as they end the blocks of
# CoAtNet and MaxViT. In the kernels that cuDNN 9.19 generates for all but the last, the warps of the epilogue read the
# residual without waiting for the kernel before them.
SHAPES = [(8, 14, 1024, 256), (8, 28, 768, 192), (8, 28, 384, 192), (8, 28, 512, 128)]


def _model(batch, side, channels, filters, before):
  """A convolution by cuDNN with a residual that comes through pointwise kernels of ours."""
  rng = np.random.default_rng(0)
  nodes, value = [], "r"
  for number, program in enumerate(before):
    node = helper.make_node("FusedPointwise", [value], [f"v{number}"], f"pointwise{number}", domain="ortplugin")
    node.attribute.append(helper.make_attribute("program", program))
    nodes.append(node)
    value = f"v{number}"
  weights = rng.standard_normal((filters, 1, 1, channels)) / np.sqrt(channels)
  conv = helper.make_node("FusedConv", ["x", "w", value], ["y"], "conv", domain="ortplugin")
  attributes = {"program": SUM, "layout": "NHWC", "kernel_shape": [1, 1], "algorithm": "fused"}
  conv.attribute.extend(helper.make_attribute(key, value) for key, value in attributes.items())
  image = [batch, side, side]
  given, made = ("float16", [*image, channels]), ("float16", [*image, filters])
  return built(
    [*nodes, conv], {"x": given, "r": made}, {"y": made}, OPSET, 10,
    domains=["ortplugin"], weights={"w": weights.astype(np.float16)},
  ).SerializeToString()  # fmt: skip


def _feeds(batch, side, channels, filters, count):
  rng = np.random.default_rng(1)
  return [
    {
      name: rng.standard_normal((batch, side, side, width)).astype(np.float16)
      for name, width in (("x", channels), ("r", filters))
    }
    for _ in range(count)
  ]


@parametrize("before", [(SLOW,), (SLOW, QUICK), (SLOW, QUICK, QUICK)], ids=["one", "two", "three"])
@parametrize("shape", SHAPES, ids=str)
def test_a_library_reads_what_was_written(shape, before):
  """Replays of one graph on one input after the other: what begins early reads what the last replay left."""
  model, feeds = _model(*shape, before), _feeds(*shape, 3)
  plain, graph = make(model), ortplugin.session(model, [("cuda", {"use_tf32": "0"})], cuda_graph=True)
  wanted = [host(ortplugin.run(plain, each)) for each in feeds]
  for _ in range(10):
    for each, outputs in zip(feeds, wanted, strict=True):
      assert same_bits(host(ortplugin.run(graph, each)), outputs)


@parametrize("allocates", [False, True], ids=["", "allocates"])
@parametrize("shape", SHAPES, ids=str)
def test_programmatic_edges_join_kernels_of_ours(shape, allocates):
  """`allocates`: no edge can be removed from a graph that allocates memory, as some operators of ORT's do."""
  stream = cupy.cuda.Stream(non_blocking=True)
  session, options = session_on(stream, _model(*shape, (SLOW, QUICK, QUICK)))
  inputs = [cupy.asarray(array) for array in _feeds(*shape, 1)[0].values()]
  binding = bind(session, inputs, [cupy.empty((*shape[:1], shape[1], shape[1], shape[3]), np.float16)])
  cupy.cuda.Device().synchronize()
  session.run_with_iobinding(binding, options)  # compiles
  stream.synchronize()

  def run():
    memory = cupy.cuda.runtime.mallocAsync(1024, stream.ptr) if allocates else 0
    session.run_with_iobinding(binding, options)
    if allocates:
      cupy.cuda.runtime.freeAsync(memory, stream.ptr)

  edges = captured(stream, run)
  ours = our_kernels()
  assert any(edge.upstream == "pointwise" and edge.downstream not in ours for edge in edges), edges
  for edge in edges:
    assert edge.is_programmatic == (edge.upstream in ours and edge.downstream in ours), edge
    assert edge.port in ((AT_EXIT, AT_LAUNCH) if edge.is_programmatic else (0,)), edge
  assert sum(edge.is_programmatic for edge in edges) == 2
