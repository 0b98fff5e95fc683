"""What each fused node runs fastest as on the machine at hand, measured and written into the node.

For every node of ours in the main graph, on the inputs that it gets when the model runs: its operator's variants
(`Operator.variants`, sets of attributes, on CUDA also `device_variants`, which the GPU is asked for) and its
decomposition into standard ONNX are timed against the node as it stands. The fastest is kept if it is faster by more
than MARGIN, and is so again when the two are timed in turn: what seemed fastest of many by chance is not taken. Nor is
what gives other outputs, within the tolerances of verification, in plain runs or in replays of a CUDA graph: libraries
have plans that are fast and wrong. So a rewrite that does not pay on this GPU is taken back, and a tuned model needs no
file beside it. Nodes in bodies of If, Loop and Scan stay as they are.

Variants that set different attributes are choices of their own, as the two gradients of a convolution: one after the
other, the best of each is set beside what was chosen before, if it is faster still by the same rule.

A candidate is timed as a session of many copies of it, on CUDA captured in a CUDA graph; the time of one is the slope
between a few copies and many. Each copy has its own inputs, so that caches hold no more than they do in a model.
"""

import contextlib
import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, ValueInfoProto, helper

from ..errors import ModelError
from ..graph import DOMAIN, TensorType
from ..graph.messages import copied, standard_opset
from ..ops import Operator, find
from ..report import TunedNode
from ..session import CUDA, onnxruntime, run, run_on_host
from ..standard import session as make_session
from .compare import Tolerance, compare
from .inputs import shifted
from .replays import GraphSession, NotCaptured, compare_replays

MARGIN = 0.02  # the least gain, as a share of the node's time, for which it is changed
STANDARD = "standard ONNX"
_FEW = 2  # copies in the short session
_BYTES = 2**29  # of inputs and outputs in the long one, which bounds its copies
_ROUNDS = 12
_SIDE_BY_SIDE = 4  # copies that are replayed together, so that each has neighbours to overlap with

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Place:
  """Where nodes are measured: an execution provider's full name, and the GPU's number on CUDA."""

  provider: str
  device_id: int = 0

  @property
  def is_cuda(self) -> bool:
    """Whether that is a GPU."""
    return self.provider == CUDA


@dataclass(frozen=True)
class _Job:
  """One measurement: a node, what might stand in its place by name, and the arrays that both read. Where a choice is
  made, the candidates beside it are added. `outputs`: their dtypes, which ONNX Runtime does not infer where an input
  is a scalar."""

  node: NodeProto
  variants: Sequence[Mapping[str, Any]]
  candidates: dict[str, list[NodeProto]]
  inputs: Mapping[str, Any]
  weights: Sequence[onnx.TensorProto]
  outputs: Mapping[str, np.dtype[Any] | None]


@dataclass(frozen=True)
class _Choice:
  """What became of a job: the candidate and its attributes, None for standard ONNX; the rest as in TunedNode."""

  name: str
  attributes: Mapping[str, Any] | None
  microseconds: dict[str, float | None]
  wrong: tuple[str, ...]


