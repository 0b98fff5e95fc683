"""What the tests of the layout pass share: models of convolutions, and these with channels last."""

import numpy as np
from pass_helpers import model, operators, run_pass, run_same

from ortplugin.optimizer.pipeline import CHANNELS_LAST_ALWAYS, FUSE_CONV

VALUES = np.array([((7 * i) % 13 - 6) / 8 for i in range(144)])
FP16 = "float16[4,4,3,3] w = {" + ", ".join(map(str, VALUES.astype(np.float16).view(np.uint16))) + "}"  # as bits
SAME = "Conv<pads=[1,1,1,1]>"


def constant(name, *shape):
  values = (((7 * i) % 13 - 6) / 8 for i in range(int(np.prod(shape))))
  return f"float[{','.join(map(str, shape))}] {name} = {{{', '.join(map(str, values))}}}"


W = constant("w", 4, 4, 3, 3)


def graph(nodes, constants="", inputs="", out="float[N,4,5,6] y", x="float[N,4,5,6] x"):
  """c = Conv(x, w), the nodes, y = Conv(last, w): `nodes` make `last` from c."""
  weight = (FP16 if x.startswith("float16") else W) + (f", {constants}" if constants else "")
  return f"({x}{inputs}) => ({out}) <{weight}> {{ c = {SAME}(x, w)  {nodes} }}"


def between(nodes, constants="", inputs="", out="[A,B,C,D]"):
  return model(graph(f"{nodes}  y = {SAME}(last, w)", constants, inputs, f"float{out} y"))


def change(original, **more):
  return run_same(original, CHANNELS_LAST_ALWAYS, start=run_pass(original, FUSE_CONV)[0], **more)


def inner(optimized):
  """The operators between the first and the last Transpose, which are at the ends of the graph."""
  found = operators(optimized)
  assert (found[0], found[-1]) == ("Transpose", "Transpose"), found
  return found[1:-1]
