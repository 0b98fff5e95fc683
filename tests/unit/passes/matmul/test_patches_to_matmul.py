import onnx
from matmul_helpers import attribute, inputs_of, weighted
from pass_helpers import nodes_of, operators, parametrize, programs, run_pass, run_same, stays

from ortplugin.optimizer.pipeline import (
  ALLOW_TF32,
  CHANNELS_LAST,
  CONV_EPILOGUE,
  FORBID_TF32,
  FUSE_CONV,
  IMAGE_INPUT,
  PATCHES_TO_MATMUL,
)

BEFORE = [FUSE_CONV, CHANNELS_LAST, IMAGE_INPUT, CONV_EPILOGUE]


def network(strides="strides = [16, 8]", image="N,3,32,24", channels=3, kernel="16,8", half=True, bias=True, after=""):
  p, q = (int(each) for each in kernel.split(","))
  weights = {"w": (24, channels, p, q), **({"b": (24,)} if bias else {}), "g": (24,), "o": (24,)}
  return weighted(
    f"""(f[{image}] x) => (f[A,B,24] y) {{ c = Conv<{strides}>(x, w{", b" if bias else ""})  {after}
        s = {{0,24,-1}}  r = Reshape({"d" if after else "c"}, s)
        t = Transpose<0,2,1>(r)  y = LayerNormalization(t, g, o) }}""",
    weights,
    half=half,
  )


@parametrize("bias", [True, False])
@parametrize("image", ["N,3,32,24", "2,3,16,8", "1,3,48,16"])
def test_a_product_of_patches(image, bias):
  optimized, result = run_same(network(image=image, bias=bias), *BEFORE, PATCHES_TO_MATMUL)
  assert operators(optimized)[:5] == ["Reshape", "Transpose", "Reshape", "FusedMatMul", "Reshape"]
  assert sum(change.rewrite == "patches-to-matmul" for change in result.changes) == 1
  assert "Transpose" not in operators(optimized)[4:]
  assert len(inputs_of(optimized)[0]) == 2 + bias
  (product,) = nodes_of(optimized, "FusedMatMul")
  assert attribute(product, "trans_b") == 1


def test_an_epilogue_comes_along():
  optimized, _ = run_same(network(after="d = Relu(c)"), *BEFORE, PATCHES_TO_MATMUL)
  assert ["Relu" in program for program in programs(optimized)] == [True]


STAY = {
  "filters that overlap": ({"strides": "strides = [8, 8]"}, ""),
  "gaps": ({"strides": "strides = [16, 16]", "image": "N,3,32,32"}, ""),
  "pads": ({"strides": "strides = [16, 8], pads = [8, 0, 8, 0]"}, ""),
  "padding to the size": ({"strides": 'strides = [16, 8], auto_pad = "SAME_UPPER"', "image": "N,3,30,24"}, ""),
  "dilations": ({"strides": "strides = [16, 8], dilations = [1, 2]"}, ""),
  "short sums": ({"strides": "strides = [4, 4]", "kernel": "4,4"}, ""),
  "an image that is cropped": ({"image": "N,3,40,24"}, "not known to be whole patches"),
  "an image of any size": ({"image": "N,3,H,W"}, "not known to be whole patches"),
  "many channels": ({"image": "N,8,32,24", "channels": 8}, ""),
  "groups": ({"strides": "strides = [16, 16], group = 2", "image": "N,4,32,32", "channels": 2, "kernel": "16,16"}, ""),
}


@parametrize("what", STAY)
def test_stays(what):
  arguments, reason = STAY[what]
  before, _ = run_pass(network(**arguments), *BEFORE)
  assert "FusedConv" in operators(before)
  stays(before, PATCHES_TO_MATMUL, *([reason] if reason else []))


@parametrize("said", [None, 0, 1])
def test_float32_keeps_its_word(said, monkeypatch):
  says = [] if said is None else [ALLOW_TF32 if said else FORBID_TF32]
  for pays in ((), ("float",)):
    monkeypatch.setattr("ortplugin.passes.matmul.patches_to_matmul.FLOAT32", pays)
    optimized, _ = run_same(network(half=False), *BEFORE, *says, PATCHES_TO_MATMUL)
    products = nodes_of(optimized, "FusedMatMul")
    assert bool(products) == (pays != ())
    found = [each.i for node in products for each in node.attribute if each.name == "allow_tf32"]
    assert found == [said] * (said is not None and len(products))


def test_weights_that_a_caller_may_override_stay():
  before, _ = run_pass(network(), *BEFORE)
  name = nodes_of(before, "FusedConv")[0].input[1]
  weights = next(each for each in before.graph.initializer if each.name == name)
  before.graph.input.append(onnx.helper.make_tensor_value_info(name, weights.data_type, list(weights.dims)))
  stays(before, PATCHES_TO_MATMUL, "is no constant")
