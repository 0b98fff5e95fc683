import numpy as np
import onnx
from hypothesis import given, settings, strategies as st
from onnx import helper, numpy_helper
from pass_helpers import assert_close, built, nodes_of, parametrize, restore, run
from sample import examples

from ortplugin.optimizer import run_passes, select_passes


class Network:
  def __init__(self, data):
    self.data = data
    self.nodes = []
    self.constants = []
    self.spatial = data.draw(st.sampled_from([2, 2, 1, 3]))  # in rank 3 the permutations between layouts are one
    self.images = {"x": (4, 5, 6, 3)[: self.spatial + 1]}
    self.generator = np.random.default_rng(data.draw(st.integers(0, 99)))

  def op(self, op, *inputs, shape=None, **attributes):
    name = f"v{len(self.nodes)}"
    self.nodes.append(helper.make_node(op, list(inputs), [name], f"n{len(self.nodes)}", **attributes))
    if shape is not None:
      self.images[name] = shape
    return name

  def constant(self, value, dtype=np.float32):
    name = f"c{len(self.constants)}"
    self.constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
    return name

  def weights(self, *shape):
    return self.constant(self.generator.standard_normal(shape) / np.sqrt(np.prod(shape[1:])))

  def image(self, shape=None):
    names = [name for name, own in self.images.items() if shape in (None, own)]
    return self.data.draw(st.sampled_from(names[-3:]))

  def model(self, opset):
    read = {name for node in self.nodes for name in node.input}
    last = self.nodes[-1].output[0]
    outputs = sorted({last, *(name for name in self.images if name not in read and name != "x")})
    x = {"x": ("float", [2, *self.images["x"]])}
    model = built(self.nodes, x, dict.fromkeys(outputs, ("float", None)), opset)
    model.graph.initializer.extend(self.constants)
    inferred = onnx.shape_inference.infer_shapes(model)
    for own, info in zip(model.graph.output, inferred.graph.output, strict=True):
      own.CopyFrom(info)
    return model


