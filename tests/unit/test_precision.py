"""--precision: which operators change their dtype, which stay and why, and where Casts are. No ONNX Runtime."""

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx_models import all_attributes, annotated, initializers, nodes_of, ones, parametrize, parsed, raises, zeros

from ortplugin import optimize
from ortplugin.errors import UsageError
from ortplugin.graph.export import export_model
from ortplugin.model.annotate import annotate
from ortplugin.passes.base import NearMiss
from ortplugin.precision import PRECISIONS, resolve
from ortplugin.precision.convert import ConvertPrecision
from ortplugin.precision.plan import Request
from ortplugin.precision.ranges import converted, fault

FLOAT, HALF, BFLOAT, DOUBLE = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE
FP16 = PRECISIONS["fp16"]


def model(nodes, constants=None, *, inputs="float[2,4] x", outputs="float[2,4] y", opset=17):
  """Nodes that make y of x, of constants, and of w, which is WEIGHT if they read it and nothing else is given."""
  given = ({"w": WEIGHT} if " w)" in nodes else {}) | (constants or {})
  weights = {name: np.asarray(value) for name, value in given.items()}
  result = parsed(f"({inputs}) => ({outputs}) {{ {nodes} }}", opset, 9, weights=weights)
  for each in result.graph.node:
    each.name = f"make_{each.output[0]}"
  onnx.checker.check_model(result, full_check=True)
  return result


def convert(original, name="fp16", *, io=False, limit=None, **request):
  """The conversion alone: the model, how much it changed, and why what stayed did, by node."""
  graph = annotated(original)
  outcome = ConvertPrecision(Request(resolve(name), **request), io)(graph, limit)
  annotate(graph)
  result = export_model(graph, original)
  onnx.checker.check_model(result, full_check=True)
  again = annotated(result)
  if limit is None:
    assert not ConvertPrecision(Request(resolve(name), **request), io)(again).changes
  return result, len(outcome.changes), {miss.node.split(" (")[0]: miss.reason for miss in outcome.near_misses}


def ops(model):
  names = {FLOAT: "float", HALF: "half", BFLOAT: "bfloat", DOUBLE: "double"}
  return " ".join(
    f"Cast>{names.get(each.attribute[0].i, each.attribute[0].i)}" if each.op_type == "Cast" else each.op_type
    for each in model.graph.node
  )


WEIGHT = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)


def two_products():
  return model("a = MatMul(x, w)  b = Relu(a)  y = MatMul(b, w)")


def test_one_cast_at_each_border_and_constants_converted_once():
  result, count, kept = convert(two_products())
  assert ops(result) == "Cast>half MatMul Relu MatMul Cast>float"
  assert (count, kept) == (3, {})
  assert {name: array.dtype for name, array in initializers(result).items()} == {"w": np.float16}
  assert [each.name for each in result.graph.output] == ["y"]
  assert result.graph.output[0].type.tensor_type.elem_type == FLOAT


def test_inputs_and_outputs_too_if_asked():
  result, count, _ = convert(two_products(), io=True)
  assert ops(result) == "MatMul Relu MatMul"
  assert count == 5
  assert [each.type.tensor_type.elem_type for each in (*result.graph.input, *result.graph.output)] == [HALF, HALF]


def test_back_to_float32():
  half, _, _ = convert(two_products(), io=True)
  result, _, kept = convert(half, "fp32")
  assert ops(result) == "Cast>float MatMul Relu MatMul Cast>half"
  assert not kept
  result, _, _ = convert(half, "fp32", io=True)
  assert ops(result) == "MatMul Relu MatMul"
  assert initializers(result)["w"].dtype == np.float32


def test_bfloat16_where_the_opset_has_it():
  result, _, _ = convert(two_products(), "bf16")
  assert ops(result) == "Cast>bfloat MatMul Relu MatMul Cast>float"
  result, count, kept = convert(model("y = MatMul(x, w)", opset=12), "bf16")
  assert (ops(result), count) == ("MatMul", 0)
  assert kept == {"make_y": "opset 12 has no MatMul in bfloat16"}


