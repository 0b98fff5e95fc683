"""Products of a column and a row: the Mul and its result, and those that stay."""

from pass_helpers import operators, parametrize, run_pass, run_same

from ortplugin.optimizer.pipeline import OUTER_PRODUCT


def product(x, y, dtype="float"):
  return f"({dtype}[{x}] x, {dtype}[{y}] y) => ({dtype}[any] z) {{ z = MatMul(x, y) }}"


@parametrize("dtype", ["float", "float16", "double"])
@parametrize(
  ("x", "y"), [("1,32,1", "1,1,7"), ("5,1", "1,1"), ("3,1,4,1", "2,1,6"), ("B,4,1", "B,1,S"), ("0,1", "1,3")]
)
def test_becomes_a_product(x, y, dtype):
  optimized, _ = run_same(product(x, y, dtype), OUTER_PRODUCT, changes=1, B=2, S=3)
  assert operators(optimized) == ["Mul"]


@parametrize(("x", "y", "dtype"), [
  ("4,2", "2,3", "float"), ("4,K", "K,3", "float"), ("1", "1,3", "float"), ("4,1", "1", "float"),
  ("4,1", "1,3", "int32"),
])  # fmt: skip
def test_stays(x, y, dtype):
  run_pass(product(x, y, dtype), OUTER_PRODUCT, into="MatMul", changes=0)
