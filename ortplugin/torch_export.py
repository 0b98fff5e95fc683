"""The way in from PyTorch for graphs with gradients inside: fine-tuning, saliency maps, test-time adaptation.

    def step(image, weight):                            # anything with torch.autograd.grad in it
        y = torch.nn.functional.conv2d(image, weight)
        return torch.autograd.grad(y.square().sum(), [image, weight])

    program = ortplugin.torch_export.export(step, (image, weight))      # an onnx model
    # or, of an exported program that holds such operators:
    torch.onnx.export(program, dynamo=True, custom_translation_table=ortplugin.torch_export.translations())

PyTorch has no ONNX form of aten::convolution_backward: here it becomes ConvGrad, and aten::lerp one FusedPointwise. The
gradients of lerp are products and sums by the time they are exported, which `optimize-model` makes FusedSumTo of.

Needs torch and onnxscript (`pip install ortplugin[torch]`), which are imported when a function here is called.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .errors import UsageError
from .graph import DOMAIN
from .ops.conv_grad.gradient import NAME as CONV_GRAD
from .ops.pointwise import NAME as POINTWISE
from .program import FLOATING

_VERSION = 1


def export(function: Callable[..., Any], args: Sequence[Any], **options: Any) -> Any:
  """The ONNX model (onnx.ModelProto) of a function of tensors that may compute gradients.

  Args:
      function: called with tensors like `args`, of which those of a floating dtype require gradients; returns a
          tensor or a sequence of tensors. Its control flow is the one that `args` take.
      args: tensors; the model has their shapes.
      options: of torch.onnx.export, such as input_names and output_names.

  Raises UsageError where torch or onnxscript is missing.
  """
  torch = _torch()
  from torch.fx.experimental.proxy_tensor import make_fx

  given = [each.detach().requires_grad_(each.is_floating_point()) for each in args]
  traced = make_fx(lambda *inputs: function(*inputs))(*given)
  program = torch.export.export(traced, tuple(each.detach() for each in given))
  settings = {"dynamo": True, "verbose": False, "custom_translation_table": translations(), **options}
  return torch.onnx.export(program, **settings).model_proto


def translations() -> Mapping[Any, Callable[..., Any]]:
  """For torch.onnx.export's `custom_translation_table`: operators of PyTorch to functions that write ours.

  Raises UsageError where torch or onnxscript is missing.
  """
  aten = _torch().ops.aten
  return {aten.convolution_backward.default: _convolution_backward, aten.lerp.Scalar: _lerp, aten.lerp.Tensor: _lerp}


def _torch() -> Any:
  try:
    import onnxscript  # noqa: F401
    import torch
  except ImportError as error:
    raise UsageError(
      f"exporting from PyTorch needs torch and onnxscript: {error}; pip install ortplugin[torch]"
    ) from error
  return torch


def _node(op: str, inputs: Sequence[Any], results: int, attributes: Mapping[str, Any]) -> list[Any]:
  """Writes a node of ours into the graph that is being exported, and returns its outputs."""
  from onnx.defs import OpSchema
  from onnxscript import values

  kinds = {str: OpSchema.AttrType.STRING, int: OpSchema.AttrType.INT, list: OpSchema.AttrType.INTS}
  every = ("tensor(float16)", "tensor(bfloat16)", "tensor(float)", "tensor(double)")
  variables = [(f"I{i}", every, "") for i in range(len(inputs))] + [(f"O{i}", every, "") for i in range(results)]
  schema = OpSchema(
    op,
    DOMAIN,
    _VERSION,
    inputs=[OpSchema.FormalParameter(f"input{i}", f"I{i}") for i in range(len(inputs))],
    outputs=[OpSchema.FormalParameter(f"output{i}", f"O{i}") for i in range(results)],
    type_constraints=variables,
    attributes=[OpSchema.Attribute(name, kinds[type(value)], "") for name, value in attributes.items()],
  )
  made = values.Op(values.Opset(DOMAIN, _VERSION), op, schema)(*inputs, **attributes)
  return [made] if results == 1 else list(made)


def _dtype(where: str, *values: Any) -> str:
  """The dtype that exported values have in common, as programs name it. Not all of them need to know theirs."""
  known = [each.dtype for each in values if getattr(each, "dtype", None) is not None]
  name = str(known[0].name).lower() if known else "an unknown dtype"
  if name not in FLOATING:
    raise UsageError(f"{where} of {name} has no form here; it must be one of {', '.join(FLOATING)}")
  return name


def _convolution_backward(
  grad_output: Any,
  x: Any,
  weight: Any,
  bias_sizes: Any,
  stride: Sequence[int],
  padding: Sequence[int],
  dilation: Sequence[int],
  transposed: bool,
  output_padding: Sequence[int],
  groups: int,
  output_mask: Sequence[bool],
) -> tuple[Any, ...]:
  """aten::convolution_backward: the gradients of input, weight and bias, as far as the mask says."""
  dtype = _dtype("aten::convolution_backward", grad_output, x, weight)
  kernel = [int(size) for size in weight.shape[2:]]

  def spread(values: Sequence[int]) -> list[int]:
    return [int(value) for value in (values if len(values) == len(kernel) else list(values) * len(kernel))]

  gradients = [name for name, wanted in zip(("dX", "dW", "dB"), output_mask, strict=True) if wanted]
  operands = {"X": x} if output_mask[0] or output_mask[1] else {}
  if output_mask[0]:
    operands["W"] = weight
  made = _node(
    CONV_GRAD,
    [*operands.values(), grad_output],
    len(gradients),
    {
      "program": f"({dtype} dz) => ({dtype} dz) {{}}",
      "gradients": " ".join(gradients),
      "operands": " ".join(operands),
      "transposed": int(transposed),
      "group": int(groups),
      "kernel_shape": kernel,
      "strides": spread(stride),
      "dilations": spread(dilation),
      "pads": spread(padding) * 2,
    },
  )
  from onnxscript import opset18

  # The exporter wants a value for each gradient, also for those that nobody asked for and nothing reads.
  by_name = dict(zip(gradients, made, strict=True))
  return tuple(by_name[name] if name in by_name else opset18.Identity(made[0]) for name in ("dX", "dW", "dB"))


def _lerp(start: Any, end: Any, weight: Any) -> Any:
  """aten::lerp, as PyTorch computes it: start + weight (end - start), from the nearer side."""
  dtype = _dtype("aten::lerp", start, end, weight)
  number = isinstance(weight, (int, float))
  parameters = f"{dtype} x, {dtype} y" + ("" if number else f", {dtype} w")
  if number:
    factor = float(weight)
    near = f"a = Mul(d, {factor!r}) z = Add(x, a)"
    if not abs(factor) < 0.5:
      near = f"a = Mul(d, {1 - factor!r}) z = Sub(y, a)"
  else:
    near = """p = Less(w, 0.5)
          q = Greater(w, -0.5)
          r = And(p, q)
          a = Mul(d, w)
          b = Add(x, a)
          v = Sub(1, w)
          e = Mul(d, v)
          f = Sub(y, e)
          z = Where(r, b, f)"""
  program = f"({parameters}) => ({dtype} z) {{ d = Sub(y, x) {near} }}"
  inputs = [start, end] if number else [start, end, weight]
  return _node(POINTWISE, inputs, 1, {"program": program})[0]
