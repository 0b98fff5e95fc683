from layout_helpers import constant
from pass_helpers import all_attributes, model, nodes_of, operators, parametrize, run_pass, run_same, stays

from ortplugin.optimizer.pipeline import CHANNELS_LAST_ALWAYS, FUSE_CONV, IMAGE_INPUT


def network(channels=3, extra="", outputs="", rank=4):
  """A convolution of an image; `moved` puts its channels last, behind a Transpose."""
  sizes = "9,8" if rank == 4 else "9"
  return model(f"""(float[N,{channels},{sizes}] x) => (float[N,8,{"7,6" if rank == 4 else "7"}] y{outputs})
    <{constant("w", 8, channels, *[3] * (rank - 2))}> {{ y = Conv(x, w)  {extra} }}""")


def moved(original):
  return run_pass(original, FUSE_CONV, CHANNELS_LAST_ALWAYS)[0]


@parametrize("channels", [1, 3, 4])
def test_a_transpose_is_spared(channels):
  original = network(channels)
  assert operators(moved(original)) == ["Transpose", "FusedConv", "Transpose"]
  optimized, _ = run_same(original, IMAGE_INPUT, start=moved(original), into="FusedConv Transpose", changes=1)
  assert optimized.graph.node[0].input[0] == "x"
  assert all_attributes(optimized.graph.node[0])["input_layout"] == b"NCHW"
  stays(optimized, [FUSE_CONV, CHANNELS_LAST_ALWAYS, IMAGE_INPUT])


def test_a_transpose_that_others_need_stays():
  original = network(extra="t = Transpose<0,2,3,1>(x)  z = Softmax(t)", outputs=", float[N,9,8,3] z")
  optimized, _ = run_same(original, IMAGE_INPUT, start=moved(original))
  assert operators(optimized).count("Transpose") == 2
  assert all_attributes(nodes_of(optimized, "FusedConv")[0])["input_layout"] == b"NCHW"


def test_many_channels_are_transposed():
  stays(moved(network(5)), IMAGE_INPUT, "5 channels")


def test_a_signal_is_transposed():
  stays(moved(network(rank=3)), IMAGE_INPUT)
