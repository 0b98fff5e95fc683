from pass_helpers import parametrize, run_pass, run_same

from ortplugin.passes.simplify.narrow_concat import MOST_INPUTS, NARROW_CONCAT


def widths(model):
  return [len(node.input) for node in model.graph.node if node.op_type == "Concat"]


def concat(count, *, before="", axis=1, shape="2,N,3", outputs="float[2,M,3] y"):
  inputs = ", ".join(f"float[{shape}] x{i}" for i in range(count))
  names = ", ".join(f"x{i}" for i in range(count))
  return f"({inputs}) => ({outputs}) {{ {before} y = Concat<axis={axis}>({names}) }}"


@parametrize(
  "count, expected", [(33, [32, 2]), (34, [32, 2, 2]), (64, [32, 32, 2]), (65, [32, 32, 3]), (100, [32, 32, 32, 4, 4])]
)
@parametrize("axis", [1, -2])
def test_parts(count, expected, axis):
  optimized, _ = run_same(concat(count, axis=axis), NARROW_CONCAT, changes=1)
  assert widths(optimized) == expected


def test_more_than_two_levels():
  optimized, _ = run_same(concat(1100, shape="1", axis=0, outputs="float[any] y"), NARROW_CONCAT)
  assert max(widths(optimized)) <= MOST_INPUTS


def test_dense_block():
  """Each layer reads all maps before it: the value of the last Concat that is narrow is the first input."""
  layers = ["a1 = Relu(x)"]
  for count in range(2, 41):
    maps = ", ".join(["x", *(f"a{i}" for i in range(1, count))])
    layers.append(f"c{count} = Concat<axis=1>({maps})  a{count} = ReduceMean<axes=[1]>(c{count})")
  original = "(float[2,3,4] x) => (float[2,1,4] a40) { " + "  ".join(layers) + " }"
  optimized, _ = run_same(original, NARROW_CONCAT, changes=40 - MOST_INPUTS)
  assert widths(optimized) == [*range(2, 33), *range(2, 10)]


OTHERS = {
  "another axis": "w = Concat<axis=2>(x0, x1)",
  "another order": "w = Concat<axis=1>(x1, x0)",
  "not from the first": "w = Concat<axis=1>(x1, x2)",
  "one input": "w = Concat<axis=1>(x0)",
}


@parametrize("other", OTHERS)
def test_other_concats_are_no_beginning(other):
  original = concat(33, before=OTHERS[other], shape="2,1,3", outputs="float[2,M,3] y, float[A,B,C] w")
  optimized, _ = run_same(original, NARROW_CONCAT)
  assert sorted(widths(optimized)) == sorted([2 if other != "one input" else 1, 32, 2])


def test_a_beginning_that_comes_later_is_not_used():
  text = concat(33, outputs="float[2,M,3] y, float[2,K,3] w").replace("x32) }", "x32)  w = Concat<axis=1>(x0, x1) }")
  optimized, _ = run_same(text, NARROW_CONCAT)
  assert sorted(widths(optimized)) == [2, 2, 32]


def test_up_to_the_limit_stays():
  run_pass(concat(MOST_INPUTS), NARROW_CONCAT, into="Concat", changes=0)
