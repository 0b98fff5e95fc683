"""The configuration that docs/deploy.md shows for Triton Inference Server, by Triton's own schema."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

import pytest
from example_model import EXAMPLES
from google.protobuf import text_format

from ortplugin.session.core import LIBRARY

PAGE = (EXAMPLES.parent / "docs" / "deploy.md").read_text()
(CONFIG,) = re.findall(r'^```\n(name: ".*?)^```', PAGE, flags=re.DOTALL | re.MULTILINE)


def test_the_library_is_named_by_its_path() -> None:
  (path,) = re.findall(r'op_library_filename: "(.*)"', CONFIG)
  assert PurePosixPath(path).is_absolute()
  assert PurePosixPath(path).name == LIBRARY


def test_the_configuration() -> None:
  reason = "tritonclient is not installed; install the extra 'examples'"
  pytest.importorskip("tritonclient.grpc", reason=reason)
  schema = pytest.importorskip("tritonclient.grpc.model_config_pb2", reason=reason)
  config = text_format.Parse(CONFIG, schema.ModelConfig())
  assert f"{config.name}/1/model.onnx" in PAGE
  assert config.backend == "onnxruntime"
  assert [PurePosixPath(path).name for path in config.model_operations.op_library_filename] == [LIBRARY]
  assert [group.kind for group in config.instance_group] == [schema.ModelInstanceGroup.KIND_GPU]
  with pytest.raises(text_format.ParseError, match="no field named"):
    text_format.Parse(CONFIG.replace("op_library_filename", "op_library"), schema.ModelConfig())
