import numpy as np
from pass_helpers import add_weights, model, parametrize, run_same, stays

from ortplugin.optimizer.pipeline import DEAD_NODES, DISCARDED_ELEMENTS, FOLD_CONSTANTS

LOGS = np.array([[-np.inf, 0.5, 1.5], [np.nan, 1e30, 2.5]], np.float32)
NEAR = np.array([[True, False, False], [True, True, False]])
DISTANCE = np.arange(6).reshape(2, 3)


def graph(nodes, near=NEAR, logs=LOGS, outputs=""):
  original = model(f"(int64[2,3] x) => (int64[2,3] y{outputs}) {{ {nodes}  y = Add(x, w) }}")
  given = {"c": logs, "near": near, "far": ~near, "distance": DISTANCE, "most": np.array(2)}
  used = {name for node in original.graph.node for name in node.input}
  add_weights(original, **{name: each for name, each in given.items() if name in used})
  return original


@parametrize(
  "nodes",
  [
    "i = Cast<to=7>(c)  w = Where(near, distance, i)",
    "i = Cast<to=7>(c)  w = Where(far, i, distance)",
    "i = Cast<to=6>(c)  j = Cast<to=7>(i)  m = Min(j, most)  a = Add(most, m)  w = Where(near, distance, a)",
  ],
)
def test_discarded(nodes):
  _, result = run_same(graph(nodes), DISCARDED_ELEMENTS, FOLD_CONSTANTS, DEAD_NODES, into="Add")
  assert result.changes[0].rewrite == "discarded-elements"


CAST = "i = Cast<to=7>(c)"
STAY = {
  "one that is taken": graph(f"{CAST}  w = Where(near, distance, i)", NEAR & (DISTANCE != 4)),
  "the other branch": graph(f"{CAST}  w = Where(near, i, distance)"),
  "both branches": graph(f"{CAST}  w = Where(near, i, i)"),
  "another reader": graph(f"{CAST}  w = Where(near, distance, i)", outputs=", int64[2,3] i"),
  "what moves elements": graph(f"{CAST}  s = {{2,3}}  r = Reshape(i, s)  w = Where(near, distance, r)"),
  "a condition at run time": graph(f"{CAST}  z = Cast<to=9>(x)  w = Where(z, distance, i)"),
  "no Where": graph(f"{CAST}  w = Min(i, distance)"),
  "what fits": graph(f"{CAST}  w = Where(near, distance, i)", logs=np.ones((2, 3), np.float32)),
  "a row that is repeated": graph(f"{CAST}  w = Where(near, distance, i)", logs=LOGS[:1]),
}


@parametrize("what", STAY)
def test_stays(what):
  stays(STAY[what], DISCARDED_ELEMENTS)
