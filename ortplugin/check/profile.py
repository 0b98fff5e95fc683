"""Where a model spends its time: ONNX Runtime's profile on the CPU, node by node, traced back to the model's own nodes.

ONNX Runtime optimizes a model before it runs it, so its nodes are others. A node is traced by its first output, which a
fusion keeps, or its name, and stands for all nodes of the model from there up to what it reads. What ONNX Runtime added
itself (a reorder of channels) belongs to no node of the model.
On a GPU that profile holds the launches of kernels, not the kernels, so there is none here.

It runs in a process of its own, as the verification does.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import onnx
from onnx import ModelProto, NodeProto

from ortplugin.check.child import Child, DiedError
from ortplugin.check.inputs import CANDIDATES, Case, as_wanted, generate, load_inputs, without_weights
from ortplugin.check.judge import Side, session_options
from ortplugin.errors import OrtPluginError, VerificationError, one_line
from ortplugin.graph.domains import DOMAIN
from ortplugin.graph.messages import bodies, walk_graphs, walk_nodes
from ortplugin.model.input_shapes import Shapes
from ortplugin.model.storage import PathLike, save_model
from ortplugin.report import NodeTime, Profile, Timeline, node_label
from ortplugin.session import CPU, onnxruntime, run_on_host

_WARM_UP, _LEAST_RUNS, _MOST_RUNS, _SECONDS = 2, 3, 30, 1.0
_EVENTS = 30_000  # of nodes, all runs together: ONNX Runtime keeps a million, and each is a line of JSON
_STEP_SECONDS = 3600.0  # whoever has such a model knows that it is slow
_SUFFIX = "_kernel_time"
_COVERED = 40  # nodes of the model that one of ONNX Runtime's may stand for
_UNNAMED = "ortplugin/unnamed"

Event = Mapping[str, Any]


def profile(
    models: Sequence[ModelProto],
    path: Path | None = None,
    *,
    inputs: Mapping[str, Any] | PathLike | None = None,
    shapes: Shapes | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Profile:
    """The profile of the first model, the original, and of the second, if there is one, on the same inputs.

    Args:
        models: one or two; the second may be of other dtypes.
        path: the first one's file, if it has one.
        inputs: the user's; None generates some.
        shapes: input name to shape, for the generated inputs.
        progress: called with a few words at each step.

    Raises VerificationError where ONNX Runtime does not run them.
    """
    original = models[0]
    user_case = None if inputs is None else load_inputs(inputs, original)
    with tempfile.TemporaryDirectory(prefix="ortplugin-") as folder:
        sides = [
            _side(model, path if index == 0 else None, Path(folder) / f"model{index}.onnx")
            for index, model in enumerate(models)
        ]
        light = [without_weights(model).SerializeToString() for model in models]
        with closing(Child(Profiler, light, user_case, shapes, folder, tell=progress)) as child:
            try:
                lines = [child.call("profile", index, side, seconds=_limit) for index, side in enumerate(sides)]
            except DiedError as error:
                raise VerificationError(f"ONNX Runtime {error} while {error.doing or 'starting'}") from error
            name: str = child.call("case", seconds=_limit)
    return Profile(CPU, name, *lines)


def _limit(_: object) -> float:
    return _STEP_SECONDS


def _side(model: ModelProto, path: Path | None, written: Path) -> Side:
    """The model on disk, each node with a name of its own, by which the profile knows it."""
    names = Counter(node.name for node in walk_nodes(model))
    if "" in names or max(names.values(), default=1) > 1:
        named = ModelProto()
        named.CopyFrom(model)
        for index, node in enumerate(walk_nodes(named)):
            if names[node.name] > 1 or not node.name:
                node.name = f"{_UNNAMED}{index}"
        model, path = named, None
    if path is None:
        save_model(model, written, durable=False)
    return Side(path or written, any(node.domain == DOMAIN for node in walk_nodes(model)))


class Profiler:
    """What runs in the process.

    Args:
        light: the models without their large weights, serialized.
        user_case: the user's inputs, or None.
        shapes: input name to shape, for the generated inputs.
        folder: to write to.
        tell: called before each step.
    """

    is_lost = False

    def __init__(
        self,
        light: Sequence[bytes],
        user_case: Case | None,
        shapes: Shapes | None,
        folder: str,
        *,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._models = [ModelProto.FromString(each) for each in light]
        self._case = user_case
        self._shapes = shapes
        self._folder = Path(folder)
        self._tell = tell

    def case(self) -> str:
        """The name of the inputs."""
        assert self._case is not None
        return self._case.name

    def profile(self, index: int, side: Side) -> Timeline:
        """Runs one of the models for about a second."""
        self._tell(f"profiling the {'optimized model' if index else 'original'}")
        optimized = self._folder / f"optimized{index}.onnx"
        options = session_options(side)
        options.enable_profiling = True
        options.profile_file_prefix = str(self._folder / f"profile{index}")
        options.optimized_model_filepath = str(optimized)
        entry = "session.optimized_model_external_initializers_"
        options.add_session_config_entry(f"{entry}file_name", f"{optimized.name}.data")
        options.add_session_config_entry(f"{entry}min_size_in_bytes", "1024")
        try:
            session = onnxruntime().InferenceSession(str(side.path), options, providers=[CPU])
            runs = self._run(session, self._models[index])
        except OrtPluginError:
            raise
        except Exception as error:  # ONNX Runtime's own classes have no common base
            what = "optimized model" if index else "original"
            raise VerificationError(f"the {what} does not run to be profiled: {one_line(error)}") from error
        events = json.loads(Path(session.end_profiling()).read_text(errors="replace"))
        made = onnx.load(optimized, load_external_data=False)
        return timeline(events, made, self._models[index], runs)

    def _run(self, session: Any, model: ModelProto) -> int:
        """How many of the last runs count."""
        names = [value.name for value in session.get_outputs()]
        if self._case is None:
            self._case = self._first_that_runs(session, names)
        feeds = as_wanted(self._case.feeds, model)
        for _ in range(_WARM_UP):
            run_on_host(session, feeds, names)
        most = min(_MOST_RUNS, _EVENTS // max(1, sum(1 for _ in walk_nodes(model))))
        begun, runs = time.perf_counter(), 0
        while runs < _LEAST_RUNS or (runs < most and time.perf_counter() - begun < _SECONDS):
            run_on_host(session, feeds, names)
            runs += 1
        return runs

    def _first_that_runs(self, session: Any, names: Sequence[str]) -> Case:
        failure: Exception | None = None
        for sizes in CANDIDATES:
            try:
                case = generate(self._models[0], sizes, self._shapes)
                run_on_host(session, case.feeds, names)
            except Exception as error:  # as above
                failure = failure or error
            else:
                return case
        raise VerificationError(
            f"the original does not run on generated inputs: {one_line(failure or '')}; "
            "give its inputs with --inputs data.npz or their shapes with --input-shape"
        ) from failure


def timeline(events: Iterable[Event], made: ModelProto, model: ModelProto, runs: int) -> Timeline:
    """What the last `runs` runs took.

    Args:
        events: of ONNX Runtime's profile.
        made: the model as ONNX Runtime optimized it.
        model: as it was given to it.
        runs: how many of the last ones count.
    """
    spans = sorted((each for each in events if "dur" in each), key=lambda each: (each["ts"], -each["dur"]))
    whole = [each for each in spans if each["name"] == "model_run"][-runs:]
    own = _own_times([each for each in spans if each["name"].endswith(_SUFFIX)])
    times: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0] * len(whole))
    sizes: Counter[tuple[str, str]] = Counter()
    for event, microseconds in own:
        run = next((i for i, each in enumerate(whole) if 0 <= event["ts"] - each["ts"] <= each["dur"]), None)
        if run is not None:
            key = event["name"].removesuffix(_SUFFIX), event["args"].get("op_name", "?")
            times[key][run] += microseconds / 1e3
            sizes[key] += int(event["args"].get("output_size", 0))
    nodes = _made_nodes(made, times)
    trace = _Trace(made, model)
    found = []
    for key, each in times.items():
        node = nodes.get(key)
        domain = "ai.onnx" if node is None or not node.domain else node.domain
        origins = () if node is None else trace.origins(node)
        shown = origins[0].rpartition(" (")[0] if key[0].startswith(_UNNAMED) and origins else key[0]
        found.append(NodeTime(shown, f"{domain}::{key[1]}", statistics.median(each), sizes[key] // len(whole), origins))
    found.sort(key=lambda each: (-each.ms, each.node))
    return Timeline(statistics.median(each["dur"] / 1e3 for each in whole), len(whole), tuple(found))


def _own_times(spans: Sequence[Event]) -> list[tuple[Event, float]]:
    """Each event with its microseconds, without those of the events within it: nodes in bodies have their own."""
    own = [float(each["dur"]) for each in spans]
    around: list[int] = []
    for index, each in enumerate(spans):
        while around and spans[around[-1]]["ts"] + spans[around[-1]]["dur"] < each["ts"] + each["dur"]:
            around.pop()
        if around:
            own[around[-1]] -= each["dur"]
        if spans[index]["args"].get("op_name") in ("If", "Loop", "Scan"):
            around.append(index)
    return [(each, max(time, 0.0)) for each, time in zip(spans, own, strict=True)]


def _made_nodes(made: ModelProto, keys: Iterable[tuple[str, str]]) -> dict[tuple[str, str], NodeProto]:
    """The nodes of the profile. Nodes without a name go by type and number there, in the order in which they run."""
    named = {(node.name, node.op_type): node for node in walk_nodes(made) if node.name}
    unnamed: dict[str, list[NodeProto]] = defaultdict(list)
    for node in walk_nodes(made):
        if not node.name:
            unnamed[node.op_type].append(node)
    waiting: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for key in keys:
        if key not in named:
            waiting[key[1]].append(key)
    for op, numbered in waiting.items():
        if len(numbered) == len(unnamed[op]):
            named.update(zip(numbered, unnamed[op], strict=True))
    return named


class _Trace:
    """From nodes that ONNX Runtime made to those of the model."""

    def __init__(self, made: ModelProto, model: ModelProto) -> None:
        self._makers: dict[str, NodeProto] = {}
        self._names: dict[str, NodeProto] = {}
        self._constants = {tensor.name for graph in walk_graphs(model.graph) for tensor in graph.initializer} | {""}
        for node in walk_nodes(model):
            self._names.setdefault(node.name, node)
            self._makers.update((output, node) for output in node.output if output)
            if all(name in self._constants for name in node.input) and not any(bodies(node)):
                self._constants.update(node.output)
        self._known: dict[str, str] = {}  # values of ONNX Runtime's own layout to the model's
        for node in walk_nodes(made):
            moved = node.op_type in ("ReorderInput", "ReorderOutput") and bool(node.input)
            name = self._value(node.input[0]) if moved else node.name.partition("_nchwc")[0]
            if name in self._makers or moved:
                self._known.update((output, name) for output in node.output if output not in self._makers)

    def origins(self, node: NodeProto) -> tuple[str, ...]:
        """Labels of the model's nodes in whose place the node stands, the one of its output first."""
        name = next((name for name in map(self._value, node.output) if name in self._makers), None)
        first = self._names.get(node.name) if name is None and node.name else self._makers.get(name or "")
        if first is None or node.op_type in ("ReorderInput", "ReorderOutput"):
            return ()
        read = set(map(self._value, node.input))
        found, waiting = {node_label(first): None}, [first]
        while waiting:
            for value in waiting.pop().input:
                if value in read or value in self._constants:
                    continue
                maker = self._makers.get(value)
                if maker is None or len(found) > _COVERED:  # what it reads has names of ONNX Runtime's own
                    return (node_label(first),)
                if node_label(maker) not in found:
                    found[node_label(maker)] = None
                    waiting.append(maker)
        return tuple(found)

    def _value(self, name: str) -> str:
        return self._known.get(name, name)
