"""Makes the examples importable, and a tiny model for them."""

import sys

import onnx
import onnx.parser
import pytest
from example_model import EXAMPLES, MODEL

import ortplugin

sys.path.append(str(EXAMPLES))


@pytest.fixture(scope="session")
def model(library, tmp_path_factory):
  optimized, _ = ortplugin.optimize(onnx.parser.parse_model(MODEL))
  assert any(node.domain == "ortplugin" for node in optimized.graph.node)
  path = tmp_path_factory.mktemp("model") / "fast.onnx"
  onnx.save(optimized, path)
  return path