@parametrize("opset", [9, 11, 12])
def test_a_model_of_an_older_opset_is_upgraded_for_bfloat16(opset):
  old = model("a = MatMul(x, w)  y = Relu(a)", opset=opset)
  result, report = optimize(old, only=[], precision="bf16")
  assert ops(result) == "Cast>bfloat MatMul Relu Cast>float"
  assert (report.opset, result.opset_import[0].version) == ((opset, 13), 13)
  for other in ("fp16", "tf32"):
    _, report = optimize(old, only=[], precision=other)
    assert report.opset in (None, (9, 11))


@parametrize(
  "name, opset, op, rewrite, kept",
  [
    ("bf16", 22, "ConvTranspose", "fuse-conv", True),
    ("fp16", 17, "ConvTranspose", "fuse-conv", False),
    ("bf16", 13, "Clip", "lone-pointwise", True),
    ("bf16", 16, "Clip", "lone-pointwise", True),
    ("fp16", 13, "Clip", "lone-pointwise", False),
    ("fp16", 17, "Asin", "lone-pointwise", True),
  ],
)
def test_what_only_a_rewrite_can_run(name, opset, op, rewrite, kept):
  """Left out by --only or --skip, it leaves a node that ONNX Runtime's CUDA provider can't run in that dtype."""
  around = "Conv" if op == "ConvTranspose" else "MatMul"
  inputs = {"ConvTranspose": "a, w", "Clip": "a, low"}.get(op, "a")
  nodes = f"a = {around}(x, w)  b = {op}({inputs})  y = {around}(b, w)"
  shape = (4, 4, 1, 1) if around == "Conv" else (4, 4)
  constants = {"w": np.full(shape, 0.1, np.float32)} | ({"low": np.float32(0.5)} if op == "Clip" else {})
  original = model(nodes, constants, inputs="float[2,4,3,4] x", outputs="float[2,4,3,4] y", opset=opset)
  _, _, found = convert(original, name)
  assert not found
  _, _, found = convert(original, name, rewrites=frozenset({"fuse-conv", "lone-pointwise"} - {rewrite}))
  dtype = {"fp16": "float16", "bf16": "bfloat16"}[name]
  reason = f"ONNX Runtime's CUDA provider has no {op} in {dtype}"
  assert found == ({"make_b": reason} if kept else {})
  _, report = optimize(original, skip=[rewrite], precision=name)
  assert (reason in [each.reason for each in report.near_misses]) is kept


def test_a_clip_of_one_element_stays():
  """No kernel of ours takes it."""
  nodes = "a = MatMul(x, w)  b = Clip(a, low)  y = MatMul(b, w)"
  original = model(nodes, {"w": ones(1, 1), "low": np.float32(0.5)}, inputs="float[1,1] x", outputs="float[1,1] y")
  _, _, kept = convert(original, "bf16", rewrites=frozenset({"lone-pointwise"}))
  assert kept == {"make_b": "ONNX Runtime's CUDA provider has no Clip in bfloat16"}


@parametrize("name, op", [("bf16", "Clip"), ("fp16", "Asin")])
def test_what_only_a_rewrite_can_run_has_a_rank(name, op):
  """No rewrite takes an operator of unknown rank."""
  nodes = f"a = MatMul(x, w)  r = Reshape(a, shape)  z = {op}(r)  y = Reshape(z, flat)"
  constants = {"w": np.full((4, 4), 0.1, np.float32), "flat": np.array([-1])}
  _, _, found = convert(model(nodes, constants, inputs="float[2,4] x, int64[rank] shape", outputs="float[8] y"), name)
  dtype = {"fp16": "float16", "bf16": "bfloat16"}[name]
  assert found["make_z"] == f"ONNX Runtime's CUDA provider has no {op} in {dtype}"


