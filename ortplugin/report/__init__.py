"""What the optimizer did: operators before and after, each rewrite, what nearly was rewritten, errors and times.

`Report.to_dict` is the JSON report, schema.py its schema, and html.py makes a page of it. Its keys are stable:

    version           of ortplugin
    action            "optimize", "restore" or "profile"
    input, output     paths, or null for models in memory
    operators         {"before": {"domain::Type": count}, "after": {...}}; the standard domain is "ai.onnx"
    opset             [before, after] where the model was upgraded, else null
    functions         {"domain::name": count}, of the calls of local functions that became their bodies
    precision         {"name": "fp16", "converted": count of operators, "kept": count of those that stay in their dtype,
                      and why stands under near_misses} of --precision, or null
    rewrites          {"name": count}, of the rewrites that fired
    changes           [{"rewrite", "nodes": [label], "result": label}], in the order in which they were made
    near_misses       [{"rewrite", "node", "reason"}]
    fused             how many of the changes are fusions; 0 means that nothing was fused
    seconds           {"load", "passes", ...}: wall time of each step
    verification      [{"provider", "inputs": [{"name", "outputs": [{"name", "passed", "max_abs_error",
                      "max_rel_error", "message"}], "mode"}], "skipped", "replays", "graph_skipped", "notes": [text],
                      "timings": [{"mode", "original_ms", "optimized_ms", "loses"}], "original_ms", "optimized_ms",
                      "passed"}]; errors are null where an output is not numeric;
                      mode is "plain", "graph" for replays of a CUDA graph, "TF32" or "graph, TF32" where float32 may be
                      rounded; skipped says why nothing was compared, "" if it was; replays counts those of CUDA
                      graphs, and graph_skipped says why there are none, or none for some inputs; times are medians,
                      beside timings those of plain runs, null where they were not taken
    tuning            [{"node", "choice", "microseconds": {candidate: time}, "wrong"}] of --tune; "" is the node as the
                      passes made it, null a candidate that could not be measured; wrong names those whose outputs were
                      not the node's
    guilty            the change that made verification fail, of "inline-functions" the functions; or null
    dropped           [{"rewrite", "nodes": [label], "reason"}] of --drop-guilty: passes that were left out, with the
                      first change by which outputs differed, and how
    taken_back        [{"rewrites": [name], "provider", "timings"}] of --keep-faster: passes that were left out, and
                      times with them; where changes is empty, the original stays
    regions           [{"kind", "result", "nodes": [label], "rewrites": {"name": count}}]: what became of which original
                      nodes; kind is "fused" (into an operator of ours), "replaced" or "removed"
    memory            {"before", "after": {"weights": count, "bytes", "dtypes": {name: bytes}, "largest": [weight]} or
                      null, "written_before", "written_after": bytes that operators write in a run, or null}
    profile           {"provider", "inputs": the case, "skipped": why there is none, "original", "optimized": {"run_ms",
                      "runs", "nodes_ms", "taken_share", "operators", "nodes": the slowest} or null} or null: medians of
                      runs. Nodes are those that ONNX Runtime makes of the model; taken_by is the node of ours at the
                      output where all that one stands for is fused (of the optimized model: itself), or null
    next              [{"option", "why"}], what to try next
"""

import json
import math
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, field
from html import escape
from typing import Any

from onnx import ModelProto, NodeProto, TensorProto

from ..graph import walk_graphs, walk_nodes
from ..model.checks import byte_count
from ..passes.base import Change, NearMiss
from ..version import __version__
from .advice import advise
from .regions import find_regions, is_ours

CONVERSION = "precision"  # the rewrite under which a conversion of precision reports
SLOWEST = 50  # nodes of a timeline that the report lists
LARGEST = 10  # weights likewise
PLAIN, TF32, GRAPH, GRAPH_TF32 = "plain", "TF32", "graph", "graph, TF32"  # how the models were run


@dataclass(frozen=True)
class OutputComparison:
  """One output of the optimized model against the original's."""

  name: str
  passed: bool  # within the tolerance of its dtype
  max_abs_error: float | None = None  # the largest |optimized - original| where both are finite
  max_rel_error: float | None = None  # the largest |optimized - original| / |original| where the original is not zero
  message: str = ""  # why it failed, or a remark


