"""The exported models of tests/data and what is said of them, compressed: exporters write the same again and again.

The programs that wrote and packed them, with the exporters of PyTorch, Keras, scikit-learn and Paddle, are
models/export_tiny.py, models/architectures and models/packed.py of commit a96253484c94. Since then the archive is a
line of JSON, {path: bytes}, before the files, those of many architectures last, and names of nodes, which are all
alike, are not in it. Models are not as protobuf writes them, with the length of each message before it, but as `_read`
says, and have 0 for their bytes. The weights of scikit-learn's models and biases of 4 channels are of 5 bits.
"""

import bz2
import io
import json
import math
import struct
import zlib
from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper
from google.protobuf.descriptor import FieldDescriptor

from models.names import unpack_names
from ortplugin.graph.messages import walk_tensors

ARCHIVE = Path(__file__).resolve().parent.parent / "tests" / "data" / "models.bz2"
MANY = "architectures/"  # models without names of nodes


def unpack(folder, many=False):
  """Writes every file to `folder`, "lerp/<name>.onnx" into its own; of those of many architectures all or none."""
  archive = io.BytesIO(bz2.decompress(ARCHIVE.read_bytes()))
  for name, size in json.loads(archive.readline()).items():
    if name.startswith(MANY) and not many:
      break
    content = archive.read(size) if size else _read(archive, onnx.ModelProto())
    if name.startswith(MANY) == many:
      path = folder / name.removeprefix(MANY)
      path.parent.mkdir(parents=True, exist_ok=True)
      path.write_bytes(content if size else _whole(content, named=not many))


def _read(archive, message):
  """The message with its fields: of each the number plus 128 and the value, and 0 after the last.

  Strings end with 0; before bytes, and before the numbers of a repeated field, is how many they are.
  """
  while number := archive.read(1)[0]:
    field = message.DESCRIPTOR.fields_by_number[number - 128]
    value = getattr(message, field.name)
    repeated = hasattr(value, "extend")
    if field.type == FieldDescriptor.TYPE_MESSAGE:
      inner = value.add() if repeated else value
      inner.SetInParent()  # it may be empty
      _read(archive, inner)
    elif repeated:
      alone = field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
      value.extend([_value(archive, field.type) for _ in range(1 if alone else _integer(archive))])
    else:
      setattr(message, field.name, _value(archive, field.type))
  return message


def _value(archive, kind):
  if kind == FieldDescriptor.TYPE_STRING:
    end = archive.getvalue().index(0, archive.tell())
    return archive.read(end + 1 - archive.tell())[:-1].decode()
  if kind == FieldDescriptor.TYPE_BYTES:
    return archive.read(_integer(archive))
  return struct.unpack("<f", archive.read(4))[0] if kind == FieldDescriptor.TYPE_FLOAT else _integer(archive)


def _integer(archive):
  """Seven bits in each byte, the lowest first; the top bit says that more follow. 64 bits are a negative number."""
  value = shift = 0
  more = True
  while more:
    byte = archive.read(1)[0]
    more = byte > 127
    value |= (byte & 127) << shift
    shift += 7
  return value - (value >> 63 << 64)


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


def _whole(proto, named):
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
