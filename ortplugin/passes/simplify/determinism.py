"""Which nodes may give something else each time."""

import onnx_graphsurgeon as gs

DROPOUT = ("Dropout", "BiasDropout", "BitmaskDropout", "BitmaskBiasDropout", "TrainableDropout")
SAMPLING = ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli")
RANDOM = frozenset(DROPOUT + SAMPLING)


def is_random(node: gs.Node) -> bool:
  """Whether the node draws random numbers, it or one in the graphs in its attributes."""
  bodies = [value for value in node.attrs.values() if isinstance(value, gs.Graph)]
  return node.op in RANDOM or any(is_random(inner) for body in bodies for inner in body.nodes)