@parametrize(
  "name, reduction, rewrites, kept",
  [
    ("bf16", "min", {"fuse-scatter"}, False),
    ("bf16", "min", set(), True),
    ("bf16", "add", set(), True),
    ("bf16", "none", set(), False),
    ("fp16", "min", set(), False),
  ],
)
@parametrize("op", ["ScatterND", "ScatterElements"])
def test_a_reduction_in_bfloat16_is_for_our_scatters(op, name, reduction, rewrites, kept):
  nodes = f'a = MatMul(x, w)  b = {op}<reduction="{reduction}">(a, i, u)  y = MatMul(b, w)'
  places = np.zeros((1, 1) if op == "ScatterND" else (1, 4), np.int64)
  constants = {"w": np.full((4, 4), 0.1, np.float32), "i": places, "u": ones(1, 4)}
  _, _, found = convert(model(nodes, constants, opset=18), name, rewrites=frozenset(rewrites))
  reason = f"ONNX Runtime's CUDA provider has no {op} in bfloat16 with the reduction '{reduction}'"
  assert found == ({"make_b": reason} if kept else {})


@parametrize("name", ["fp16", "bf16"])
def test_the_statistics_of_a_norm_stay(name):
  """Their dtype is what stash_type says, float32, whatever that of the norm."""
  nodes = "a = MatMul(x, w)  n, mean = LayerNormalization<axis=1>(a, g)  y = MatMul(n, w)  z = Neg(mean)"
  result, _, _ = convert(model(nodes, {"g": ones(4)}, outputs="float[2,4] y, float[2,1] z"), name)
  inferred = onnx.shape_inference.infer_shapes(result, strict_mode=True, check_type=True)
  types = {each.name: each.type.tensor_type.elem_type for each in inferred.graph.value_info}
  assert (types["n"], types["mean"]) == (HALF if name == "fp16" else BFLOAT, FLOAT)


@parametrize("made", ["EyeLike<dtype=10>", "RandomUniformLike<dtype=10, seed=1.0>"])
def test_a_dtype_that_an_attribute_says_stays(made):
  original = model(
    f"a = {made}(x)  b = MatMul(h, a)  y = Cast<to=1>(b)", inputs="float[4,4] x, float16[4,4] h", outputs="float[4,4] y"
  )
  result, _, kept = convert(original, "fp32")
  assert ops(result) == f"{made.partition('<')[0]} Cast>float Cast>float MatMul Cast>float"
  assert kept["make_a"] == "its attribute 'dtype' says its dtype"


def test_double_stays():
  nodes = "a = Relu(x)  b = Cast<to=1>(a)  y = MatMul(b, w)"
  result, _, _ = convert(model(nodes, inputs="double[2,4] x"))
  assert ops(result) == "Relu Cast>half MatMul Cast>float"


# What stays


def test_a_large_initializer_is_named_and_what_follows_stays_too():
  nodes = "a = MatMul(x, w)  b = Mul(a, large)  c = Add(b, a)  d = Tanh(c)  y = MatMul(d, w)"
  result, _, kept = convert(model(nodes, {"large": np.float32(70000)}))
  assert ops(result) == "Cast>half MatMul Cast>float Mul Add Tanh Cast>half MatMul Cast>float"
  assert kept["make_b"] == "the initializer 'large' holds 70000, beyond float16's 65504"
  assert kept["make_c"] == "it reads what make_b (Mul) makes, which may lie beyond float16"
  assert initializers(result)["large"] == np.float32(70000)


def test_a_number_that_vanishes_is_named():
  nodes = "a = MatMul(x, w)  b = Add(a, tiny)  y = MatMul(b, w)"
  _, _, kept = convert(model(nodes, {"tiny": np.float32(1e-9)}))
  assert kept == {"make_b": "the initializer 'tiny' holds 1e-09, of which float16 keeps 0"}
  _, _, kept = convert(model(nodes, {"tiny": np.float32(1e-9)}), "bf16")
  assert not kept


def test_small_numbers_beside_large_ones_do_not_matter():
  weight = WEIGHT.copy()
  weight[0, 0] = 1e-9
  assert fault("w", weight, FP16) == ""
  assert "w" in fault("w", weight * 1e-8, FP16)
  assert fault("w", np.float32([np.inf, -np.inf, np.nan, 1]), FP16) == ""
  assert fault("w", zeros(0, 4), FP16) == ""


