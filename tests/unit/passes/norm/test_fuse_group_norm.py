from pass_helpers import lines, model, parametrize, programs, run_pass, run_same, stays

from ortplugin.optimizer.pipeline import CHANNELS_LAST_ALWAYS, FUSE_CONV, FUSE_LAYER_NORM, NORM_EPILOGUE
from ortplugin.passes.driver import RulePass
from ortplugin.passes.norm.fuse_group_norm import FUSE_GROUP_NORM, FUSE_GROUP_NORM_ON_GPU as FUSE, between_reshapes

CONSTANTS = """float[2] one = {1, 1}, float[2] zero = {0, 0}, float[2] two = {2, -1},
  float[6] six = {1, 2, 3, -1, 0.5, 4}, float[6,1,1] gamma = {1, 2, 3, -1, 0.5, 4},
  float[6,1,1] beta = {0.5, 0, 1, 0, 2, -1}, int64[3] split = {0, 2, -1}, int64[3] flat = {-1, 2, 60},
  int64[4] joined = {-1, 6, 4, 5}, int64[4] other = {-1, 6, 5, 4}"""
SPLIT = "a = Reshape(x, split)  n = InstanceNormalization<epsilon=0.01>(a, one, zero)"
AFFINE = "g = Mul(r, gamma)  h = Add(g, beta)"
GROUPS = 'n = LayerNormalization<axis=1, epsilon=0.01, axes="2 3", groups=2>(x)'


def graph(*nodes, shape="N,6,4,5", result=None, more=""):
  return f"(float[{shape}] x{more}) => (float[{result or shape}] y) <{CONSTANTS}> {{ {' '.join(nodes)} }}"


def test_torchs_group_norm_with_an_activation():
  nodes = [SPLIT, "r = Reshape(n, joined)", AFFINE, "s = Sigmoid(h)  y = Mul(h, s)"]
  optimized, result = run_same(model(graph(*nodes), 20), FUSE, NORM_EPILOGUE, into="FusedLayerNorm", N=3)
  assert lines(programs(optimized)[0])[0] == GROUPS
  assert result.near_misses == ()


@parametrize(
  "groups, core",
  [(1, "axis=-3, epsilon=0.01"), (6, "axis=-2, epsilon=0.01"), (3, 'axis=1, epsilon=0.01, axes="2 3", groups=3')],
)
def test_as_many_groups(groups, core):
  """One group is a norm over the last axes, and so are as many as there are channels."""
  scale = f"""s = Constant<value=float[{groups}] {{{", ".join(["1"] * groups)}}}>()
    z = Constant<value=float[{groups}] {{{", ".join(["0"] * groups)}}}>()
    to = Constant<value=int64[3] {{0, {groups}, -1}}>()"""
  nodes = [scale, "a = Reshape(x, to)  n = InstanceNormalization<epsilon=0.01>(a, s, z)  y = Reshape(n, joined)"]
  run_same(model(graph(*nodes), 17), FUSE, into="FusedLayerNorm", N=2, program=[f"y = LayerNormalization<{core}>(x)"])


def test_scales_of_groups_are_those_of_their_channels():
  nodes = ["a = Reshape(x, split)  n = InstanceNormalization<epsilon=0.01>(a, two, one)  y = Reshape(n, joined)"]
  run_same(
    model(graph(*nodes), 17),
    FUSE,
    into="FusedLayerNorm",
    N=2,
    program=[GROUPS, "mul = Mul(n, gamma)", "y = Add(mul, beta)"],
  )


@parametrize("opset", [18, 21])
def test_the_operator(opset):
  scale, bias = ("two", "one") if opset == 18 else ("six", "six")
  nodes = [f"y = GroupNormalization<num_groups=2, epsilon=0.01>(x, {scale}, {bias})"]
  optimized, _ = run_same(model(graph(*nodes), opset), FUSE, into="FusedLayerNorm", N=2)
  assert lines(programs(optimized)[0])[0] == GROUPS


@parametrize("shape", ["N,2,7", "N,2,4,5", "N,2,2,3,4"])
def test_instance_normalization(shape):
  optimized, _ = run_same(
    model(graph("y = InstanceNormalization(x, s, two)", shape=shape, more=", float[2] s"), 17),
    FUSE,
    into="Unsqueeze FusedLayerNorm",
    N=2,
  )
  axis = 2 - len(shape.split(","))
  assert lines(programs(optimized)[0]) == [
    f"n = LayerNormalization{f'<axis={axis}>' if axis < -1 else ''}(x)",
    "mul = Mul(n, gamma)",
    "y = Add(mul, beta)",
  ]


