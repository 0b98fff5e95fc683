"""The loop: passes in order until nothing changes."""

from collections.abc import Mapping, Sequence

import onnx_graphsurgeon as gs
from onnx import ModelProto, TensorProto

from ..errors import ModelError, OrtPluginError
from ..graph import import_model, walk_nodes
from ..graph.convert import lighten, put_back
from ..graph.disputed import settle
from ..graph.export import export_model
from ..model.annotate import annotate
from ..model.checks import contradiction
from ..passes.base import Change, NearMiss, Pass, PassResult
from ..precision.convert import ConvertPrecision
from .options import Progress
from .pipeline import Stage, stage_of

# A pass is idempotent, but may open the way for an earlier one. Models need two to four rounds; a Swin from TorchScript
# needs eight: what it knows of each stage's shapes comes from the stage before. An Encodec with two stages needs
# thirty. However deep a model is, each such round leaves fewer nodes, so only the other rounds count: they alone could
# go on for ever. A limit on all of them would stop halfway, and optimizing again would change what it left.
MAX_ROUNDS = 16


class PassError(Exception):
  """A pass failed: a defect of this package, not of the model."""

  def __init__(self, name: str, before: Sequence[str], error: Exception) -> None:
    self.step = name
    ran = ", ".join(dict.fromkeys(before)) or "none"
    super().__init__(f"the pass '{name}' failed after rewrites by {ran}: {error}; --skip {name} leaves it out")


def run_stages(
  model: ModelProto, stages: Sequence[Sequence[Pass]], limit: int | None = None, progress: Progress | None = None
) -> tuple[ModelProto, list[Change], list[NearMiss]]:
  """`run_passes` of each stage on what the one before made. Near misses are those of conversions and the last.

  Where a pass fails on a model that contradicts itself, the error says that, and no defect of ours.
  """
  changes: list[Change] = []
  misses: list[NearMiss] = []
  result, weights = lighten(model)
  for number, stage in enumerate(stages):
    left = None if limit is None else limit - len(changes)
    try:
      result, made, missed = run_passes(result, stage, left, progress, weights)
    except PassError as error:
      if wrong := contradiction(model):
        raise ModelError(f"it is not valid ONNX, so that the pass '{error.step}' fails: {wrong}") from error
      raise
    changes += made
    if number == len(stages) - 1 or any(isinstance(step, ConvertPrecision) for step in stage):
      misses += missed
  put_back(result, weights)
  return result, changes, list(dict.fromkeys(misses))


def run_passes(
  model: ModelProto,
  passes: Sequence[Pass],
  limit: int | None = None,
  progress: Progress | None = None,
  weights: Mapping[str, TensorProto] | None = None,
) -> tuple[ModelProto, list[Change], list[NearMiss]]:
  """`model` after `passes`, with the changes in order and the near misses that remain.

  Passes run in rounds until one changes nothing, or until MAX_ROUNDS of them have left no fewer nodes. Each round
  imports what the one before exported, so the last round is what a second call would do first: optimizing an
  optimized model changes nothing, by construction.

  Args:
      model: not changed.
      passes: in order.
      limit: stop after so many changes; the first `limit` ones are the same for every limit.
      progress: told the name of each pass as it starts.
      weights: the data that initializers of `model` lack; the result lacks them, too.
  """
  changes: list[Change] = []
  misses: list[NearMiss] = []
  result = model
  size, rounds = _size(result), 0
  while rounds < MAX_ROUNDS:
    graph = import_model(result, weights)
    annotate(graph)
    settle(graph)
    found = len(changes)
    misses = []
    for step in passes:
      left = None if limit is None else limit - len(changes)
      if left == 0:
        break
      if Stage.QUIET_ROUND in stage_of(step) and len(changes) > found:
        continue
      if progress is not None:
        progress(step.name)
      outcome = _run_pass(step, graph, left, changes)
      changes += outcome.changes
      misses += outcome.near_misses
    if len(changes) == found:
      break
    annotate(graph)
    settle(graph)
    result = export_model(graph, result)
    before, size = size, _size(result)
    rounds += size >= before
  if result is model:  # nothing to do is nothing changed, to the byte
    result = ModelProto()
    result.CopyFrom(model)
  return result, changes, list(dict.fromkeys(misses))


def _size(model: ModelProto) -> int:
  return sum(1 for _ in walk_nodes(model))


def _run_pass(step: Pass, graph: gs.Graph, limit: int | None, before: Sequence[Change]) -> PassResult:
  try:
    return step(graph, limit)
  except OrtPluginError:
    raise
  except Exception as error:
    raise PassError(step.name, [change.rewrite for change in before], error) from error
