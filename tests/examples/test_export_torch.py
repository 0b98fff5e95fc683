"""From PyTorch to a session in three lines: the operators are ours, the outputs PyTorch's."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import ortplugin

torch = pytest.importorskip("torch", reason="PyTorch is not installed; install the extra 'torch'")
pytest.importorskip("onnxscript", reason="onnxscript is not installed; install the extra 'torch'")


def test_a_module(
  example: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
  made, optimize = [], ortplugin.optimize

  def kept(model: Any) -> Any:
    made.append(optimize(model))
    return made[-1]

  monkeypatch.setattr(ortplugin, "optimize", kept)
  torch.manual_seed(0)
  example("export_torch").main()
  ((model, _),) = made
  ours = {node.op_type for node in model.graph.node if node.domain == "ortplugin"}
  assert {"FusedConv", "FusedLayerNorm"} <= ours
  found = re.search(r"largest difference from PyTorch: (\S+)", capsys.readouterr().out)
  assert found
  assert float(found[1]) < 1e-5


def test_an_open_length(example: Callable[[str], ModuleType]) -> None:
  module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.LayerNorm(8)).eval()
  shapes = {"dynamic_shapes": ({0: torch.export.Dim("rows", min=1)},), "verbose": False}
  session = example("export_torch").optimized_session(module, (torch.rand(3, 8),), **shapes)
  for rows in (1, 7):
    x = torch.rand(rows, 8)
    (y,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    np.testing.assert_allclose(y, module(x).detach().numpy(), rtol=1e-5, atol=1e-5)
