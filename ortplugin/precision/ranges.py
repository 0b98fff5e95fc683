"""Which numbers a narrower dtype does not hold: those of initializers, and of activations on the user's inputs."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper

from ..arrays import Array
from ..errors import RuntimeMissingError, UsageError, one_line
from ..graph import import_model
from ..model.annotate import annotate
from ..model.storage import save_model
from ..session import CPU, library_path, onnxruntime, register, run_on_host
from . import FLOAT32, Precision

MARGIN = 2.0  # activations may be so much larger on other inputs
FILLING = 2.0**126  # from here on a float32 is what masks are filled with: "lower than anything", not a quantity
CHUNK = 256  # values measured in one run


def fault(name: str, values: Array, target: Precision) -> str:
  """Why the constant can't have the target's dtype, with its name and the value; '' if it can.

  A constant is judged by its largest number: how little is left of numbers that vanish beside it does not matter.
  """
  finite = _quantities(values)
  if finite.size == 0:
    return ""
  largest = float(finite.max())
  short = target.dtype.name
  if exceeds(values, target):
    return f"the initializer '{name}' holds {largest:.6g}, beyond {short}'s {target.largest:.6g}"
  rounded = finite.astype(target.dtype).astype(np.float64)
  error = float(np.abs(rounded - finite).max())
  if error > target.epsilon * largest:
    return f"the initializer '{name}' holds {largest:.6g}, of which {short} keeps {float(rounded.max()):.6g}"
  return ""


def exceeds(values: Array, target: Precision) -> bool:
  """Whether a number of the constant lies beyond the target's dtype."""
  finite = _quantities(values)
  return bool(finite.size) and float(finite.max()) > target.largest


def _quantities(values: Array) -> Array:
  """The magnitudes of the finite numbers, in float64, without what masks are filled with."""
  finite = np.abs(values[np.isfinite(values)].astype(np.float64))
  return np.asarray(finite[finite < FILLING])


def converted(values: Array, target: Precision) -> Array:
  """The constant in the target's dtype; what masks are filled with becomes half of what is the largest there.

  Half, so that adding a number to it does not reach infinity, whose differences are NaN.
  """
  if not target.narrows:
    return values.astype(target.dtype)
  filling = np.isfinite(values) & (np.abs(values) >= FILLING)
  limited = np.where(filling, np.sign(values) * (target.largest / 2), values) if filling.any() else values
  return np.asarray(limited).astype(target.dtype)


def is_filling(values: Array) -> bool:
  """Whether the constant holds what masks are filled with."""
  return bool((np.isfinite(values) & (np.abs(values) >= FILLING)).any())


def measure(model: ModelProto, feeds: Mapping[str, Any]) -> dict[str, float]:
  """The largest finite magnitude of every float32 value of the outermost graph, by name, on these inputs.

  The model runs in ONNX Runtime on the CPU, each value followed by its maximum, so no value has to be kept.
  Raises UsageError if it does not run.
  """
  graph = import_model(model)
  annotate(graph)
  made = [tensor.name for node in graph.nodes for tensor in node.outputs if tensor.dtype == FLOAT32 and tensor.name]
  found = {
    tensor.name: _peak(np.asarray(feeds[tensor.name]))
    for tensor in graph.inputs
    if tensor.dtype == FLOAT32 and tensor.name in feeds
  }
  for start in range(0, len(made), CHUNK):
    names = made[start : start + CHUNK]
    probe = _with_peaks(model, names)
    try:
      outputs = _run(probe, feeds, [_probe(name) for name in names])
    except Exception as error:  # ONNX Runtime's own classes have no common base
      raise UsageError(f"the range of activations can't be measured on these inputs: {one_line(error)}") from error
    found.update({name: float(np.asarray(outputs[_probe(name)]).item()) for name in names})
  return found


def _run(model: ModelProto, feeds: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
  ort = onnxruntime()
  options = ort.SessionOptions()
  options.log_severity_level = 4
  try:
    library_path()
    register(options)
  except RuntimeMissingError:  # a model that needs no library runs without
    pass
  with tempfile.TemporaryDirectory(prefix="ortplugin-") as folder:
    path = Path(folder) / "probe.onnx"
    save_model(model, path, durable=False)
    return run_on_host(ort.InferenceSession(str(path), options, providers=[CPU]), feeds, names)


def _peak(values: Array) -> float:
  finite = values[np.isfinite(values)]
  return float(np.abs(finite).max()) if finite.size else 0.0


def _probe(name: str) -> str:
  return f"{name}/ortplugin/peak"


def _with_peaks(model: ModelProto, names: list[str]) -> ModelProto:
  """The model with the largest finite magnitudes of these float32 values as its outputs."""
  probe = ModelProto()
  probe.CopyFrom(model)
  graph = probe.graph
  del graph.output[:]
  flat, zero = "ortplugin/flat", "ortplugin/zero"
  graph.initializer.append(helper.make_tensor(flat, TensorProto.INT64, [1], [-1]))
  graph.initializer.append(helper.make_tensor(zero, TensorProto.FLOAT, [1], [0.0]))
  for name in names:
    step = _probe(name)
    graph.node.append(helper.make_node("Reshape", [name, flat], [f"{step}/flat"]))
    graph.node.append(helper.make_node("Concat", [f"{step}/flat", zero], [f"{step}/some"], axis=0))  # never empty
    graph.node.append(helper.make_node("Abs", [f"{step}/some"], [f"{step}/abs"]))
    graph.node.append(helper.make_node("IsInf", [f"{step}/abs"], [f"{step}/inf"]))
    graph.node.append(helper.make_node("IsNaN", [f"{step}/abs"], [f"{step}/nan"]))
    graph.node.append(helper.make_node("Or", [f"{step}/inf", f"{step}/nan"], [f"{step}/not"]))
    graph.node.append(helper.make_node("Where", [f"{step}/not", zero, f"{step}/abs"], [f"{step}/finite"]))
    graph.node.append(helper.make_node("ReduceMax", [f"{step}/finite"], [step], keepdims=0))
    graph.output.append(helper.make_tensor_value_info(step, TensorProto.FLOAT, []))
  return probe