def tune(
  model: ModelProto, feeds: Mapping[str, Any], provider: str, progress: Progress | None = None, device_id: int = 0
) -> tuple[ModelProto, list[TunedNode]]:
  """A copy of `model` in which every fused node is what measured fastest, and the measurements.

  Args:
      model: an optimized model; not changed.
      feeds: host arrays by input name. The nodes are measured with the shapes and values that follow from them.
      provider: full name of the execution provider to measure on.
      progress: told what is being compiled and measured.
      device_id: of the GPU, on CUDA.
  """
  place = Place(provider, device_id)
  result = copied(model)
  nodes = [node for node in model.graph.node if node.domain == DOMAIN]
  if not nodes:
    return result, []
  values = _inputs_of(model, nodes, feeds, place)
  opset = standard_opset(model)
  initializers = {tensor.name: tensor for tensor in model.graph.initializer}
  found: list[tuple[NodeProto, Operator, tuple[Any, ...]]] = []
  alike: dict[tuple[Any, ...], tuple[NodeProto, Operator, dict[str, Any]]] = {}  # one node for all of a key
  for node in nodes:
    if (operator := find(node.domain, node.op_type)) is None:
      raise ModelError(f"node '{node.name}' is of type {DOMAIN}::{node.op_type}, which this version does not know")
    inputs = {name: values[name] for name in node.input if name and name not in initializers}
    key = _key(node, inputs, initializers)
    found.append((node, operator, key))
    alike.setdefault(key, (node, operator, inputs))

  tell = progress or (lambda _: None)
  tell(f"listing the algorithms of {len(alike)} nodes")
  jobs: dict[tuple[Any, ...], _Job] = {}
  with ThreadPoolExecutor(os.cpu_count()) as pool:  # cuDNN compiles what it lists
    asked = {
      key: pool.submit(_device_variants, operator, node, inputs, initializers, place)
      for key, (node, operator, inputs) in alike.items()
    }
    for key, (node, operator, inputs) in alike.items():
      variants = [*operator.variants(node), *asked[key].result()]
      weights = [initializers[name] for name in dict.fromkeys(node.input) if name in initializers]
      made = operator.infer_shapes(node, _types(node, inputs, initializers))
      outputs = {name: each.dtype for name, each in zip(node.output, made, strict=False) if name}
      candidates = _candidates(operator, node, opset, variants)
      jobs[key] = _Job(node, variants, candidates, inputs, weights, outputs)
  if place.is_cuda:
    tell(f"compiling {sum(len(job.candidates) for job in jobs.values())} candidates")
    _compile(model, jobs.values(), place)

  choices: dict[tuple[Any, ...], _Choice] = {}
  for number, (key, job) in enumerate(jobs.items(), 1):
    tell(f"measuring {job.node.name} ({number} of {len(jobs)})")
    choices[key] = _choose(model, job, place)
  replaced: dict[str, list[NodeProto]] = {}
  report = []
  for node, operator, key in found:
    choice = choices[key]
    if choice.attributes is None:
      replaced[node.output[0]] = operator.decompose(node, opset)
    elif choice.attributes:
      replaced[node.output[0]] = [_with(node, choice.attributes)]
    label = f"{node.name} ({node.op_type})"
    report.append(TunedNode(label, choice.name, dict(choice.microseconds), choice.wrong))
  _replace(result, replaced)
  return result, report


def _device_variants(
  operator: Operator,
  node: NodeProto,
  inputs: Mapping[str, Any],
  initializers: Mapping[str, onnx.TensorProto],
  place: Place,
) -> Sequence[Mapping[str, Any]]:
  """What the GPU offers for a node's inputs; none where a node leaves out an input, or off CUDA."""
  if not place.is_cuda or not all(node.input):
    return ()
  types = _types(node, inputs, initializers)
  return operator.device_variants(node, types, [name in initializers for name in node.input], place.device_id)


def _types(
  node: NodeProto, inputs: Mapping[str, Any], initializers: Mapping[str, onnx.TensorProto]
) -> list[TensorType]:
  """Of the node's inputs; one that it leaves out has neither dtype nor shape."""
  types = []
  for name in node.input:
    if name in initializers:
      tensor = initializers[name]
      types.append(TensorType(helper.tensor_dtype_to_np_dtype(tensor.data_type), tuple(tensor.dims)))
    elif name:
      types.append(TensorType(inputs[name].dtype, inputs[name].shape))
    else:
      types.append(TensorType(None, None))
  return types


