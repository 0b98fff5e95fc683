"""Original against optimized in ONNX Runtime, with the library registered, on each execution provider present.

What is run and compared is judge.py's, in a process of its own (judge_process.py); here are the models' files, the
choice of providers and the verdict.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from onnx import ModelProto, TensorProto

from ..errors import VerificationError
from ..graph import DOMAIN, walk_graphs, walk_nodes
from ..graph.messages import walk_tensors
from ..model.input_shapes import Shapes
from ..model.storage import save_model
from ..report import Profile, ProviderVerification, Timing
from ..session import CPU, available_providers, check_device, resolve_provider
from .compare import Tolerance
from .inputs import load_inputs, without_weights
from .judge import Question, Side
from .judge_process import JudgeProcess

__all__ = ["Tolerance", "Verifier"]


class Verifier:
  """Compares models with one original. Close it at the end (`contextlib.closing`): it keeps a process with the
  sessions, and a temporary folder.

  Args:
      original: the model to compare with.
      path: its file, if it has one; otherwise it is written to the temporary folder.
      providers: where to compare; None takes the CPU, and CUDA where it is present.
      device_id: of the GPU, on CUDA.
      inputs: the user's arrays or .npz file, to compare on besides generated inputs.
      input_shapes: input name to shape, for the generated inputs.
      tolerance: the user's.
      timed: whether to time the two models as well.
      progress: called with a few words at each step.
  """

  def __init__(
    self,
    original: ModelProto,
    *,
    path: Path | None = None,
    providers: Sequence[str] | None = None,
    device_id: int = 0,
    inputs: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    input_shapes: Shapes | None = None,
    tolerance: Tolerance | None = None,
    timed: bool = True,
    progress: Callable[[str], None] | None = None,
  ) -> None:
    self._chosen = providers is not None
    names = available_providers() if providers is None else [resolve_provider(name) for name in providers]
    self._providers = list(dict.fromkeys(sorted(names, key=lambda name: name != CPU)))  # the CPU first
    check_device(device_id, self._providers)
    user_case = None if inputs is None else load_inputs(inputs, original)
    self._timed = timed
    self._folder = tempfile.TemporaryDirectory(prefix="ortplugin-")
    side = self._write(original, "original.onnx") if path is None else _side(original, path)
    light = without_weights(original).SerializeToString()
    tolerance = replace(tolerance or Tolerance(), computed=computed_in(original))
    question = Question(side, light, user_case, input_shapes, tolerance, device_id)
    say = progress or (lambda _: None)
    self._verified: Side | None = None
    self._judge = JudgeProcess(question, lambda step: say(step.text))

  def close(self) -> None:
    """Ends the process and removes the temporary folder."""
    self._judge.close()
    self._folder.cleanup()

  def verify(self, optimized: ModelProto) -> list[ProviderVerification]:
    """Compares `optimized` with the original on every provider: on CUDA plain runs and replays of CUDA graphs.

    Raises VerificationError if that can't be done.
    """
    side = self._verified = self._write(optimized, "optimized.onnx")
    results: list[ProviderVerification] = []
    for provider in self._providers:
      try:
        self._judge.load_original(provider)
      except VerificationError as error:
        # bfloat16 models, say, often have no kernels on the CPU: another provider will do, unless asked for.
        if self._chosen or len(self._providers) == 1:
          raise
        results.append(ProviderVerification(provider, (), skipped=str(error)))
        continue
      if lacking := self._judge.lacking_kernels(provider, side):
        if self._chosen or len(self._providers) == 1:
          raise VerificationError(lacking)
        results.append(ProviderVerification(provider, (), skipped=lacking))
        continue
      results.append(self._judge.verify(provider, side, self._timed))
    if all(result.skipped for result in results):
      raise VerificationError(results[0].skipped)
    return results

  def profile(self) -> Profile:
    """Where the original and what was verified last, if anything was, spend their time on the CPU."""
    if CPU not in self._providers:
      why = "ONNX Runtime's profile holds launches of GPU kernels, not the kernels, and the CPU is left out"
      return Profile(self._providers[0], skipped=why)
    folder = Path(self._folder.name)
    try:
      name, original = self._judge.profile(None, folder)
      optimized = None if self._verified is None else self._judge.profile(self._verified, folder)[1]
    except VerificationError as error:
      return Profile(CPU, skipped=str(error))
    return Profile(CPU, name, original, optimized)

  def agrees(self, candidate: ModelProto, provider: str) -> bool:
    """Whether `candidate` agrees with the original on `provider`, on every case, plain and in CUDA graphs."""
    return self._judge.agrees(provider, self._write(candidate, "candidate.onnx"))

  def times(self, candidate: ModelProto, provider: str) -> tuple[Timing, ...]:
    """The original and `candidate` in turns, in each mode in which both run; none where that can't be done."""
    return self._judge.times(provider, self._write(candidate, "candidate.onnx"))

  def _write(self, model: ModelProto, name: str) -> Side:
    path = Path(self._folder.name) / name
    save_model(model, path, durable=False)
    return _side(model, path)


def computed_in(model: ModelProto) -> str | None:
  """The coarsest precision that values of the model have: "bf16", "fp16" or "tf32"; None where none has so few bits.

  Verification allows for that one's rounding: outputs are often cast back to float32 at the end.
  """
  found = {tensor.data_type for tensor, _ in walk_tensors(model)}
  for graph in walk_graphs(model.graph):
    for value in (*graph.input, *graph.output, *graph.value_info):
      found.add(value.type.tensor_type.elem_type)
  allows_tf32 = False
  for node in walk_nodes(model):
    for attribute in node.attribute:
      if attribute.name == "to" and node.op_type == "Cast":
        found.add(attribute.i)
      elif attribute.name == "program" and node.domain == DOMAIN:
        names = set(re.findall(r"\w+", attribute.s.decode(errors="replace")))
        found |= {kind for kind, name in _COARSE.items() if name in names}
      elif attribute.name == "allow_tf32" and node.domain == DOMAIN:
        allows_tf32 = allows_tf32 or attribute.i != 0
  if TensorProto.BFLOAT16 in found:
    return "bf16"
  return "fp16" if TensorProto.FLOAT16 in found else "tf32" if allows_tf32 else None


_COARSE = {TensorProto.FLOAT16: "float16", TensorProto.BFLOAT16: "bfloat16"}  # names as in programs


def _side(model: ModelProto, path: Path) -> Side:
  plugin = any(node.domain == DOMAIN for node in walk_nodes(model))
  floats = any(tensor.data_type == TensorProto.FLOAT and len(tensor.dims) >= 2 for tensor in model.graph.initializer)
  return Side(path, plugin, floats)