def test_what_masks_are_filled_with_stays_finite():
  lowest = np.finfo(np.float32).min
  assert converted(np.float32([lowest, 0, -np.inf]), FP16).tolist() == [-32752.0, 0.0, -np.inf]
  nodes = """m = Cast<to=1>(mask)  n = Sub(one, m)  bias = Mul(n, lowest)
    s = MatMul(x, w)  t = Add(s, bias)  p = Softmax(t)  y = MatMul(p, w)"""
  constants = {"one": np.float32(1), "lowest": lowest}
  result, _, kept = convert(model(nodes, constants, inputs="float[2,4] x, int64[2,4] mask"))
  assert not kept
  assert ops(result).count("Cast>half") == 2  # of x and of the mask itself
  assert initializers(result)["lowest"] == np.float16(-32752)


COSTLY = {
  "exponential": ("b = Exp(a)", "its results outgrow its inputs"),
  "power": ("b = Pow(a, two)", "its results outgrow its inputs"),
  "square": ("b = Mul(a, a)", "it squares"),
  "sum": ("r = ReduceSum<keepdims=1>(a)  b = Mul(r, a)", "it adds up 8000 numbers"),
  "mean": ("r = ReduceMean<keepdims=1>(a)  b = Mul(r, a)", "it adds up 8000 numbers"),
  "logarithm": ("b = Log(a)", "small inputs vanish"),
  "norm": ("r = ReduceL2<keepdims=1>(a)  b = Div(a, r)", "it sums squares"),
}


@parametrize("name", COSTLY)
def test_what_computes_beyond_the_dtype_stays(name):
  nodes, reason = COSTLY[name]
  original = model(
    f"a = MatMul(x, w)  {nodes}  c = Tanh(b)  y = MatMul(c, w)",
    {"two": np.float32(2)},
    inputs="float[2000,4] x",
    outputs="float[2000,4] y",
  )
  result, _, kept = convert(original)
  first, *_ = nodes  # its output
  assert kept[f"make_{first}"] == reason
  found = ops(result).split()
  assert found[0] == "Cast>half"
  assert found[1] == found[-2] == "MatMul"
  assert found.count("Cast>float") == 2
  assert found.count("Cast>half") == 2


def test_short_sums_do_not_stay():
  original = model("a = MatMul(x, w)  y = ReduceMean<axes=[1], keepdims=0>(a)", outputs="float[2] y")
  _, count, kept = convert(original)
  assert (count, kept) == (2, {})


def test_positions_and_their_sines_stay():
  nodes = "p = Cast<to=1>(position)  angle = Mul(p, frequency)  s = Sin(angle)  y = MatMul(s, w)"
  frequency = np.float32([1, 0.1, 0.01, 0.001])
  result, _, kept = convert(model(nodes, {"frequency": frequency}, inputs="int64[2,4] position"))
  assert ops(result) == "Cast>float Mul Sin Cast>half MatMul Cast>float"
  assert kept["make_angle"] == "it computes with the integers that make_p (Cast) makes"


def test_measured_activations_decide():
  original = model("a = MatMul(x, w)  b = Exp(a)  c = Add(b, a)  y = MatMul(c, w)")
  _, _, kept = convert(original)
  assert set(kept) == {"make_b", "make_c", "make_y"}
  small = dict.fromkeys("xabcy", 3.0)
  _, _, kept = convert(original, peaks=small)
  assert set(kept) == {"make_b"}
  _, _, kept = convert(original, peaks={**small, "c": 1e6})
  assert set(kept) == {"make_b", "make_c", "make_y"}
  assert kept["make_y"] == "'c' reaches 1e+06 on the given inputs, beyond float16's 65504 or too near it"


def test_islands_between_kept_operators_stay():
  nodes = "a = Exp(x)  b = Tanh(a)  c = Reshape(b, shape)  y = Exp(c)"
  result, count, kept = convert(model(nodes, {"shape": np.array([2, 4])}))
  assert (ops(result), count) == ("Exp Tanh Reshape Exp", 0)
  assert kept["make_c"] == "it stands between operators that keep their dtype"


def test_the_user_names_what_stays():
  for skip in ({"make_b"}, {"Relu"}):
    result, _, kept = convert(two_products(), skip=frozenset(skip))
    assert kept == {"make_b": "asked for with --precision-skip"}
    assert ops(result) == "Cast>half MatMul Cast>float Relu Cast>half MatMul Cast>float"


