"""The configuration that docs/deploy.md shows for Triton Inference Server, by Triton's own schema."""

import re

import pytest
from example_model import EXAMPLES
from google.protobuf import text_format

from ortplugin.session.core import LIBRARY


def test_the_configuration():
  page = (EXAMPLES.parent / "docs" / "deploy.md").read_text()
  (text,) = re.findall(r'^```\n(name: ".*?)^```', page, flags=re.DOTALL | re.MULTILINE)
  pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed; install the extra 'examples'")
  from tritonclient.grpc import model_config_pb2 as schema

  config = text_format.Parse(text, schema.ModelConfig())
  assert f"{config.name}/1/model.onnx" in page
  assert config.backend == "onnxruntime"
  (path,) = config.model_operations.op_library_filename
  assert path == f"/opt/models/{LIBRARY}"
  with pytest.raises(text_format.ParseError, match="no field named"):
    text_format.Parse(text.replace("op_library_filename", "op_library"), schema.ModelConfig())