def _candidates(
  operator: Operator, node: NodeProto, opset: int, variants: Sequence[Mapping[str, Any]]
) -> dict[str, list[NodeProto]]:
  """Name to nodes. The first, "", is the node as it stands."""
  found = {"": [node]}
  for attributes in variants:
    variant = _with(node, attributes)
    if variant != node:
      found[_name(attributes)] = [variant]
  with contextlib.suppress(ModelError):  # the standard may have no form of it at this opset
    found[STANDARD] = operator.decompose(node, opset)
  return found


def _with(node: NodeProto, attributes: Mapping[str, Any]) -> NodeProto:
  """The node with these attributes set."""
  variant = copied(node)
  kept = [attribute for attribute in variant.attribute if attribute.name not in attributes]
  del variant.attribute[:]
  variant.attribute.extend(kept)
  variant.attribute.extend(helper.make_attribute(name, value) for name, value in sorted(attributes.items()))
  return variant


def _name(attributes: Mapping[str, Any]) -> str:
  return ", ".join(f"{name}={value}" for name, value in sorted(attributes.items()))


def _choose(model: ModelProto, job: _Job, place: Place) -> _Choice:
  """Measures a job: takes the best of the variants that set the same attributes, if any, then tries beside it those
  that set others. Standard ONNX competes with the last ones."""
  groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
  for each in job.variants:
    groups.setdefault(tuple(sorted(each)), []).append(each)
  steps = list(groups.values()) or [[]]
  chosen = ""
  attributes: Mapping[str, Any] | None = {}
  wrong = []
  times = _time(model, job, [chosen], place)
  for number, variants in enumerate(steps, 1):
    tried: dict[str, Mapping[str, Any] | None] = {}
    for each in variants:
      together = {**(attributes or {}), **each}
      if (variant := _with(job.node, together)) != job.candidates[chosen][0]:
        tried[_name(together)] = together
        job.candidates[_name(together)] = [variant]
    if number == len(steps) and STANDARD in job.candidates:
      tried[STANDARD] = None
    for name in tried:
      times |= _time(model, job, [name], place)
    while best := _fastest({name: times[name] for name in (chosen, *tried)}, chosen):
      if _agrees(model, job, best, place):
        times |= _time(model, job, [chosen, best], place)
        if _fastest({name: times[name] for name in (chosen, best)}, chosen):
          chosen, attributes = best, tried[best]
        break
      times[best] = None
      wrong.append(best)
  return _Choice(chosen, attributes, times, tuple(wrong))


def _fastest(times: Mapping[str, float | None], chosen: str) -> str:
  """The candidate to take; "" where the one chosen so far stays."""
  known = {name: value for name, value in times.items() if value is not None}
  if chosen not in known:
    return ""
  best = min(known, key=lambda name: known[name])
  return best if known[best] < (1 - MARGIN) * known[chosen] else ""


def _key(node: NodeProto, inputs: Mapping[str, Any], initializers: Mapping[str, Any]) -> tuple[Any, ...]:
  """Nodes with equal keys are measured once: what they are, and the shapes and dtypes of what they get."""
  attributes = tuple(sorted(attribute.SerializeToString(deterministic=True) for attribute in node.attribute))
  shapes = []
  for name in node.input:
    if name in initializers:
      shapes.append((tuple(initializers[name].dims), initializers[name].data_type))
    elif name:
      shapes.append((inputs[name].shape, str(inputs[name].dtype)))
  return (node.op_type, attributes, tuple(shapes), tuple(name in initializers for name in node.input))


def _inputs_of(model: ModelProto, nodes: Sequence[NodeProto], feeds: Mapping[str, Any], place: Place) -> dict[str, Any]:
  """Every value that these nodes read and that is no initializer, as a host array, from one run of the model."""
  fixed = {tensor.name for tensor in model.graph.initializer} - {value.name for value in model.graph.input}
  wanted = list(dict.fromkeys(name for node in nodes for name in node.input if name and name not in fixed))
  values = {name: np.asarray(feeds[name]) for name in wanted if name in feeds}
  probe = copied(model)
  produced = [name for name in wanted if name not in values]
  present = {value.name for value in probe.graph.output}
  known = {value.name: value for value in probe.graph.value_info}
  probe.graph.output.extend(known.get(name, ValueInfoProto(name=name)) for name in produced if name not in present)
  if produced:
    session = _session(probe, place)
    values.update(run_on_host(session, feeds, produced))
  return values