def test_other_domains_and_unknown_dtypes_stay():
  original = two_products()
  original.graph.node[1].domain = "com.example"
  original.opset_import.append(helper.make_opsetid("com.example", 1))
  _, _, kept = convert(original)
  assert kept["make_b"] == kept["make_y"] == "the dtype of 'b' is unknown"


# Casts


def test_a_value_is_cast_once_for_all_its_readers():
  nodes = "a = MatMul(x, w)  b = Exp(a)  c = Log(a)  d = MatMul(a, w)  e = Add(b, c)  f = Tanh(e)  y = Add(f, d)"
  result, _, _ = convert(model(nodes))
  casts = nodes_of(result, "Cast")
  assert len({(each.input[0], each.attribute[0].i) for each in casts}) == len(casts) == 4


def test_casts_of_the_model_become_borders_or_nothing():
  """From automatic mixed precision: what was in float32 between Casts is in float16 now, and no pair remains."""
  nodes = "a = MatMul(x, w)  b = Cast<to=1>(a)  c = Mul(b, scale)  d = Cast<to=10>(c)  y = MatMul(d, w)"
  original = model(
    nodes, {"w": WEIGHT.astype(np.float16), "scale": np.float32(0.5)}, inputs="float16[2,4] x", outputs="float16[2,4] y"
  )
  optimized, _ = optimize(original, precision="fp16", skip=["fuse-pointwise", "matmul-to-fused"])
  assert ops(optimized) == "MatMul Mul MatMul"


def test_an_output_that_is_read_again_keeps_its_name():
  nodes = "y = MatMul(x, w)  z = Exp(y)  t = MatMul(y, w)"
  both = "float[2,4] y, z, t"
  for io in (False, True):
    result, _, _ = convert(model(nodes, outputs=both), io=io)
    assert [each.name for each in result.graph.output] == ["y", "z", "t"]
    assert {each.type.tensor_type.elem_type for each in result.graph.output} == {HALF if io else FLOAT}


def test_an_input_that_is_an_output_is_left_alone():
  result, _, _ = convert(model("y = MatMul(x, w)", outputs="float[2,4] x, y"), io=True)
  assert result.graph.input[0].type.tensor_type.elem_type == FLOAT
  assert result.graph.output[0].type.tensor_type.elem_type == FLOAT


def test_overridable_initializers_keep_their_dtype():
  original = model("y = MatMul(x, w)", inputs="float[2,4] x, float[4,4] w")
  for io in (False, True):
    result, _, _ = convert(original, io=io)
    assert initializers(result)["w"].dtype == np.float32
    assert {i.name: i.type.tensor_type.elem_type for i in result.graph.input}["w"] == FLOAT
    assert ops(result).count("Cast>half") == (1 if io else 2)


def test_a_constant_that_both_sides_read_is_there_twice():
  nodes = "a = MatMul(x, w)  b = Add(a, c)  d = Exp(b)  e = Add(d, c)  y = Tanh(e)"
  result, _, _ = convert(model(nodes, {"c": ones(4)}))
  assert sorted((name, array.dtype.name) for name, array in initializers(result).items()) == [
    ("c", "float32"),
    ("c_2", "float16"),
    ("w", "float16"),
  ]


def test_arguments_of_a_fixed_dtype_stay():
  original = model(
    'a = MatMul(x, w)  y = Resize<mode="nearest">(a, , scales)',
    {"scales": np.float32([1, 1, 2, 2])},
    inputs="float[1,1,4,4] x",
    outputs="float[1,1,8,8] y",
  )
  result, _, kept = convert(original)
  assert not kept
  assert initializers(result)["scales"].dtype == np.float32


