import numpy as np
from pass_helpers import add_weights, model, operators, parametrize, run_pass, run_same, stays

from ortplugin.optimizer.pipeline import FOLD_CONSTANTS, REPEATED_CONSTANTS

ROWS = np.arange(20, dtype=np.float32).reshape(5, 4)
ZEROS = np.array([[0.0], [-0.0]], np.float32)


def graph(nodes, shape="2,3,4", made="2,3,4", **constants):
  original = model(f"(float[{shape}] x) => (float[{made}] y) {{ {nodes} }}")
  add_weights(original, **constants)
  return original


def shapes(optimized, index):
  given = {each.name: list(each.dims) for each in optimized.graph.initializer}
  return [given[node.input[index]] for node in optimized.graph.node if node.input[index] in given]


@parametrize(
  "constant, kept",
  [
    (np.broadcast_to(ROWS[:3], (2, 3, 4)), [1, 3, 4]),
    (np.zeros((2, 3, 4), np.float32), [1, 1, 1]),
    (np.full(4, np.nan, np.float32), [1]),
    (np.broadcast_to(ROWS[:3, :1], (2, 3, 4)), [1, 3, 1]),
  ],
)
def test_operands(constant, kept):
  optimized, _ = run_same(graph("y = Add(x, c)", c=np.ascontiguousarray(constant)), REPEATED_CONSTANTS, changes=1)
  assert shapes(optimized, 1) == [kept]


@parametrize("indices, kept", [(np.full((2, 3), 4), [1, 1]), (np.array([[1, 0, 2], [1, 0, 2]]), [1, 3])])
def test_lookups(indices, kept):
  optimized, _ = run_same(graph("r = Gather(t, i)  y = Add(r, x)", t=ROWS, i=indices), REPEATED_CONSTANTS)
  assert shapes(optimized, 1) == [kept]
  assert operators(run_pass(optimized, FOLD_CONSTANTS)[0]) == ["Add"]


STAY = {
  "data of PRelu, to which its slope broadcasts": graph(
    "y = PRelu(c, x)", "3,4", "3,4", c=np.full((3, 4), -1, np.float32)
  ),
  "data of CastLike, whose other operand has no part in the shape": graph(
    "y = CastLike(c, x)", "3,4", "3,4", c=np.full((3, 4), -1, np.float32)
  ),
  "what differs": graph("y = Add(x, c)", c=ROWS[:3]),
  "another zero": graph("y = Add(x, c)", shape="2,4", made="2,4", c=ZEROS),
  "what makes the result as large": graph("y = Add(x, c)", "1,3,4", c=np.stack([ROWS[:3]] * 2)),
  "no pointwise reader": graph("y = MatMul(x, c)", made="2,3,5", c=np.zeros((4, 5), np.float32)),
  "no elements": graph("y = Add(x, c)", "2,0,4", "2,0,4", c=np.zeros((2, 0, 4), np.float32)),
  "an unknown length": graph("y = Add(x, c)", "N,3,4", "2,3,4", c=np.stack([ROWS[:3]] * 2)),
  "indices that differ": graph("r = Gather(t, i)  y = Add(r, x)", t=ROWS, i=np.array([[1, 0, 2], [3, 0, 2]])),
}


@parametrize("what", STAY)
def test_stays(what):
  stays(STAY[what], REPEATED_CONSTANTS)


def test_a_lookup_that_something_else_reads_stays():
  original = graph("r = Gather(t, i)  s = Softmax(r)  y = Add(s, x)", t=ROWS, i=np.zeros((2, 3), np.int64))
  stays(original, REPEATED_CONSTANTS, "reads the rows")