# ---- timing


def _compile(model: ModelProto, jobs: Iterable[_Job], place: Place) -> None:
  """Makes a session of every candidate, many at a time: kernels and plans are then in the process's caches.

  Compiling takes most of the time of a measurement, and one core.
  """

  def make(job: _Job, name: str) -> None:
    with contextlib.suppress(Exception):  # one that does not run is found again when it is measured
      _session(_copies(model, job, name, 1), place, cuda_graph=place.is_cuda)

  with ThreadPoolExecutor(os.cpu_count()) as pool:
    for each in [pool.submit(make, job, name) for job in jobs for name in job.candidates]:
      each.result()


def _agrees(model: ModelProto, job: _Job, name: str, place: Place) -> bool:
  """Whether the candidate's outputs are those of the node as it stands: in the first run, in one more, and on CUDA in
  replays of a graph of several copies side by side."""
  feeds = {f"{value}#0": array for value, array in job.inputs.items()}
  outputs = [f"{value}#0" for value in job.node.output if value]
  tolerance = Tolerance(precision="tf32") if _is_tf32(job) else None
  # Without a CUDA graph, whose replays give the host nothing.
  sessions = [_session(_copies(model, job, each, 1), place) for each in ("", name)]
  for _ in range(2):
    expected, found = (run_on_host(session, feeds, outputs) for session in sessions)
    if not all(compare(output, expected[output], found[output], tolerance).passed for output in outputs):
      return False
  return not place.is_cuda or _agrees_in_graphs(model, job, name, place, sessions[0], tolerance)


def _agrees_in_graphs(
  model: ModelProto, job: _Job, name: str, place: Place, standing: Any, tolerance: Tolerance | None
) -> bool:
  """The same for replays. `standing`: a session of the node as it stands."""
  numbers = range(_SIDE_BY_SIDE)
  copies = _copies(model, job, name, len(numbers))
  outputs = [value for value in job.node.output if value]
  given, wanted = [], []
  for inputs in (job.inputs, shifted(job.inputs)):
    feeds = {f"{value}#0": array for value, array in inputs.items()}
    found = run_on_host(standing, feeds, [f"{each}#0" for each in outputs])
    given.append({f"{value}#{copy}": array for value, array in inputs.items() for copy in numbers})
    wanted.append({f"{each}#{copy}": found[f"{each}#0"] for each in outputs for copy in numbers})
  try:
    with GraphSession(lambda options: _session(copies, place, more=options), place.device_id) as graphs:
      replayed = graphs.replay(given)
  except NotCaptured:  # nor could it be timed
    return False
  return all(
    each.passed for case, expected in enumerate(wanted) for each in compare_replays(replayed, case, expected, tolerance)
  )


def _is_tf32(job: _Job) -> bool:
  """Whether a kernel may round the node's float operands, and another one not.

  Without the attribute the session allows it: those that tune leave ONNX Runtime's default.
  """
  convolves = job.node.op_type in ("FusedConv", "FusedConvTranspose", "FusedMatMul", "FusedMatMulNorm")
  absent = convolves and any(array.dtype == np.float32 for array in job.inputs.values())
  return bool(next((each.i for each in job.node.attribute if each.name == "allow_tf32"), absent))