@dataclass(frozen=True)
class InputComparison:
  """All outputs on one set of inputs."""

  name: str  # "generated, batch=2" or the path of the user's file
  outputs: tuple[OutputComparison, ...]
  # Or TF32: in a session that may round to it; GRAPH: replays of a CUDA graph; GRAPH_TF32: of such a session.
  mode: str = PLAIN

  @property
  def passed(self) -> bool:
    """Whether every output agrees."""
    return all(output.passed for output in self.outputs)


@dataclass(frozen=True)
class Timing:
  """Original and optimized in turns. Times are medians of one run."""

  mode: str  # PLAIN or GRAPH
  original_ms: float
  optimized_ms: float
  loses: bool = False  # whether the optimized model is slower, by more than the measurements' error

  def __str__(self) -> str:
    factor = self.original_ms / max(self.optimized_ms, 1e-9)
    spread = ", within the measurements' spread" if factor < 0.98 and not self.loses else ""
    times = f"original {self.original_ms:.3f} ms, optimized {self.optimized_ms:.3f} ms"
    return f"{times}, {factor:.2f} times as fast{spread}"


@dataclass(frozen=True)
class ProviderVerification:
  """Original against optimized on one execution provider."""

  provider: str
  inputs: tuple[InputComparison, ...]
  skipped: str = ""
  replays: int = 0  # all of whose outputs were compared
  graph_skipped: str = ""  # empty off CUDA
  notes: tuple[str, ...] = ()  # what a user should know besides
  timings: tuple[Timing, ...] = ()  # in each mode in which both ran; of CUDA graphs first

  @property
  def original_ms(self) -> float | None:
    """Of plain runs."""
    return next((timing.original_ms for timing in self.timings if timing.mode == PLAIN), None)

  @property
  def optimized_ms(self) -> float | None:
    """Of plain runs."""
    return next((timing.optimized_ms for timing in self.timings if timing.mode == PLAIN), None)

  @property
  def loses(self) -> bool:
    """Whether the optimized model is slower than the original in a mode."""
    return any(timing.loses for timing in self.timings)

  def to_dict(self) -> dict[str, Any]:
    """As in the JSON report."""
    times = {"original_ms": self.original_ms, "optimized_ms": self.optimized_ms}
    return {**asdict(self), **times, "passed": self.passed}

  @property
  def passed(self) -> bool:
    """Whether all inputs give the same outputs; true where nothing was compared."""
    return all(comparison.passed for comparison in self.inputs)


@dataclass(frozen=True)
class TunedNode:
  """What was measured for one node."""

  node: str  # its label
  choice: str  # the candidate that stands there now
  microseconds: dict[str, float | None]  # of one run; None also where it was wrong
  wrong: tuple[str, ...] = ()  # of the fastest


@dataclass(frozen=True)
class Dropped:
  """A pass that changed outputs and was left out."""

  rewrite: str
  nodes: tuple[str, ...]  # labels of the first change by which outputs differed
  reason: str  # which output differed, where and by how much


@dataclass(frozen=True)
class TakenBack:
  """Passes that made the model slower and were left out."""

  rewrites: tuple[str, ...]
  provider: str
  timings: tuple[Timing, ...]  # with them


@dataclass(frozen=True)
class NodeTime:
  """One node as ONNX Runtime ran it. Times are medians over the runs, in milliseconds, without those of bodies."""

  node: str  # its name there
  operator: str  # "domain::Type"
  ms: float
  bytes: int  # of its outputs
  origins: tuple[str, ...]  # labels of the model's nodes that it stands for, its output's first; () where it is new


