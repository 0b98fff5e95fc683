"""The table of operators: one folder a family, one name each."""

from ortplugin.graph.domains import DOMAIN
from ortplugin.graph.shapes import TensorType
from ortplugin.ops.attention import OPERATOR as FUSED_ATTENTION
from ortplugin.ops.base import Operator
from ortplugin.ops.conv import OPERATOR as FUSED_CONV
from ortplugin.ops.conv_grad import OPERATOR as CONV_GRAD
from ortplugin.ops.conv_transpose import OPERATOR as FUSED_CONV_TRANSPOSE
from ortplugin.ops.layer_norm import OPERATOR as FUSED_LAYER_NORM
from ortplugin.ops.lstm import OPERATOR as FUSED_LSTM
from ortplugin.ops.matmul import OPERATOR as FUSED_MATMUL
from ortplugin.ops.matmul.norm import OPERATOR as FUSED_MATMUL_NORM
from ortplugin.ops.pointwise import OPERATOR as FUSED_POINTWISE
from ortplugin.ops.pool import OPERATOR as FUSED_POOL
from ortplugin.ops.pool.resize import OPERATOR as FUSED_RESIZE
from ortplugin.ops.scatter import SCATTER_ELEMENTS, SCATTER_ND, UPDATE_SLICE
from ortplugin.ops.sum_to import OPERATOR as FUSED_SUM_TO
from ortplugin.ops.transpose import OPERATOR as FUSED_TRANSPOSE

__all__ = ["DOMAIN", "OPERATORS", "Operator", "TensorType", "find"]

OPERATORS: tuple[Operator, ...] = (
  FUSED_LAYER_NORM,
  SCATTER_ND,
  SCATTER_ELEMENTS,
  UPDATE_SLICE,
  FUSED_POINTWISE,
  FUSED_SUM_TO,
  FUSED_CONV,
  FUSED_CONV_TRANSPOSE,
  CONV_GRAD,
  FUSED_POOL,
  FUSED_RESIZE,
  FUSED_MATMUL,
  FUSED_MATMUL_NORM,
  FUSED_ATTENTION,
  FUSED_TRANSPOSE,
  FUSED_LSTM,
)


def find(domain: str, name: str) -> Operator | None:
  """The operator of this domain and name, if it is one of ours."""
  return next((each for each in OPERATORS if each.domain == domain and each.name == name), None)
