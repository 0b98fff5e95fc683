"""--precision in real sessions: converted models agree with the originals, and what overflows does not."""

import json
from collections import Counter

import numpy as np
import onnx
import onnx.parser
import pytest
from conv_grad_cases import CASES as GRADIENTS
from exported import DATA
from onnx import TensorProto, helper
from onnx_models import all_attributes, one_in, ones, parametrize, parsed, raises

from models.light import randomized
from ort.host import make, run
from ortplugin import optimize
from ortplugin.check.compare import Tolerance
from ortplugin.check.verify import computed_in
from ortplugin.cli import main
from ortplugin.errors import VerificationError
from ortplugin.precision import PRECISIONS
from ortplugin.precision.ranges import measure
from ortplugin.program import parse

# Which of tests/data, and how many Casts there may be in the result: one for each floating input and output, and those
# between integers or bools and what computes with them. `None`: of kept operators there are some.
MODELS = {
  "bert_torchscript_opset17_dynamic": 1, "bert_dynamo": 0, "convnext_dynamo_dynamic": 1, "efficientnet_dynamo": 1,
  "gpt2_dynamo": 0, "llama_torchscript_opset17": 1, "mobilenet_torchscript_opset17": 1, "swin_dynamo": 1,
  "t5_torchscript_opset18": 1, "t5_dynamo": 0, "vit_torchscript_opset14": 1, "index_dynamo_dynamic": 1,
  "scatter_dynamo": 2,
}  # fmt: skip


def casts(model):
  return sum(node.op_type == "Cast" for node in model.graph.node)


def half_weights(model):
  """The share of floating weights, by element, that are float16."""
  sizes = Counter()
  for tensor in model.graph.initializer:
    if tensor.data_type in (TensorProto.FLOAT, TensorProto.FLOAT16):
      sizes[tensor.data_type == TensorProto.FLOAT16] += int(np.prod(tensor.dims))
  return sizes[True] / sizes.total() if sizes else 1.0


@one_in(10)
@parametrize("name", MODELS)
def test_exported_models(name):
  path = DATA / f"{name}.onnx"
  model, report = optimize(path, precision="fp16", verify=True, providers=["cpu"])
  assert report.passed
  # T5's relative positions are numbers that become integers, and its bias a mask in float32.
  assert half_weights(model) > (0.94 if name.startswith("t5") else 0.98)
  assert casts(model) == MODELS[name]
  again, second = optimize(model, precision="fp16", providers=["cpu"])
  assert not second.changes
  assert again == model


@one_in(4)
@parametrize("name", ["bert_torchscript_opset14_fp16", "t5_dynamo_opset23_fp16", "rms_dynamo_fp16"])
def test_back_to_float32(name):
  model, report = optimize(DATA / f"{name}.onnx", precision="fp32", precision_io=True, verify=True, providers=["cpu"])
  assert report.passed
  assert half_weights(model) == 0
  assert not report.kept


def test_with_trained_magnitudes():
  model, report = optimize(randomized("shufflenet", logits=True), precision="fp16", verify=True, providers=["cpu"])
  assert report.passed
  assert casts(model) == 1  # the output's is part of the classifier, which is a convolution
  assert half_weights(model) == 1


def growing(scale):
  """A product of x, times `scale`, moved, and made small again."""
  weight = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
  return parsed(
    """g (float[64,64] x) => (float[64,64] y) { [first] a = MatMul(x, w)  [grow] b = Mul(a, large)
        [move] c = Transpose(b)  [shrink] d = Mul(c, small)  [second] y = MatMul(d, w) }""",
    weights={"w": weight, "large": np.float32(scale), "small": np.float32(1 / scale)},
  )


def test_activations_that_overflow_on_the_given_inputs_stay():
  """x of 100 makes a of some 2000 and b beyond 65504: unknown without the inputs, and then the check says so."""
  original = growing(256.0)
  x = 100 * np.random.default_rng(1).standard_normal((64, 64)).astype(np.float32)
  model, report = optimize(original, precision="fp16", verify=True, providers=["cpu"], inputs={"x": x})
  assert report.passed
  reasons = {miss.node: miss.reason for miss in report.kept}
  assert set(reasons) == {"grow (Mul)", "move (Transpose)", "shrink (Mul)"}
  assert "'b' reaches" in reasons["grow (Mul)"]
  assert half_weights(model) > 0.99


def test_an_overflow_that_nobody_foresaw_is_found_and_named():
  """The output reaches 4096 * 30, and on the CPU too it has to be float16, as asked for."""
  original = growing(4096.0)
  del original.graph.node[2:]
  original.graph.output[0].name = "b"
  with raises(VerificationError, r"from the rewrite 'precision'.*--precision-skip") as failed:
    optimize(original, precision="fp16", precision_io=True, verify=True, providers=["cpu"])
  assert failed.value.report.guilty.rewrite == "precision"


def test_ranges_are_the_largest_finite_magnitudes():
  x = ones(64, 64)
  x[0, 0], x[0, 1] = -7, np.inf
  peaks = measure(growing(2.0), {"x": x})
  assert peaks["x"] == 7
  assert set(peaks) == {"x", "a", "b", "c", "d", "y"}
  assert peaks["b"] == pytest.approx(2 * peaks["a"])


def test_bfloat16_needs_a_gpu_to_be_verified():
  with raises(VerificationError, r"lacks bfloat16 kernels on the CPU.*--no-verify"):
    optimize(
      growing(2.0), precision="bf16", verify=True, providers=["cpu"], skip=["matmul-to-fused"]
    )  # whose product there is a kernel for
  _, report = optimize(growing(2.0), precision="bf16")
  assert report.converted == 5


