"""The examples as modules, and a tiny model for them."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import onnx
import onnx.parser
import pytest
from example_model import EXAMPLES, MODEL

import ortplugin


@pytest.fixture(scope="session")
def model(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
  """An optimized model of images."""
  optimized, _ = ortplugin.optimize(onnx.parser.parse_model(MODEL))
  assert any(node.domain == "ortplugin" for node in optimized.graph.node)
  path = tmp_path_factory.mktemp("model") / "fast.onnx"
  onnx.save(optimized, path)
  return path


@pytest.fixture(scope="session")
def example() -> Callable[[str], ModuleType]:
  """An example's module by its name."""

  def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

  return load


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
  """Of child processes: they import the same ortplugin as the tests, and the examples by name."""
  package = Path(ortplugin.__file__).parent.parent
  return {**os.environ, "PYTHONPATH": os.pathsep.join([str(package), str(EXAMPLES)])}
