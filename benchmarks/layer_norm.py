"""Layer norm with fused operations, the workload of nvFuser issue 383.

    y = LayerNorm(x + b0 + b1) * gamma + beta        x: [8192, H] fp16, reductions in fp32

Measures, in one run: FusedLayerNorm inside ONNX Runtime, ONNX Runtime's own operators (Add, Add, LayerNormalization),
PyTorch eager and `torch.compile` where PyTorch is there, and a device copy of x. Checks every output against float64 in
the same run.
"""

import numpy as np
from onnx import helper

import timing

ROWS = 8192
WIDTHS = (768, 1023, 1024, 1280, 1536, 1600, 2048, 2560, 4096, 5140, 12288, 16384, 20480)
EPSILON = 1e-5
PROGRAM = """(float16 x, float16 b0, float16 b1, float16 gamma, float16 beta) => (float16 y) {
  t = Add(x, b0)
  s = Add(t, b1)
  n = LayerNormalization<axis=-1, epsilon=1e-05>(s)
  g = Mul(n, gamma)
  y = Add(g, beta)
}"""
COLUMNS = {
  "ort": "ORT Add, Add, LayerNormalization",
  "eager": "torch eager",
  "compile": "torch.compile",
  "ortplugin": "**ortplugin**",
  "copy": "device copy",
}


def chain(width, length, *, fused):
  """A model that applies the operation `length` times to x: float16 [ROWS, width]."""
  nodes = []
  value = "x"
  for step in range(length):
    result = "y" if step == length - 1 else f"y{step}"
    if fused:
      inputs = [value, "b0", "b1", "gamma", "beta"]
      nodes.append(
        helper.make_node("FusedLayerNorm", inputs, [result], f"norm{step}", domain="ortplugin", program=PROGRAM)
      )
    else:
      nodes.append(helper.make_node("Add", [value, "b0"], [f"t{step}"]))
      nodes.append(helper.make_node("Add", [f"t{step}", "b1"], [f"s{step}"]))
      nodes.append(helper.make_node("LayerNormalization", [f"s{step}", "gamma", "beta"], [result], epsilon=EPSILON))
    value = result
  vectors = [(name, np.float16, [width]) for name in ("b0", "b1", "gamma", "beta")]
  return timing.model_of(nodes, [("x", np.float16, [ROWS, width]), *vectors], [("y", np.float16, [ROWS, width])])


def check(width, feeds, steps):
  """Largest difference of each contender's single step from float64, in units of the output's largest value."""
  import cupy

  x, b0, b1, gamma, beta = (feeds[name].astype(cupy.float64) for name in ("x", "b0", "b1", "gamma", "beta"))
  s = x + b0 + b1
  expected = (s - s.mean(-1, keepdims=True)) / cupy.sqrt(s.var(-1, keepdims=True) + EPSILON) * gamma + beta
  scale = float(cupy.abs(expected).max())
  errors = {}
  for name, step in steps.items():
    error = float(cupy.abs(cupy.asarray(step()).astype(cupy.float64) - expected).max()) / scale
    if not error < 2e-3:  # fp16 has 11 bits: half a unit in the last place of the largest value is 5e-4
      raise SystemExit(f"H={width}: {name} differs from float64 by {error:.1e} of the largest value")
    errors[name] = error
  return errors


def measure(width):
  """One row of the table: microseconds of each contender and its error."""
  import cupy

  import ortplugin

  rng = np.random.default_rng(width)
  shapes = {"x": (ROWS, width), "b0": (width,), "b1": (width,), "gamma": (width,), "beta": (width,)}
  feeds = {
    name: cupy.asarray(rng.standard_normal(shape, dtype=np.float32).astype(np.float16))
    for name, shape in shapes.items()
  }
  contenders = {}
  steps = {}
  for name, fused in (("ortplugin", True), ("ort", False)):
    models = {length: chain(width, length, fused=fused) for length in (1, timing.LENGTH)}
    contenders[name] = timing.session_chain(models, feeds, plugin=fused)
    session = ortplugin.session(models[1], providers=["CUDAExecutionProvider"])
    steps[name] = lambda session=session: ortplugin.run(session, feeds)["y"]
  if torch := timing.pytorch():
    tensors = {name: torch.from_dlpack(array) for name, array in feeds.items()}

    def eager(x):
      s = x + tensors["b0"] + tensors["b1"]
      return torch.nn.functional.layer_norm(s, (width,), tensors["gamma"], tensors["beta"], EPSILON)

    torch._dynamo.reset()  # or the compiler gives up on the ninth width
    compiled = torch.compile(eager, dynamic=False)
    contenders["eager"] = timing.torch_chain(eager, tensors["x"])
    contenders["compile"] = timing.torch_chain(compiled, tensors["x"])
    steps["eager"] = lambda: eager(tensors["x"])
    steps["compile"] = lambda: compiled(tensors["x"])
    contenders["copy"] = timing.torch_chain(torch.clone, tensors["x"])
  errors = check(width, feeds, steps)
  return {"width": width, "microseconds": timing.microseconds(contenders), "error": errors}


def table(record):
  """The record as a Markdown table."""
  last = ("/ copy", timing.to_copy)
  lines = timing.table(record, COLUMNS, "| H", "|---:|", lambda row: f"| {row['width']}", last)
  return timing.page(lines, "layer_norm", record["environment"])


def measure_all(args, record):
  for width in args.widths:
    record["rows"].append(row := measure(width))
    yield f"H={width}: {timing.shown(row)}"


if __name__ == "__main__":
  timing.run("layer_norm", __doc__, measure_all, table, {"--widths": {"type": int, "nargs": "+", "default": WIDTHS}})