@dataclass(frozen=True)
class Timeline:
  """Where one model spends its time."""

  run_ms: float  # of a whole run
  runs: int
  nodes: tuple[NodeTime, ...]  # the slowest first

  def to_dict(self, taken: dict[str, str]) -> dict[str, Any]:
    """Its JSON form. `taken`: labels of nodes of the model to the node of ours in their place."""
    total = sum(each.ms for each in self.nodes) or 1.0
    rows: dict[str, Counter[str]] = defaultdict(Counter)
    nodes, mine = [], 0.0
    for each in self.nodes:
      ours = taken[each.origins[0]] if each.origins and taken.keys() >= {*each.origins} else None
      share = each.ms / total
      part = share if ours else 0
      mine += part
      rows[each.operator].update({"count": 1, "ms": each.ms, "share": share, "taken_share": part})
      nodes.append({"node": each.node, "operator": each.operator, "ms": round(each.ms, 6),
                    "share": round(share, 6), "bytes": each.bytes, "taken_by": ours})  # fmt: skip
    operators = [
      {"operator": name, **{key: round(value, 6) for key, value in row.items()}} for name, row in rows.items()
    ]
    return {
      "run_ms": round(self.run_ms, 6),
      "runs": self.runs,
      "nodes_ms": round(total, 6) if self.nodes else 0,
      "taken_share": round(mine, 6),
      "operators": sorted(operators, key=lambda row: -float(row["ms"])),
      "nodes": nodes[:SLOWEST],
    }


@dataclass(frozen=True)
class Profile:
  """Where time goes on one provider, by ONNX Runtime's profile."""

  provider: str
  inputs: str = ""  # the name of the case
  original: Timeline | None = None
  optimized: Timeline | None = None
  skipped: str = ""  # why nothing was profiled


@dataclass(frozen=True)
class Weights:
  """What a model's initializers take."""

  weights: int  # how many there are
  bytes: int
  dtypes: dict[str, int]  # bytes of each dtype
  largest: tuple[dict[str, Any], ...]  # name, dtype, shape and bytes


@dataclass
class Report:
  """What one call of `optimize` did; see the module for the JSON form."""

  action: str = "optimize"  # or "restore", "profile"
  input: str | None = None
  output: str | None = None
  before: dict[str, int] = field(default_factory=dict)
  after: dict[str, int] = field(default_factory=dict)
  opset: tuple[int, int] | None = None  # of ai.onnx, before and after an upgrade
  functions: dict[str, int] = field(default_factory=dict)  # calls that became bodies
  precision: str | None = None  # of a conversion
  changes: list[Change] = field(default_factory=list)
  near_misses: list[NearMiss] = field(default_factory=list)
  seconds: dict[str, float] = field(default_factory=dict)
  verification: list[ProviderVerification] = field(default_factory=list)
  tuning: list[TunedNode] = field(default_factory=list)
  guilty: Change | None = None
  dropped: list[Dropped] = field(default_factory=list)
  taken_back: list[TakenBack] = field(default_factory=list)
  labels_before: frozenset[str] = frozenset()  # of the original's nodes
  labels_after: frozenset[str] = frozenset()
  weights_before: Weights | None = None
  weights_after: Weights | None = None
  profile: Profile | None = None

  @property
  def rewrites(self) -> dict[str, int]:
    """How often each rewrite fired, in the order in which they first did."""
    return dict(Counter(change.rewrite for change in self.changes))

  @property
  def converted(self) -> int:
    """How many operators, inputs and outputs a conversion of precision changed."""
    return sum(change.rewrite == CONVERSION for change in self.changes)

  @property
  def kept(self) -> list[NearMiss]:
    """The operators that a conversion of precision left in their dtypes, and why."""
    return [miss for miss in self.near_misses if miss.rewrite == CONVERSION]

  @property
  def fused(self) -> int:
    """How many changes made or extended a fused operator, rather than simplified the graph."""
    return sum(is_ours(change.result) for change in self.changes)

  @property
  def tuned(self) -> int:
    """How many nodes --tune changed."""
    return sum(bool(node.choice) for node in self.tuning)

  @property
  def passed(self) -> bool:
    """Whether every verification that was made passed."""
    return all(result.passed for result in self.verification)

  def to_dict(self) -> dict[str, Any]:
    """The JSON report as Python values."""
    data: dict[str, Any] = {
      "version": __version__,
      "action": self.action,
      "input": self.input,
      "output": self.output,
      "operators": {"before": self.before, "after": self.after},
      "opset": self.opset,
      "functions": self.functions,
      "precision": None
      if self.precision is None
      else {"name": self.precision, "converted": self.converted, "kept": len(self.kept)},
      "rewrites": self.rewrites,
      "changes": [asdict(change) for change in self.changes],
      "near_misses": [asdict(miss) for miss in self.near_misses],
      "fused": self.fused,
      "seconds": {step: round(value, 6) for step, value in self.seconds.items()},
      "verification": [result.to_dict() for result in self.verification],
      "tuning": [asdict(node) for node in self.tuning],
      "guilty": asdict(self.guilty) if self.guilty is not None else None,
      "dropped": [asdict(each) for each in self.dropped],
      "taken_back": [asdict(each) for each in self.taken_back],
      **self._places(),
    }
    return {**data, "next": [{"option": option, "why": why} for option, why in advise(data)]}

  def _places(self) -> dict[str, Any]:
    """What the report says by place: regions, memory and time."""
    regions = find_regions(self.changes, self.labels_before, self.labels_after)
    taken = {label: region.result for region in regions if is_ours(region.result) for label in region.nodes}
    ours = {label: label for label in self.labels_after if is_ours(label)}
    memory: dict[str, Any] = {}
    times: dict[str, Any] = {}
    profile = self.profile or Profile("")
    for when, side, name, line, known in (
      ("before", self.weights_before, "original", profile.original, taken),
      ("after", self.weights_after, "optimized", profile.optimized, ours),
    ):
      memory[when] = None if side is None else asdict(side)
      memory[f"written_{when}"] = None if line is None else sum(each.bytes for each in line.nodes)
      times[name] = None if line is None else line.to_dict(known)
    about = {"provider": profile.provider, "inputs": profile.inputs, "skipped": profile.skipped}
    return {
      "regions": [
        {"kind": region.kind, "result": region.result, "nodes": region.nodes, "rewrites": dict(region.rewrites)}
        for region in regions
      ],
      "memory": memory,
      "profile": None if self.profile is None else {**about, **times},
    }

  def to_json(self) -> str:
    """The JSON report; a number that JSON lacks (an infinite error) is the string "inf" or "nan"."""
    return json.dumps(_plain(self.to_dict()), indent=2, allow_nan=False) + "\n"

  def to_html(self) -> str:
    """The page that `--report out.html` writes."""
    from .html import to_html

    return to_html(_plain(self.to_dict()))

  def _repr_html_(self) -> str:
    """The page in a frame of its own, as the value of a Jupyter cell."""
    return f'<iframe srcdoc="{escape(self.to_html())}" style="width: 100%; height: 40em; border: 0"></iframe>'


