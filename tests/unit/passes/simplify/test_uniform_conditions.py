import numpy as np
from pass_helpers import add_weights, model, parametrize, run_same, stays

from ortplugin.optimizer.pipeline import UNIFORM_CONDITIONS

TRUE, FALSE, MIXED = np.ones((1, 4), bool), np.zeros((3, 4), bool), np.arange(12).reshape(3, 4) > 5


def graph(node, dtype="bool", shape="3,4", made="3,4", **constants):
  original = model(f"({dtype}[{shape}] x, {dtype}[3,4] z) => ({dtype}[{made}] y) {{ y = {node} }}")
  add_weights(original, **constants)
  return original


DECIDED = {
  "And": (graph("And(c, x)", c=TRUE), "Identity"),
  "And, the other way round": (graph("And(x, c)", c=np.True_), "Identity"),
  "Or": (graph("Or(c, x)", c=FALSE), "Identity"),
  "Where": (graph("Where(c, x, z)", "float", c=TRUE), "Identity"),
  "Where not": (graph("Where(c, z, x)", "float", c=FALSE), "Identity"),
  "of a named length": (graph("And(c, x)", shape="N,4", made="N,4", c=TRUE), "Identity"),
  "a smaller branch": (graph("Where(c, x, z)", "float", "4", c=TRUE), "Expand"),
  "a smaller mask": (graph("And(c, x)", shape="1,4", c=~FALSE), "Expand"),
}


@parametrize("case", DECIDED)
def test_decided(case):
  original, op = DECIDED[case]
  run_same(original, UNIFORM_CONDITIONS, into=[op], changes=1)


STAY = {
  "And with both": graph("And(c, x)", c=MIXED),
  "And with false": graph("And(c, x)", c=FALSE),
  "Or with true": graph("Or(c, x)", c=TRUE),
  "Xor": graph("Xor(c, x)", c=TRUE),
  "Where of both": graph("Where(c, x, z)", "float", c=MIXED),
  "no elements": graph("And(c, x)", shape="0,4", made="0,4", c=TRUE[:0]),
  "a constant branch": graph("Where(c, k, x)", "float", c=TRUE, k=np.zeros((3, 4), np.float32)),
  "a length that is not known": graph("Where(c, x, w)", "float", "N,1", "N,4", c=TRUE[0], w=np.zeros(4, np.float32)),
}


@parametrize("what", STAY)
def test_stays(what):
  stays(STAY[what], UNIFORM_CONDITIONS)
