import math

import numpy as np
from pass_helpers import model, operators, parametrize, run_pass, run_same, stays

from ortplugin.optimizer.pipeline import CHANNELS_LAST_ALWAYS, CONV_EPILOGUE, FUSE_CONV, IMAGE_INPUT, PAIRED_COLUMNS


def graph(attributes="pads = [1, 1, 1, 1]", *, x="N,3,7,8", w=(16, 3, 3, 3), bias="", dtype="float16", more=""):
  def known(name, *shape):
    values = (np.arange(math.prod(shape)) * 7 % 13 - 6) / 8
    bits = values.astype(np.float16).view(np.uint16) if dtype == "float16" else values
    return f"{dtype}[{','.join(map(str, shape))}] {name} = {{{', '.join(map(str, bits))}}}"

  given, constants = (f", {dtype}[{w[0]}] b", "") if bias else ("", f", {known('b', w[0])}")
  constants += f", {known(more, 1, 1, 1, w[0])}" if more else ""
  return model(f"""({dtype}[{x}] x{given}) => ({dtype}[A,B,C,D] y) <{known("w", *w)}{constants}> {{
    c = Conv<{attributes}>(x, w, b)  r = {f"Add(c, {more})" if more else "Relu(c)"}
    p = MaxPool<kernel_shape=[2,2]>(r)  y = Transpose<0,2,3,1>(p) }}""")


def before(original):
  return run_pass(original, FUSE_CONV, CHANNELS_LAST_ALWAYS, IMAGE_INPUT, CONV_EPILOGUE)[0]


@parametrize("attributes", [
  "pads = [1, 1, 1, 1]", "pads = [0, 3, 2, 0]", "pads = [1, 1, 1, 1], strides = [2, 1]", "pads = [0, 0, 0, 0]",
])  # fmt: skip
@parametrize("w", [(16, 3, 3, 3), (64, 1, 2, 3), (8, 4, 1, 1)])
def test_two_columns_at_once(attributes, w):
  width = 8 + sum(int(digit) for digit in attributes.split("[")[1].split("]")[0].split(", ")[1::2]) - w[3] + 1
  original = graph(attributes, x=f"N,{w[1]},7,{8 + width % 2}", w=w)
  optimized, _ = run_same(original, PAIRED_COLUMNS, start=before(original), changes=1)
  assert "Reshape" in operators(optimized)
  sizes = {each.name: list(each.dims) for each in optimized.graph.initializer}
  (fused,) = [node for node in optimized.graph.node if node.op_type == "FusedConv"]
  assert [sizes[name] for name in fused.input[1:]] == [[2 * w[0], w[2], w[3] + 1, w[1]], [2 * w[0]]]


STAY = {
  "odd columns": (graph(x="N,3,7,9"), "are not known to be pairs"),
  "unknown columns": (graph(x="N,3,7,W"), "are not known to be pairs"),
  "a bias that is no constant": (graph(bias="b"), "are not constants"),
  "an operand of each column, as many as filters": (graph(x="N,3,7,16", more="columns"), "are not constants"),
  "auto_pad": (graph('auto_pad = "SAME_UPPER"'), "auto_pad is SAME_UPPER"),
  "strides": (graph("strides = [1, 2]"), None),
  "dilations": (graph("dilations = [1, 2]"), None),
  "72 filters": (graph(w=(72, 3, 3, 3)), None),
  "12 filters": (graph(w=(12, 3, 3, 3)), None),
  "float": (graph(dtype="float"), None),
  "many channels": (graph(x="N,16,7,8", w=(16, 16, 3, 3)), None),
}


@parametrize("what", STAY)
def test_stays(what):
  given, reason = STAY[what]
  stays(before(given), PAIRED_COLUMNS, *([reason] if reason else []))