def _plain(value: Any) -> Any:
  if isinstance(value, dict):
    return {str(key): _plain(item) for key, item in value.items()}
  if isinstance(value, (list, tuple)):
    return [_plain(item) for item in value]
  if isinstance(value, float) and not math.isfinite(value):
    return str(value)
  return value


def count_operators(model: ModelProto) -> dict[str, int]:
  """How many nodes of each 'domain::Type' there are, bodies and local functions included, by name."""
  counts = Counter(f"{node.domain or 'ai.onnx'}::{node.op_type}" for node in walk_nodes(model))
  return dict(sorted(counts.items()))


def node_labels(model: ModelProto) -> frozenset[str]:
  """Those of every node."""
  return frozenset(map(node_label, walk_nodes(model)))


def node_label(node: NodeProto) -> str:
  """'name (OpType)' of a node in a file, as `ortplugin.graph.labels` writes it."""
  first = next((name for name in node.output if name), "")
  name = node.name or (f"'{first}'" if first else "")
  return f"{name} ({node.op_type})".lstrip()


def weigh(model: ModelProto) -> Weights:
  """What the initializers take, those of bodies included."""
  names = {"float": "float32", "double": "float64"}  # as NumPy has them
  dtypes: Counter[str] = Counter()
  found: list[dict[str, Any]] = []
  for tensor in (tensor for graph in walk_graphs(model.graph) for tensor in graph.initializer):
    size = byte_count(tensor, f"initializer '{tensor.name}'")
    dtype = str(TensorProto.DataType.Name(tensor.data_type)).lower()
    dtypes[names.get(dtype, dtype)] += size
    found.append({"name": tensor.name, "dtype": names.get(dtype, dtype), "shape": list(tensor.dims), "bytes": size})
  found.sort(key=lambda each: -each["bytes"])
  return Weights(len(found), dtypes.total(), dict(sorted(dtypes.items())), tuple(found[:LARGEST]))