def test_on_the_command_line(tmp_path, capsys):
  onnx.save(growing(256.0), tmp_path / "in.onnx")
  x = 100 * np.random.default_rng(1).standard_normal((64, 64)).astype(np.float32)
  np.savez(tmp_path / "data.npz", x=x)
  files = [str(tmp_path / "in.onnx"), "-o", str(tmp_path / "out.onnx")]
  arguments = [*files, "--provider", "cpu", "--precision", "fp16"]
  report = tmp_path / "report.json"
  assert main([*arguments, "--inputs", str(tmp_path / "data.npz"), "--explain", "--report", str(report)]) == 0
  text = capsys.readouterr().out
  assert "Precision fp16: 2 converted, 3 kept their dtype (2 Mul, 1 Transpose)" in text
  assert "'b' reaches" in text
  assert json.loads(report.read_text())["precision"] == {"name": "fp16", "converted": 2, "kept": 3}
  assert main([*arguments, "--precision-skip", "second,Mul", "--precision-io"]) == 0
  assert "2 converted" not in capsys.readouterr().out
  for wrong in (["--precision-io"], ["--precision", "fp16", "--restore"], ["--precision", "fp8"]):
    assert main([*files, *wrong]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@one_in(6)
@parametrize("name", ["bert_dynamo", "vit_torchscript_opset14", "swin_dynamo"])
def test_what_was_converted_is_restored(name, tmp_path, capsys):
  """Inputs and outputs are float32, but the model computes in float16, and the restored one rounds more often."""
  fast, plain = tmp_path / "fast.onnx", tmp_path / "plain.onnx"
  assert main([str(DATA / f"{name}.onnx"), "-o", str(fast), "--precision", "fp16", "--no-verify"]) == 0
  made = onnx.load(fast)
  assert {value.type.tensor_type.elem_type for value in made.graph.output} == {TensorProto.FLOAT}
  assert main([str(fast), "-o", str(plain), "--restore", "--provider", "cpu"]) == 0, capsys.readouterr().err
  assert "agrees" in capsys.readouterr().out


def test_the_coarsest_precision_decides():
  """Of weights, of values between, of Casts and of what a fused operator casts to."""
  text = '<ir_version: 8, opset_import: ["": 17, "ortplugin": 1]> g (float[2] x) => (float[2] y) '
  wanted = {
    "{ y = Abs(x) }": None,
    "<float16 w = {1}> { c = Cast<to=1>(w) y = Add(x, c) }": "fp16",
    "{ a = Cast<to=10>(x) y = Cast<to=1>(a) }": "fp16",
    "{ a = Cast<to=16>(x) b = Cast<to=10>(a) y = Cast<to=1>(b) }": "bf16",
    '{ y = ortplugin.FusedPointwise<program="(float x) => (float y) { a = Cast<to=float16>(x) }">(x) }': "fp16",
    '{ y = ortplugin.FusedPointwise<program="(float x) => (float y) { a = Cast<to=bfloat16>(x) }">(x) }': "bf16",
    '{ y = ortplugin.FusedPointwise<program="(float x) => (float y) { y = Abs(x) }">(x) }': None,
    '{ y = ortplugin.FusedConv<allow_tf32=1, program="(float c) => (float c) {}">(x, x) }': "tf32",
    '{ y = ortplugin.FusedConv<allow_tf32=0, program="(float c) => (float c) {}">(x, x) }': None,
  }
  assert {body: computed_in(onnx.parser.parse_model(text + body)) for body in wanted} == wanted
  assert Tolerance(computed="fp16").defaults("float32") == (1e-2, 1e-2)
  assert Tolerance(computed="fp16").defaults("bfloat16") == (5e-2, 5e-2)
  assert Tolerance(precision="fp16", computed="bf16").defaults("float32") == (5e-2, 5e-2)
  assert Tolerance(rtol=1.0).defaults("float32") == (1e-4, 1e-4)


@parametrize("case", GRADIENTS)
def test_gradients_of_convolutions(case):
  """X and W have no parameter in the program of a ConvGrad, and its gradients have no result."""
  original = onnx.load_model_from_string(case.model())
  wanted = run(make(original), case)
  names = {each.name: each.type.tensor_type.elem_type for each in (*original.graph.input, *original.graph.output)}
  outputs = [each.name for each in original.graph.output]
  for precision in ("fp16", "fp32"):
    sources = [helper.np_dtype_to_tensor_dtype(each) for each in PRECISIONS[precision].sources]
    model, report = optimize(original, only=[], precision=precision)
    assert bool(report.converted) == any(names[name] in sources for name in gradient_names(original, names, precision))
    assert not report.kept
    for name, have, want in zip(outputs, run(make(model), case), wanted, strict=True):
      scale = np.abs(want.astype(np.float64)).max(initial=1.0)
      assert have.dtype == want.dtype, name
      assert np.abs(have.astype(np.float64) - want.astype(np.float64)).max(initial=0.0) <= 0.02 * scale, name


def gradient_names(model, kinds, precision):
  """The values of the one ConvGrad that may change: to float16 not the float32 gradients of weights and bias, and not
  what the program casts to the dtype of its result.
  """
  (node,) = model.graph.node
  given = all_attributes(node)
  program = parse(given["program"].decode())
  operands = len(given.get("operands", b"X W").split())
  inputs = [
    name
    for number, name in enumerate(node.input)
    if number < operands or program.parameters[number - operands].dtype == program.results[0].dtype
  ]
  gradients = next(each.s.decode().split() for each in node.attribute if each.name == "gradients")
  roles = zip(node.output, [*gradients, *node.output], strict=False)
  kept = [name for name, role in roles if role in ("dW", "dB") and kinds[name] == TensorProto.FLOAT]
  return [name for name in (*inputs, *node.output) if precision == "fp32" or name not in kept]