def test_bodies_keep_their_dtypes_and_read_what_they_read_before():
  nodes = """a = MatMul(x, w)
    b = If(c) <then () => (float[2,4] t) { t = Mul(a, a) },
               other () => (float[2,4] o) { o = Relu(a) }>
    y = MatMul(b, w)"""
  result, _, kept = convert(model(nodes, inputs="float[2,4] x, bool c"))
  assert kept == {"make_b": "bodies of If, Loop and Scan keep their dtypes"}
  assert ops(result) == "Cast>half MatMul Cast>float If Cast>half MatMul Cast>float"
  read = {name for a in result.graph.node[3].attribute for each in a.g.node for name in each.input}
  assert read == {result.graph.node[2].output[0]}


def test_arithmetic_on_shapes_stays_silently():
  nodes = "s = Shape(x)  f = Cast<to=1>(s)  g = Mul(f, two)  h = Cast<to=7>(g)  a = MatMul(x, w)  y = Tile(a, h)"
  result, count, kept = convert(model(nodes, {"two": np.float32(1)}, outputs="float[a,b] y"))
  assert (count, kept) == (2, {})  # MatMul and Tile
  assert initializers(result)["two"].dtype == np.float32


# The pipeline


def test_a_limit_converts_the_first_operators():
  result, count, _ = convert(two_products(), limit=1)
  assert (count, ops(result)) == (1, "Cast>half MatMul Cast>float Relu MatMul")
  _, report = optimize(two_products(), precision="fp16", limit=2)
  assert report.converted == 2


def test_weights_take_norms_in_float32_first():
  channels = [np.float32([v, 1]) for v in (3.0, 0.5, 100.0, 0.25)]
  names = ("scale", "shift", "mean", "variance")
  kernel = ones(2, 2, 1, 1)
  nodes = "a = BatchNormalization(x, scale, shift, mean, variance)  y = Conv(a, w)"
  original = model(
    nodes,
    {"w": kernel, **dict(zip(names, channels, strict=True))},
    inputs="float[1,2,4,4] x",
    outputs="float[1,2,4,4] y",
  )
  optimized, _ = optimize(original, precision="fp16")
  assert "BatchNormalization" not in ops(optimized)
  # In float16 from the start, the norm before a Conv has to stay: its mean times the weights' rounding is too much.


def test_tf32_is_an_attribute_of_convolutions():
  nodes = "a = Conv(x, w)  y = Relu(a)"
  original = model(nodes, {"w": ones(2, 2, 1, 1)}, inputs="float[1,2,4,4] x", outputs="float[1,2,4,4] y")
  optimized, report = optimize(original, precision="tf32")
  assert report.rewrites["allow-tf32"] == 1
  (fused,) = nodes_of(optimized, "FusedConv")
  assert all_attributes(fused)["allow_tf32"] == 1
  again, second = optimize(optimized, precision="tf32")
  assert not second.changes
  assert again == optimized
  plain, _ = optimize(original)
  assert not any(each.name == "allow_tf32" for n in plain.graph.node for each in n.attribute)
  exact, report = optimize(optimized, precision="fp32")
  assert report.rewrites["forbid-tf32"] == 1
  (fused,) = nodes_of(exact, "FusedConv")
  assert all_attributes(fused)["allow_tf32"] == 0


def test_the_report_counts():
  nodes = "a = MatMul(x, w)  b = Exp(a)  c = Tanh(b)  y = MatMul(c, w)"
  _, report = optimize(model(nodes), precision="fp16")
  assert report.to_dict()["precision"] == {"name": "fp16", "converted": 2, "kept": 2}
  assert NearMiss("precision", "make_b (Exp)", "its results outgrow its inputs") in report.near_misses
  _, plain = optimize(model(nodes))
  assert plain.to_dict()["precision"] is None


def test_mistakes():
  for arguments, words in (
    ({"precision": "fp8"}, "there is no precision 'fp8'; choose one of fp16"),
    ({"precision_io": True}, "say to which precision"),
    ({"precision_skip": ["Exp"]}, "say to which precision"),
    ({"precision": "tf32", "precision_io": True}, "changes no dtype"),
  ):
    with raises(UsageError, words):
      optimize(two_products(), **arguments)


def test_bfloat16_fills_masks_with_finite_numbers():
  lowest = np.float32([np.finfo(np.float32).min])
  (value,) = converted(lowest, PRECISIONS["bf16"]).astype(np.float64)
  assert np.isfinite(value)
  assert value < -1e38
