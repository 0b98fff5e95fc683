"""A product of two tensors as a sum over one index: MatMul and Einsum, by the letters of their axes.

MatMul of rank 4:   abmk, abkn -> abmn
"""

import string
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from ...graph import Scope


@dataclass(frozen=True)
class Product:
  """One letter an axis: of both operands, and of the result."""

  node: gs.Node
  operands: tuple[str, str]
  result: str

  @property
  def summed(self) -> str:
    """The letter of the sum."""
    return next(iter(set(self.operands[0]) & set(self.operands[1]) - set(self.result)))

  def own(self, side: int) -> str:
    """The letters that only this operand has: of its rows or columns, and of leading axes that the other lacks."""
    return "".join(letter for letter in self.operands[side] if letter not in self.operands[1 - side])


def product_of(scope: Scope, node: gs.Node) -> Product | None:
  """The node as a product; None if it is none, or not of one sum, or the ranks are unknown."""
  op = scope.op(node)
  if op not in ("MatMul", "Einsum") or len(node.inputs) != 2:
    return None
  ranks = [scope.rank(tensor) for tensor in node.inputs]
  left, right = ranks
  if left is None or right is None:
    return None
  if op == "MatMul":
    if left < 2 or right < 2 or max(left, right) > 20:
      return None
    batch = string.ascii_lowercase[: max(left, right) - 2]
    outer, inner = batch[len(batch) - left + 2 :], batch[len(batch) - right + 2 :]
    return Product(node, (f"{outer}XZ", f"{inner}ZY"), f"{batch}XY")
  equation = node.attrs.get("equation", "")
  text = (equation.decode() if isinstance(equation, bytes) else str(equation)).replace(" ", "")
  operands, arrow, result = text.partition("->")
  given = operands.split(",")
  if not arrow or len(given) != 2 or [len(each) for each in given] != [left, right]:
    return None
  if any(len(set(each)) != len(each) or not each.isalpha() for each in (*given, result)):
    return None
  first, second = set(given[0]), set(given[1])
  shared = (first & second) - set(result)
  if len(shared) != 1 or (first | second) - shared != set(result) or not first - second or not second - first:
    return None
  return Product(node, (given[0], given[1]), result)
