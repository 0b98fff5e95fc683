"""The examples as modules, and a tiny model for them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import onnx
import onnx.parser
import pytest
from example_model import EXAMPLES, MODEL

import ortplugin


@pytest.fixture(scope="session")
def model(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
  optimized, _ = ortplugin.optimize(onnx.parser.parse_model(MODEL))
  assert any(node.domain == "ortplugin" for node in optimized.graph.node)
  path = tmp_path_factory.mktemp("model") / "fast.onnx"
  onnx.save(optimized, path)
  return path


@pytest.fixture(scope="session")
def example() -> Iterator[Callable[[str], ModuleType]]:
  """An example's module by its name."""
  with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(EXAMPLES))
    yield importlib.import_module
