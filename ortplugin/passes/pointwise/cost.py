"""What it costs to fuse pointwise operators, in bytes: the one place where that is decided.

A pointwise kernel takes the time of the bytes that it moves: it reads every input and writes every output once. So two
operators on whole tensors of one shape that share a tensor always gain: the tensor between them is written once at most
(not at all if nothing else needs it) and not read again, and everything else is read and written as before.

A producer on a smaller shape (a gate of [N, C, 1, 1], a bias made from two vectors) is another matter. Inside the set
it is computed again for every element of the whole, and its own operands are read instead of its result. For that

    saved  = LAUNCH_BYTES + 2 bytes(result)         one launch, and the small tensor written and read
    wasted = WORK_BYTES elements(whole) work        work: the sum of WORK over its statements, and 1 for each operand
                                                    that it adds to the set

and it joins if wasted <= saved, or if the work is at most FREE, which hides behind the loads at every size. Where a
length is unknown only FREE work joins. Nothing small joins if anything outside the set needs its value: it would be
computed twice.

LAUNCH_BYTES, WORK_BYTES and FREE are measurements of a GPU: `ortplugin.target` has them.
"""

from collections.abc import Iterable

from ...target import DEFAULT

LAUNCH_BYTES = DEFAULT["launch_bytes"]
WORK_BYTES = DEFAULT.limits["work_bytes"].value
FREE = DEFAULT["free_work"]

# Work of one statement, in simple operations: of every operator, core ones included.
_SIMPLE = """
    Abs Neg Sign Relu LeakyRelu ThresholdedRelu PRelu HardSigmoid HardSwish Shrink Floor Ceil Round Add Sub Mul Min Max
    Clip Equal Less LessOrEqual Greater GreaterOrEqual And Or Xor Not Where IsNaN IsInf Cast BitwiseAnd BitwiseOr
    BitwiseXor BitwiseNot BitShift
"""
_FUNCTIONS = """
    Exp Log Sin Cos Tan Asin Acos Atan Sinh Cosh Tanh Asinh Acosh Atanh Erf Sigmoid Softplus Softsign Mish Elu Celu Selu
    Swish QuickGelu Gelu Pow Mod LayerNormalization RMSNormalization SumTo
"""
WORK = {
  **dict.fromkeys(_SIMPLE.split(), 1),
  **dict.fromkeys(("Div", "Reciprocal", "Sqrt"), 4),
  **dict.fromkeys(_FUNCTIONS.split(), 16),
}


def work(operators: Iterable[str]) -> int:
  """The work of these statements for one element."""
  return sum(WORK[op] for op in operators)


def too_dear(added: int, small_bytes: int | None, elements: int | None) -> str | None:
  """Why a producer on a smaller shape stays apart; None if it joins.

  Args:
      added: its work, operands that it adds included, for one element.
      small_bytes: the size of its results; None if unknown.
      elements: the number of elements of the whole; None if unknown.
  """
  if added <= FREE:
    return None
  if small_bytes is None or elements is None:
    return f"computing it again for every element is {added} operations, above {FREE}, and how many is unknown"
  wasted, saved = WORK_BYTES * elements * added, LAUNCH_BYTES + 2 * small_bytes
  if wasted <= saved:
    return None
  again = f"computing it again for each of {elements} elements"
  return f"{again} costs as much as moving {wasted:.0f} bytes, and saves {saved}"
