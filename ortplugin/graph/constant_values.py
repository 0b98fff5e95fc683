"""Which values of a model come from constants alone, so that ONNX Runtime computes them once, as it loads the model.

Weights that are normalised (NFNet) and positions that are projected (DeBERTa) are too large to be computed here, and an
operator of ours among what makes them would run every time: ONNX Runtime folds its own alone. It does so on the CPU,
where it has few operators in half precision: fold_constants.py computes some of what is made in that, the rest stays
ours.
"""

import numpy as np
import onnx_graphsurgeon as gs

from ..program import OPERATORS
from .convert import all_graphs, local_functions
from .domains import DEFAULT_DOMAINS
from .shape_values import CARRY

_OTHERS = "BatchNormalization Expand Gemm LayerNormalization MatMul ReduceL2 ReduceMean Tile"
FOLDED = frozenset([*CARRY, *OPERATORS, *_OTHERS.split()])


def is_half(dtype: np.dtype) -> bool:
  """Whether it is float16 or bfloat16."""
  return dtype.itemsize == 2 and dtype.kind not in "iu"


def constant_values(graph: gs.Graph) -> frozenset[int]:
  """The ids of the tensors that nodes make of constants alone, in the graph and its bodies."""
  functions = local_functions(graph)
  found: set[int] = set()
  for each in all_graphs(graph):
    for node in each.nodes:
      standard = (node.domain or "") in DEFAULT_DOMAINS and ("", node.op) not in functions
      if not standard or (node.op not in FOLDED and node.op != "Constant"):
        continue
      made = [tensor for tensor in node.outputs if not tensor.is_empty()]
      given = [tensor for tensor in node.inputs if not tensor.is_empty()]
      half = any(t.dtype is None or is_half(t.dtype) for t in (*made, *given))
      if not half and all(isinstance(tensor, gs.Constant) or id(tensor) in found for tensor in given):
        found.update(id(tensor) for tensor in made)
  return frozenset(found)
