from pass_helpers import model, parametrize, run_same, stays

from ortplugin.optimizer.pipeline import COL2IM_TO_GATHER, COL2IM_TO_GATHER_ON_GPU


def graph(x, image, block, attributes="strides = [1, 1]", rank=4, dtype="float16"):
  sizes = f"int64[{rank - 2}] i = {{{image}}}, int64[{rank - 2}] b = {{{block}}}"
  y = ",".join("VWXYZ"[:rank])
  return model(f"({dtype}[{x}] x) => ({dtype}[{y}] y) <{sizes}> {{ y = Col2Im<{attributes}>(x, i, b) }}", 18)


VOLO = graph("N,18,16", "7,8", "3,3", "strides = [2, 2], pads = [1, 1, 1, 1], dilations = [1, 1]")


@parametrize("original, gathers, pads", [
  (VOLO, 4, ["Pad"]),
  (graph("2,12,6", "4,6", "2,2", "strides = [2, 2]"), 1, []),
  (graph("2,12,15", "5,7", "2,2", "dilations = [2, 2]"), 4, ["Pad"]),
  (graph("2,12,6", "5,8", "2,2", "strides = [2, 3], pads = [0, 1, 0, 0]"), 1, ["Pad"]),
  (graph("N,6,5", "7", "3", "strides = [1], pads = [0, 0], dilations = [1]", 3), 3, ["Pad"]),
])  # fmt: skip
def test_columns_are_taken_and_added(original, gathers, pads):
  left = ["Reshape", "Transpose", *pads, *["Gather"] * gathers, *["Add"] * (gathers - 1), "Transpose", "Reshape"]
  run_same(original, COL2IM_TO_GATHER, into=left, changes=1)


def test_stays():
  unknown = "(float16[1,4,4] x, int64[2] i) => (float16[A,B,C,D] y) <int64[2] b = {2,2}> { y = Col2Im(x, i, b) }"
  stays(model(unknown, 18), COL2IM_TO_GATHER, "are not known")
  stays(graph("1,9,16", "6,6", "3,3"), COL2IM_TO_GATHER, "more than 8 columns add to a pixel")
  single = graph("1,4,9", "4,4", "2,2", dtype="float")
  stays(single, COL2IM_TO_GATHER)
  run_same(single, COL2IM_TO_GATHER_ON_GPU, changes=1)
  stays(graph("1,N,16", "4,4", "1,1"), COL2IM_TO_GATHER, "shape is not known")