def _time(model: ModelProto, job: _Job, names: Sequence[str], place: Place) -> dict[str, float | None]:
  """Microseconds of one run of each candidate, which take turns; None where one can't be measured, as without a CUDA
  graph on CUDA."""
  size = sum(array.nbytes for array in job.inputs.values())
  many = max(_FEW + 2, min(40, _BYTES // max(1, 2 * size)))
  runs: dict[str, list[Callable[[], object]]] = {}
  for name in names:
    # ONNX Runtime's own exceptions, which say which kernel or memory lacks, have no common base.
    with contextlib.suppress(Exception):
      runs[name] = [_runner(_copies(model, job, name, count), job.inputs, count, place) for count in (_FEW, many)]
  slopes: dict[str, list[float]] = {name: [] for name in runs}
  for _ in range(_ROUNDS):
    for name, pair in runs.items():
      few, all_ = (min(_seconds(each) for _ in range(3)) for each in pair)
      slopes[name].append((all_ - few) / (many - _FEW) * 1e6)
  return {name: max(float(statistics.median(slopes[name])), 0.0) if name in slopes else None for name in names}


def _seconds(function: Callable[[], object]) -> float:
  start = time.perf_counter()
  function()
  return time.perf_counter() - start


def _copies(model: ModelProto, job: _Job, name: str, count: int) -> ModelProto:
  """A model of `count` copies of the candidate, each with inputs of its own. Weights are shared."""
  shared = {tensor.name for tensor in job.weights}
  nodes, values, results = [], [], []
  for copy in range(count):
    for each in job.candidates[name]:
      renamed = copied(each)
      renamed.name = f"{each.name}#{copy}"
      for names in (renamed.input, renamed.output):
        for index, value in enumerate(names):
          if value and value not in shared:
            names[index] = f"{value}#{copy}"
      nodes.append(renamed)
    values += [
      helper.make_tensor_value_info(f"{value}#{copy}", helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
      for value, array in job.inputs.items()
    ]
    results += [
      ValueInfoProto(name=f"{value}#{copy}")
      if dtype is None
      else helper.make_tensor_value_info(f"{value}#{copy}", helper.np_dtype_to_tensor_dtype(dtype), None)
      for value, dtype in job.outputs.items()
    ]
  graph = helper.make_graph(nodes, "tune", values, results, list(job.weights))
  return helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)


def _session(
  model: ModelProto, place: Place, *, cuda_graph: bool = False, more: Mapping[str, str] | None = None
) -> Any:
  """A silent session; `more`: options of the execution provider."""
  options = onnxruntime().SessionOptions()
  options.log_severity_level = 4
  settings = {**({"device_id": str(place.device_id)} if place.is_cuda else {}), **(more or {})}
  return make_session(
    model.SerializeToString(),
    [(place.provider, settings)],
    cuda_graph=cuda_graph,
    session_options=options,
    restore_on_cpu=False,
  )


def _runner(model: ModelProto, inputs: Mapping[str, Any], count: int, place: Place) -> Callable[[], object]:
  """A function that runs the model once, warmed up; on CUDA it replays a CUDA graph."""
  feeds = {f"{name}#{copy}": array for name, array in inputs.items() for copy in range(count)}
  session = _session(model, place, cuda_graph=place.is_cuda)
  run_once: Callable[[], object] = partial(run, session, feeds)
  if place.is_cuda:
    from ..session import device

    run_once = device.replay(session, feeds)
  for _ in range(3):
    run_once()
  return run_once


# ---- the model


def _replace(model: ModelProto, replaced: Mapping[str, Sequence[NodeProto]]) -> None:
  """Puts other nodes in the place of those with these first outputs."""
  nodes: list[NodeProto] = []
  for node in model.graph.node:
    nodes += replaced.get(node.output[0], [node]) if node.domain == DOMAIN else [node]
  rewritten = onnx.GraphProto()
  rewritten.node.extend(nodes)  # copies, since the next line frees the old ones
  del model.graph.node[:]
  model.graph.node.extend(rewritten.node)
  if not any(node.domain == DOMAIN for node in model.graph.node):
    for index in reversed(range(len(model.opset_import))):
      if model.opset_import[index].domain == DOMAIN:
        del model.opset_import[index]
