"""The exported models of tests/data and what is said of them, compressed: exporters write the same again and again.

The programs that wrote and packed them, with the exporters of PyTorch, Keras, scikit-learn and Paddle, are
models/export_tiny.py, models/architectures and models/packed.py of commit a96253484c94. Since then the archive is a
line of JSON, {path: bytes}, before the files, and names of nodes, which are all alike, are not in it.
"""

import bz2
import json
import math
import zlib
from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper

from models.names import unpack_names
from ortplugin.graph.messages import walk_tensors

ARCHIVE = Path(__file__).resolve().parent.parent / "tests" / "data" / "models.bz2"
MANY = "architectures/"  # models without names of nodes


def unpack(folder, many=False):
  """Writes every file to `folder`, "lerp/<name>.onnx" into its own; of those of many architectures all or none."""
  with bz2.open(ARCHIVE) as archive:
    for name, size in json.loads(archive.readline()).items():
      data = archive.read(size)
      if name.startswith(MANY) != many:
        continue
      path = folder / name.removeprefix(MANY)
      path.parent.mkdir(parents=True, exist_ok=True)
      path.write_bytes(_whole(data, named=not many) if path.suffix == ".onnx" else data)


WEIGHTS = {onnx.TensorProto.FLOAT: np.float32, onnx.TensorProto.FLOAT16: np.float16}


def _made(tensor, ends):
  """The tensor's weights, between two numbers, which come first, as its name and shape give them.

  SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
  """
  shape = tuple(tensor.dims)
  start = np.uint64(zlib.crc32(f"{tensor.name}{shape}".encode())) << np.uint64(32)
  z = (np.arange(1, math.prod(shape) + 1, dtype=np.uint64) + start) * np.uint64(0x9E3779B97F4A7C15)
  z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
  z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
  low, high = ends.astype(np.float64)
  values = (low + (high - low) * ((z >> np.uint64(40)).astype(np.float64) / 2**24)).astype(ends.dtype)
  values[:2] = ends
  return values.reshape(shape)


def _whole(data, named):
  proto = onnx.ModelProto.FromString(data)
  unpack_names(proto, named)
  for tensor, _ in walk_tensors(proto):
    if tensor.data_type in WEIGHTS and math.prod(tensor.dims) >= 8:  # fewer are factors and limits
      _fill(tensor)
  return bytes(proto.SerializeToString(deterministic=True))


def _ends(tensor):
  return np.frombuffer(tensor.raw_data, WEIGHTS[tensor.data_type])[:2]


def _fill(tensor):
  if len(tensor.raw_data) == _ends(tensor).nbytes > 0:
    tensor.raw_data = _made(tensor, _ends(tensor)).tobytes()
