"""What a model says of TF32, in which a GPU rounds the factors of float32 products to 10 bits of mantissa.

Convolutions, products, attention and LSTMs without a word follow the session: the option use_tf32 of ONNX Runtime's
CUDA provider, which allows it by default. `--precision tf32` allows it in the model whatever the session says, `fp32`
forbids it.
"""

import numpy as np
import onnx_graphsurgeon as gs

from ...graph import DOMAIN, Scope, labelled
from ...target import DEFAULT
from ..driver import Applied, Outcome, Rule, RulePass

ABSENT = {
  "FusedConv": None,
  "FusedConvTranspose": None,
  "FusedMatMul": None,
  "FusedMatMulNorm": None,
  "FusedAttention": None,
  "FusedLSTM": None,
  "ConvGrad": 0,
}  # None: as the session has it


def has_tensor_cores(node: gs.Node, dtype: str | None) -> bool:
  """Whether a convolution of the dtype, or one's gradients, may use a GPU's tensor cores."""
  may_round = node.attrs.get("allow_tf32", ABSENT[node.op]) != 0  # by default a session lets it
  return dtype in ("float16", "bfloat16") or (dtype == "float" and (may_round or _has_3xtf32(node)))


def _has_3xtf32(node: gs.Node) -> bool:
  is_image = node.op == "FusedConv" and len(node.attrs.get("kernel_shape", ())) == 2
  return is_image and node.attrs.get("group", 1) == 1 and bool(DEFAULT["matmul_exact_pays"])


def _set(value: int) -> Rule:
  def rewrite(scope: Scope, node: gs.Node) -> Outcome:
    """Sets one node's attribute."""
    if node.domain != DOMAIN or node.op not in ABSENT or node.attrs.get("allow_tf32", ABSENT[node.op]) == value:
      return None
    if any(tensor.dtype is not None and np.dtype(tensor.dtype) == np.float32 for tensor in node.inputs[:2]):
      node.attrs["allow_tf32"] = value
      return Applied(labelled(node), node)
    return None

  return rewrite


ALLOW_TF32 = RulePass("allow-tf32", "what multiplies in float32 may round to TF32", _set(1))
FORBID_TF32 = RulePass("forbid-tf32", "what multiplies in float32 never rounds to TF32", _set(0))
