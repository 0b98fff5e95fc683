"""ConvGrad: one training step of the MNIST network of Flux issue 558, float32, at batch 100 and 1000.

The step of models/mnist_training.py (forward, all gradients, SGD) after `optimize-model`, in ONNX Runtime with a CUDA
graph, against PyTorch's eager operators, captured in a CUDA graph too, so that only the GPU's time counts: cuDNN's
search on, no TF32. A third column is our step without the biases' gradients. Loss and updated parameters of both sides
are compared.
"""

import sys
from pathlib import Path

import numpy as np

import timing

sys.path.insert(0, str(Path(__file__).parents[1]))
from models import mnist_training

BATCHES = (100, 1000)
STEPS = 9  # of a long chain: the same step, one after another
ROUNDS = 15


def chains(stream, replay):
  """One replay of the step, and STEPS of them, by the GPU's clock."""
  return timing.Contender(timing.on_the_gpu(stream, replay), timing.on_the_gpu(stream, replay, STEPS))


def ours(batch, feeds, bias_gradients):
  """The optimized step in a session, and what it computes."""
  import cupy
  import onnxruntime

  from ortplugin.optimizer import PIPELINE, run_passes

  model, _, _ = run_passes(mnist_training.build(batch, bias_gradients=bias_gradients), PIPELINE)
  stream = cupy.cuda.Stream(non_blocking=True)
  gpu = cupy.cuda.Device().id
  provider = {"enable_cuda_graph": "1", "user_compute_stream": str(stream.ptr), "use_tf32": "0", "device_id": str(gpu)}
  session = timing.cuda_session(model.SerializeToString(), provider, plugin=True)
  binding = session.io_binding()
  for value in session.get_inputs():
    array = feeds[value.name]
    binding.bind_input(value.name, "cuda", gpu, array.dtype, array.shape, array.data.ptr)
  results = {}
  for value in session.get_outputs():
    results[value.name] = cupy.empty(value.shape, np.float32)
    array = results[value.name]
    binding.bind_output(value.name, "cuda", gpu, array.dtype, array.shape, array.data.ptr)
  runs = onnxruntime.RunOptions()
  runs.add_run_config_entry("disable_synchronize_execution_providers", "1")
  for _ in range(3):  # compile, allocate, capture
    session.run_with_iobinding(binding)
    stream.synchronize()
  return chains(stream, lambda: session.run_with_iobinding(binding, runs)), results


def torchs(feeds):
  """PyTorch's eager step, captured, and what its first run computes."""
  import cupy
  import torch
  from torch.nn import functional

  torch.backends.cudnn.benchmark = True
  torch.backends.cudnn.allow_tf32 = False
  torch.backends.cuda.matmul.allow_tf32 = False
  image, label = (torch.from_dlpack(feeds[name]) for name in ("image", "label"))
  parameters = {name: torch.from_dlpack(feeds[name]).clone().requires_grad_() for name in mnist_training.PARAMETERS}

  def step():
    x = image
    for i in range(3):
      x = functional.conv2d(x, parameters[f"conv{i}.weight"], parameters[f"conv{i}.bias"], padding=1)
      x = functional.max_pool2d(functional.relu(x), 2)
    logits = functional.linear(x.flatten(1), parameters["dense.weight"], parameters["dense.bias"])
    loss = functional.cross_entropy(logits, label)
    return loss, torch.autograd.grad(loss, list(parameters.values()))

  def update():
    loss, gradients = step()
    with torch.no_grad():
      for parameter, gradient in zip(parameters.values(), gradients, strict=True):
        parameter.sub_(gradient, alpha=0.1)
    return loss

  results = {}
  stream = torch.cuda.Stream()
  torch.cuda.synchronize()
  with torch.cuda.stream(stream):  # of another stream, leaves would be waited for there, which ends a capture
    loss, gradients = step()
    results["loss"] = loss.detach()
    for (name, parameter), gradient in zip(parameters.items(), gradients, strict=True):
      results[f"{name}.next"] = parameter.detach() - 0.1 * gradient
    for _ in range(3):
      update()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="relaxed"):
      kept = update()

  def replay(_kept=kept):
    with torch.cuda.stream(stream):
      graph.replay()

  return chains(cupy.cuda.ExternalStream(stream.cuda_stream), replay), results


def measure(batch):
  """One row: microseconds of each contender."""
  import cupy

  image, label = mnist_training.data(batch)
  arrays = {"image": image, "label": label, **mnist_training.initial()}
  feeds = {name: cupy.asarray(array) for name, array in arrays.items()}
  cupy.cuda.Device().synchronize()
  contenders = {}
  contenders["torch"], wanted = torchs(feeds)
  contenders["ours"], found = ours(batch, feeds, True)
  contenders["without biases"], _ = ours(batch, feeds, False)
  for name, want in wanted.items():
    expected = cupy.asarray(want)
    before = feeds.get(name.removesuffix(".next"), cupy.zeros((), np.float32))
    change = float(cupy.abs(expected - before).max())
    error = float(cupy.abs(found[name].reshape(expected.shape) - expected).max()) / change
    if not error < 1e-3:
      raise SystemExit(f"batch {batch}: {name} is off by {error:.1e} of its change")
  return {"batch": batch, "microseconds": timing.microseconds(contenders, STEPS, ROUNDS)}


def table(record):
  """The rows of the record, in Markdown."""
  lines = [
    "| batch | torch, eager operators | **ours** | ours without biases' gradients | of which biases |",
    "|---:|---:|---:|---:|---:|",
  ]
  for row in record["rows"]:
    times = row["microseconds"]
    share = max(0.0, 1 - times["without biases"] / times["ours"])
    lines.append(
      f"| {row['batch']} | {times['torch']:.1f} | {times['ours']:.1f} | {times['without biases']:.1f} | {share:.1%} |"
    )
  return timing.page(lines, "mnist", record["environment"], unit="Microseconds of the GPU for one step, medians")


def measure_all(args, record):
  for batch in BATCHES:
    record["rows"].append(row := measure(batch))
    yield f"batch {batch}: {timing.shown(row)}"


if __name__ == "__main__":
  timing.run("mnist", __doc__, measure_all, table)
