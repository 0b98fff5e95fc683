import numpy as np
from hypothesis import given, strategies as st
from onnx import helper
from pass_helpers import built, operators, run_same, tries

from ortplugin.optimizer.pipeline import FOLD_BATCH_NORM, FOLD_PAD, SUM_TO_ADD

CHANNELS = 4
KINDS = ("conv", "conv", "transposed", "norm", "norm", "arithmetic", "arithmetic", "pad", "relu", "average", "sum")


class Chain:
  def __init__(self, seed):
    self.generator = np.random.default_rng(seed)
    self.nodes = []
    self.weights = {}
    self.values = [("x", (7, 6))]  # names and sizes

  def constant(self, shape, positive=False, values=None):
    made = self.generator.uniform(0.5, 1.5, shape) if positive else self.generator.standard_normal(shape)
    name = f"c{len(self.weights)}"
    self.weights[name] = made.astype(np.float32) if values is None else np.asarray(values)
    return name

  def add(self, op, inputs, size, **attributes):
    name = f"v{len(self.nodes)}"
    self.nodes.append(helper.make_node(op, inputs, [name], f"{op}_{name}", **attributes))
    self.values.append((name, size))


@st.composite
def chains(draw):
  """Up to twelve nodes, each reading one of the last two values; the last value and one other are outputs."""
  chain = Chain(draw(st.integers(0, 1000)))
  for _ in range(draw(st.integers(2, 12))):
    x, (height, width) = chain.values[-1] if draw(st.integers(0, 5)) else draw(st.sampled_from(chain.values[-2:]))
    kind = draw(st.sampled_from(KINDS))
    if kind in ("conv", "transposed"):
      groups, kernel = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2, 3]))
      pads = draw(st.lists(st.integers(0, 2), min_size=4, max_size=4)) if draw(st.booleans()) else [0] * 4
      weight = chain.constant((CHANNELS, CHANNELS // groups, kernel, kernel))
      inputs = [x, weight, *([chain.constant((CHANNELS,))] if draw(st.booleans()) else [])]
      sign = 1 if kind == "conv" else -1
      size = (height + sign * (pads[0] + pads[2] - kernel + 1), width + sign * (pads[1] + pads[3] - kernel + 1))
      if min(size) > 0:
        op = "Conv" if kind == "conv" else "ConvTranspose"
        chain.add(op, inputs, size, group=groups, pads=pads)
    elif kind == "norm":
      parameters = [chain.constant((CHANNELS,), positive=i in (0, 3)) for i in range(4)]
      chain.add("BatchNormalization", [x, *parameters], (height, width))
    elif kind == "arithmetic":
      shape = draw(st.sampled_from([(), (1,), (CHANNELS, 1, 1), (1, CHANNELS, 1, 1), (1, 1, 1)]))
      operands = [x, chain.constant(shape, positive=True)]
      op = draw(st.sampled_from(["Mul", "Div", "Add", "Sub"]))
      if op != "Div" and draw(st.booleans()):
        operands.reverse()
      chain.add(op, operands, (height, width))
    elif kind == "pad":
      pads = draw(st.lists(st.integers(-1 if draw(st.booleans()) else 0, 2), min_size=4, max_size=4))
      size = (height + pads[0] + pads[2], width + pads[1] + pads[3])
      amounts = chain.constant((), values=np.array([0, 0, *pads[:2], 0, 0, *pads[2:]], np.int64))
      value = draw(st.sampled_from([None, 0.0, 0.5]))
      fill = [] if value is None else [chain.constant((), values=np.float32(value))]
      if min(size) > 0:
        chain.add("Pad", [x, amounts, *fill], size)
    elif kind == "relu":
      chain.add("Relu", [x], (height, width))
    elif kind == "average" and min(height, width) > 2:
      include = draw(st.integers(0, 1))
      pads = [draw(st.integers(0, 1)), 0, 0, 1]
      size = (height + pads[0] + pads[2] - 1, width + pads[1] + pads[3] - 2)
      chain.add("AveragePool", [x], size, kernel_shape=[2, 3], pads=pads, count_include_pad=include)
    elif kind == "sum":
      other = draw(st.sampled_from([name for name, size in chain.values if size == (height, width)]))
      chain.add("Sum", [x, other], (height, width))
  chain.add("Relu", [chain.values[-1][0]], chain.values[-1][1])
  kept = {chain.values[-1][0], draw(st.sampled_from(chain.values[1:]))[0]}
  outputs = {name: ("float", ["N", CHANNELS, *size]) for name, size in chain.values if name in kept}
  used = {name for node in chain.nodes for name in node.input}
  weights = {name: array for name, array in chain.weights.items() if name in used}
  return built(chain.nodes, {"x": ("float", ["N", CHANNELS, 7, 6])}, outputs, weights=weights)


@tries(80)
@given(chains())
def test_a_random_chain_computes_the_same(original):
  optimized, _ = run_same(original, SUM_TO_ADD, FOLD_BATCH_NORM, FOLD_PAD, rng=np.random.default_rng(0), N=2)
  assert "Sum" not in operators(optimized)
  assert [each.name for each in optimized.graph.output] == [each.name for each in original.graph.output]
