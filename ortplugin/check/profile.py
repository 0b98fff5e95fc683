"""Where a model spends its time: ONNX Runtime's profile on the CPU, node by node, traced back to the model's own nodes.

ONNX Runtime optimizes a model before it runs it, so its nodes are others. A node is traced by its first output, which a
fusion keeps, or its name, and stands for all nodes of the model from there up to what it reads. What ONNX Runtime added
itself (a reorder of channels) belongs to no node of the model.
"""

import json
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx import ModelProto, NodeProto

from ..graph import walk_graphs, walk_nodes
from ..graph.messages import bodies
from ..report import NodeTime, Timeline, node_label
from ..session import CPU, onnxruntime
from ..standard import standard_on_cpu

_WARM_UP, _LEAST_RUNS, _MOST_RUNS, _SECONDS = 2, 3, 30, 1.0
_EVENTS = 30_000  # of all runs together: ONNX Runtime keeps a million, and each is a line of JSON
_COVERED = 40  # nodes of the model that one of ONNX Runtime's may stand for
_SUFFIX = "_kernel_time"


def profile(path: Path, folder: Path, options: Any, run: Callable[[Any], object]) -> Timeline:
  """Profiles the model in the file for about a second. `run` runs a session once; `folder` is written to.

  A model with operators of ours as `ortplugin.session` has it on the CPU: with standard convolutions.
  """
  if (standard := standard_on_cpu(path)) is not None:
    path = folder / "standard.onnx"
    path.write_bytes(standard)
  model, made = onnx.load(path, load_external_data=False), folder / "profiled.onnx"
  options.enable_profiling = True
  options.profile_file_prefix = str(folder / "profile")
  options.optimized_model_filepath = str(made)
  entry = "session.optimized_model_external_initializers_"
  options.add_session_config_entry(f"{entry}file_name", f"{made.name}.data")
  options.add_session_config_entry(f"{entry}min_size_in_bytes", "1024")
  session = onnxruntime().InferenceSession(str(path), options, providers=[CPU])
  for _ in range(_WARM_UP):
    run(session)
  most = min(_MOST_RUNS, _EVENTS // max(1, sum(1 for _ in walk_nodes(model))))
  begun, runs = time.perf_counter(), 0
  while runs < _LEAST_RUNS or (runs < most and time.perf_counter() - begun < _SECONDS):
    run(session)
    runs += 1
  events = json.loads(Path(session.end_profiling()).read_text(errors="replace"))
  return timeline(events, onnx.load(made, load_external_data=False), model, runs)


def timeline(events: Iterable[Mapping[str, Any]], made: ModelProto, model: ModelProto, runs: int) -> Timeline:
  """What the last `runs` runs took. `made` is the model as ONNX Runtime optimized it."""
  spans = sorted((each for each in events if "dur" in each), key=lambda each: (each["ts"], -each["dur"]))
  whole = [each for each in spans if each["name"] == "model_run"][-runs:]
  spans = [each for each in spans if each["name"].endswith(_SUFFIX)]
  times: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0] * len(whole))
  sizes: Counter[tuple[str, str]] = Counter()
  for event, microseconds in zip(spans, _own_times(spans), strict=True):
    run = next((i for i, each in enumerate(whole) if 0 <= event["ts"] - each["ts"] <= each["dur"]), None)
    if run is not None:
      key = event["name"].removesuffix(_SUFFIX), event["args"].get("op_name", "?")
      times[key][run] += microseconds / 1e3
      sizes[key] += int(event["args"].get("output_size", 0))
  nodes, trace, found = _made_nodes(made, times), _Trace(made, model), []
  for key, each in times.items():
    node = nodes.get(key, NodeProto())
    operator = f"{node.domain or 'ai.onnx'}::{key[1]}"
    found.append(NodeTime(key[0], operator, statistics.median(each), sizes[key] // len(whole), trace.origins(node)))
  found.sort(key=lambda each: (-each.ms, each.node))
  return Timeline(statistics.median(each["dur"] / 1e3 for each in whole), len(whole), tuple(found))


def _own_times(spans: Sequence[Mapping[str, Any]]) -> list[float]:
  """Microseconds of each event without those within it: nodes in bodies have events of their own."""
  own, around = [float(each["dur"]) for each in spans], list[int]()
  for index, each in enumerate(spans):
    while around and spans[around[-1]]["ts"] + spans[around[-1]]["dur"] < each["ts"] + each["dur"]:
      around.pop()
    if around:
      own[around[-1]] -= each["dur"]
    if each["args"].get("op_name") in ("If", "Loop", "Scan"):
      around.append(index)
  return [max(each, 0.0) for each in own]


def _made_nodes(made: ModelProto, keys: Iterable[tuple[str, str]]) -> dict[tuple[str, str], NodeProto]:
  """The nodes of the profile. One without a name goes by type and number there, in the order in which they run."""
  found: dict[tuple[str, str], NodeProto] = {}
  unnamed: dict[str, list[NodeProto]] = defaultdict(list)
  for node in walk_nodes(made):
    if node.name:
      found[node.name, node.op_type] = node
    else:
      unnamed[node.op_type].append(node)
  waiting: dict[str, list[tuple[str, str]]] = defaultdict(list)
  for key in keys:
    if key not in found:
      waiting[key[1]].append(key)
  for op, numbered in waiting.items():
    if len(numbered) == len(unnamed[op]):
      found.update(zip(numbered, unnamed[op], strict=True))
  return found


class _Trace:
  """From nodes that ONNX Runtime made to those of the model."""

  def __init__(self, made: ModelProto, model: ModelProto) -> None:
    self._makers: dict[str, NodeProto] = {}
    self._names = {node.name: node for node in walk_nodes(model) if node.name}
    self._constants = {tensor.name for graph in walk_graphs(model.graph) for tensor in graph.initializer} | {""}
    for node in walk_nodes(model):
      self._makers.update((output, node) for output in node.output if output)
      if all(name in self._constants for name in node.input) and not any(bodies(node)):
        self._constants.update(node.output)
    self._known: dict[str, str] = {}  # values of ONNX Runtime's own layout to the model's
    for node in walk_nodes(made):
      moved = node.op_type.startswith("Reorder")
      name = self._value(node.input[0]) if moved else node.name.partition("_nchwc")[0]
      if name in self._makers or moved:
        self._known.update((output, name) for output in node.output if output not in self._makers)

  def origins(self, node: NodeProto) -> tuple[str, ...]:
    """Labels of the model's nodes in whose place the node stands, the one of its output first."""
    name = next((name for name in map(self._value, node.output) if name in self._makers), "")
    first = self._makers.get(name) or self._names.get(node.name)
    if first is None or node.op_type.startswith("Reorder"):
      return ()
    read = {*map(self._value, node.input), *self._constants}
    found, waiting = [node_label(first)], [first]
    while waiting:
      for value in waiting.pop().input:
        maker = self._makers.get(value)
        if value in read:
          continue
        if maker is None or len(found) > _COVERED:  # what it reads has names of ONNX Runtime's own
          return (node_label(first),)
        if node_label(maker) not in found:
          found.append(node_label(maker))
          waiting.append(maker)
    return tuple(found)

  def _value(self, name: str) -> str:
    return self._known.get(name, name)
