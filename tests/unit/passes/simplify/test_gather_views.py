import numpy as np
from pass_helpers import add_weights, model, parametrize, run_same, stays

from ortplugin.optimizer.pipeline import GATHER_VIEWS


def graph(op, indices, x="2,3,4", made="A,B,C,D", dtype="float"):
  original = model(f"({dtype}[{x}] x) => ({dtype}[{made}] y) {{ y = {op}(x, i) }}")
  add_weights(original, i=np.asarray(indices, np.int64))
  return original


GRID = np.moveaxis(np.indices((2, 3)), 0, -1)

CASES = {
  "Gather": ("Gather<axis=1>", [0, 1, 2], "A,B,C"),
  "Gather from the end": ("Gather<axis=-2>", [-3, 1, -1], "A,B,C"),
  "Gather in two dimensions": ("Gather<axis=2>", [[0, 1], [2, 3]], "A,B,C,D"),
  "GatherND of a grid": ("GatherND", GRID, "A,B,C"),
  "GatherND with axes of length 1": ("GatherND", GRID[:, None], "A,B,C,D"),
  "GatherND of rows": ("GatherND", [[[0]], [[-1]]], "A,B,C,D"),
  "GatherND of elements": ("GatherND", np.stack(np.meshgrid(range(2), range(3), range(4), indexing="ij"), -1), "A,B,C"),
}


@parametrize("dtype", ["float", "bool"])
@parametrize("case", CASES)
def test_views(case, dtype):
  op, indices, made = CASES[case]
  run_same(graph(op, indices, made=made, dtype=dtype), GATHER_VIEWS, into="Reshape", changes=1)


STAY = {
  "another order": graph("Gather<axis=1>", [0, 2, 1], made="A,B,C"),
  "a part": graph("Gather<axis=1>", [0, 1], made="A,B,C"),
  "twice": graph("Gather<axis=0>", [0, 1, 0], made="A,B,C"),
  "columns first": graph("GatherND", GRID.swapaxes(0, 1), made="A,B,C"),
  "out of range, but as many": graph("GatherND", [[0, 0], [0, 1], [0, 2], [0, 3], [1, 1], [1, 2]], made="A,B"),
  "batches": graph("GatherND<batch_dims=1>", [[[0], [1], [2]], [[0], [1], [2]]], made="A,B,C"),
  "an unknown length": graph("Gather<axis=1>", [0, 1, 2], x="N,3,4", made="A,B,C"),
}


@parametrize("what", STAY)
def test_stays(what):
  stays(STAY[what], GATHER_VIEWS)