def test_channels_of_an_image():
  """A layer norm of channels that come first, as ConvNeXt and SAM write it."""
  mean = "ReduceMean<axes=[1]>"
  nodes = f"""epsilon = float {{1e-6}}  m = {mean}(x)  d = Sub(x, m)  p = Mul(d, d)  v = {mean}(p)
    w = Add(v, epsilon)  q = Sqrt(w)  y = Div(d, q)"""
  run_same(
    model(graph(nodes), 17),
    FUSE_LAYER_NORM,
    into="FusedLayerNorm",
    N=2,
    program=['y = LayerNormalization<epsilon=1e-06, axes="1">(x)'],
  )
  near = graph(nodes.replace("[1]", "[0, 2]"))
  stays(model(near, 17), FUSE_LAYER_NORM, "the axes [0, 2] of the means are more than two runs, or not")


MISSES = {
  "another shape": (SPLIT, "y = Reshape(n, other)", "'y' of shape [N, 6, 5, 4] has not surely the shape of 'x'"),
  "batch": (SPLIT.replace("split", "flat"), "y = Reshape(n, joined)", "is not surely that of 'x'"),
  "scale": (SPLIT.replace("one", "v"), "y = Reshape(n, joined)", "scale, 'v', is no constant vector"),
  "used": (SPLIT, "r = Reshape(n, joined)  b = Reshape(a, joined)  y = Add(r, b)", "is also"),
}


@parametrize("miss", MISSES)
def test_what_is_between_the_reshapes_alone(miss):
  first, last, reason = MISSES[miss]
  result = "N,6,5,4" if miss == "another shape" else "N,6,4,5"
  text = graph(first, last, shape="N,6,H,5" if miss == "batch" else "N,6,4,5", result=result, more=", float[2] v")
  optimized, _ = run_same(model(text, 17), FUSE, N=2, H=4)
  assert "y = LayerNormalization<epsilon=0.01>(x)" in programs(optimized)[0].replace("n =", "y =")
  whole = RulePass("fuse-group-norm", "", between_reshapes)
  stays(model(text, 17), [whole], reason)


def test_near_misses():
  unknown = graph("y = GroupNormalization<num_groups=2>(x, six, six)", shape="N,C,4,5")
  stays(model(unknown, 21), FUSE, "'x' of shape [N, C, 4, 5] has no known channels in 2 groups")
  half = graph("y = GroupNormalization<num_groups=2, stash_type=10>(x, six, six)")
  stays(model(half, 21), FUSE, "stash_type is 10; only 1, float32, is known")


@parametrize("groups", [1, 2, 6])
def test_between_convolutions_with_channels_last(groups):
  weights = ", ".join(str((i % 7 - 3) / 4) for i in range(36))
  nodes = f"""w = Constant<value=float[6,6,1,1] {{{weights}}}>()  c = Conv(x, w)
    to = Constant<value=int64[3] {{0, {groups}, -1}}>()
    s = Constant<value=float[{groups}] {{{", ".join(["1"] * groups)}}}>()
    z = Constant<value=float[{groups}] {{{", ".join(["0"] * groups)}}}>()
    a = Reshape(c, to)  n = InstanceNormalization(a, s, z)  r = Reshape(n, joined)  {AFFINE}
    k = Relu(h)  y = Conv(k, w)"""
  optimized, _ = run_same(
    model(graph(nodes), 17),
    FUSE, NORM_EPILOGUE, FUSE_CONV, CHANNELS_LAST_ALWAYS,
    into="Transpose FusedConv FusedLayerNorm FusedConv Transpose", N=2,
  )  # fmt: skip
  core = {1: "axis=-3", 2: 'axes="1 2", groups=2', 6: 'axes="1 2"'}[groups]
  assert any(f"<{core}>" in line for line in lines(programs(optimized)[1]))


def test_without_a_gpu_float32_stays():
  text = "(float[2,6,4,5] x, float[6] s) => (float[2,6,4,5] y) { y = InstanceNormalization(x, s, s) }"
  stays(model(text, 17), FUSE_GROUP_NORM, "slower than ONNX Runtime's on a CPU")
  run_pass(model(text.replace("float[", "float16["), 17), FUSE_GROUP_NORM, changes=1)