def conv(n):
  x = n.image()
  c, *pixels = n.images[x]
  groups = n.data.draw(st.sampled_from([g for g in (1, 2, c) if c % g == 0]))
  rows = groups * n.data.draw(st.integers(1, 3))
  kernel, stride = n.data.draw(st.sampled_from([1, 3])), n.data.draw(st.sampled_from([1, 1, 2]))
  attributes = {"group": groups, "pads": [kernel // 2] * 2 * n.spatial, "strides": [stride] * n.spatial}
  shape = (rows, *(-(-size // stride) for size in pixels))
  bias = [n.weights(rows)] * n.data.draw(st.integers(0, 1))
  n.op("Conv", x, n.weights(rows, c // groups, *[kernel] * n.spatial), *bias, shape=shape, **attributes)


def activation(n):
  x = n.image()
  n.op(n.data.draw(st.sampled_from(["Relu", "Sigmoid", "Tanh", "Neg"])), x, shape=n.images[x])


def swish(n):
  x = n.image()
  n.op("Mul", n.op("Sigmoid", x), x, shape=n.images[x])


def residual(n):
  a = n.image()
  n.op("Add", a, n.image(n.images[a]), shape=n.images[a])


def per_channel(n):
  x = n.image()
  c, *pixels = n.images[x]
  ones = [1] * n.spatial
  shape = n.data.draw(st.sampled_from([(c, *ones), (1, c, *ones), (pixels[-1],), ()]))
  operands = [x, n.constant(n.generator.standard_normal(shape))]
  n.op(n.data.draw(st.sampled_from(["Add", "Mul"])), *n.data.draw(st.permutations(operands)), shape=n.images[x])


def concat(n):
  a = n.image()
  c, *pixels = n.images[a]
  axis = n.data.draw(st.sampled_from([1, -1 - n.spatial]))
  n.op("Concat", a, a, n.image(n.images[a]), axis=axis, shape=(3 * c, *pixels))


def squeeze_excite(n):
  x = n.image()
  c = n.images[x][0]
  ones = [1] * n.spatial
  axes = list(range(2, n.spatial + 2))
  kind, attributes = n.data.draw(st.sampled_from([("GlobalAveragePool", {}), ("ReduceMean", {"axes": axes})]))
  pooled = n.op(kind, x, shape=(c, *ones), **attributes)  # an image, too: of one pixel
  reduced = n.op("Relu", n.op("Conv", pooled, n.weights(2, c, *ones)))
  gate = n.op("Sigmoid", n.op("Conv", reduced, n.weights(c, 2, *ones)))
  n.op("Mul", *n.data.draw(st.permutations([x, gate])), shape=n.images[x])


def pool(n):
  x = n.image()
  kind = n.data.draw(st.sampled_from(["MaxPool", "AveragePool"]))
  n.op(kind, x, kernel_shape=[3] * n.spatial, pads=[1] * 2 * n.spatial, shape=n.images[x])


def channels_first_only(n):
  x = n.image()
  if n.spatial == 2:  # which is all that ONNX Runtime's LRN takes
    n.op("LRN", x, size=3, shape=n.images[x])
  else:
    n.op("InstanceNormalization", x, *(n.weights(n.images[x][0]) for _ in range(2)), shape=n.images[x])


def norm_with_channels_last(n):
  x = n.image()
  c = n.images[x][0]
  y = n.op("Softmax", n.op("Transpose", x, perm=[0, *range(2, n.spatial + 2), 1]), axis=-1)
  back = [0, n.spatial + 1, *range(1, n.spatial + 1)]
  n.op("Transpose", n.op("MatMul", y, n.weights(c, c)), perm=back, shape=n.images[x])


def tokens(n):
  x = n.image()
  c, *pixels = n.images[x]
  flat = n.op("Reshape", x, n.constant([2, c, -1], np.int64))
  turned = n.op("Transpose", n.op("Tanh", n.op("Transpose", flat, perm=[0, 2, 1])), perm=[0, 2, 1])
  n.op("Reshape", turned, n.constant([2, c, *pixels], np.int64), shape=(c, *pixels))


def mean_of_channels(n):
  x = n.image()
  n.op("Sub", x, n.op("ReduceMean", x, axes=[1]), shape=n.images[x])


def split(n):
  x = n.image()
  c, *pixels = n.images[x]
  start, end = n.constant([c // 2], np.int64), n.constant([c], np.int64)
  n.op("Slice", x, start, end, n.constant([1], np.int64), shape=(c - c // 2, *pixels))


def norm(n):
  x = n.image()
  c = n.images[x][0]
  parameters = [n.constant(n.generator.uniform(0.5, 1.5, c)) for _ in range(4)]
  n.op("BatchNormalization", x, *parameters, shape=n.images[x])


STEPS = (conv, conv, conv, activation, swish, residual, residual, per_channel, concat, squeeze_excite, pool,
         channels_first_only, norm_with_channels_last, tokens, mean_of_channels, split, norm)  # fmt: skip


@parametrize("layout", ["nchw", "nhwc"])
@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_random_networks(layout, data):
  network = Network(data)
  for _ in range(data.draw(st.integers(1, 9))):
    data.draw(st.sampled_from(STEPS))(network)
  original = network.model(data.draw(st.sampled_from([13, 17])))
  passes = select_passes(layout=layout)
  optimized, _, _ = run_passes(original, passes)
  assert not nodes_of(optimized, "Conv")
  feeds = {"x": network.generator.standard_normal((2, *network.images["x"])).astype(np.float32)}
  for info, expected, found in zip(
    original.graph.output, run(original, feeds), run(restore(optimized), feeds), strict=True
  ):
    assert_close(expected / (1 + np.abs(expected).max()), found / (1 + np.abs(expected).max()), info.name)
  again, changes, _ = run_passes(optimized, passes)
  assert not changes
  assert again == optimized
