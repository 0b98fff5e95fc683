"""The exported models of tests/data and what is said of them, compressed: exporters write the same again and again.

Files in it are sorted and carry no times or owners, so that the same models make the same archive. To add a model:
`unpack`, `strip` and `shorten` it, say in the JSON what is to know of it, `pack`. The programs that wrote what is
there, with the exporters of PyTorch, Keras, scikit-learn and Paddle, are models/export_tiny.py and models/architectures
of commit a96253484c94.
"""

import bz2
import io
import math
import tarfile
import zlib
from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper

from models.names import pack_names, shorten_names, unpack_names
from ortplugin.graph.messages import walk_tensors

ARCHIVE = Path(__file__).resolve().parent.parent / "tests" / "data" / "models.tar.bz2"


def unpack(folder, source=ARCHIVE):
  """Writes every file to `folder`, "lerp/<name>.onnx" into its own."""
  with tarfile.open(source) as archive:
    for member in archive:
      data = archive.extractfile(member)
      assert data is not None
      path = folder / member.name
      path.parent.mkdir(parents=True, exist_ok=True)
      path.write_bytes(_whole(data.read()) if path.suffix == ".onnx" else data.read())


def pack(folder, target=ARCHIVE):
  """Makes the archive of all models in `folder`, and of the JSON that says of each what there is to know."""
  raw = io.BytesIO()
  with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as archive:
    for path in sorted((*folder.rglob("*.onnx"), *folder.glob("*.json"))):
      member = tarfile.TarInfo(path.relative_to(folder).as_posix())
      data = _short(path.read_bytes()) if path.suffix == ".onnx" else path.read_bytes()
      member.size = len(data)
      archive.addfile(member, io.BytesIO(data))
  target.write_bytes(bz2.compress(raw.getvalue()))  # 5% smaller than xz


def strip(message):
  """Empties every doc_string and metadata_props in a protobuf message, however deep."""
  for name in ("doc_string", "metadata_props"):
    if name in message.DESCRIPTOR.fields_by_name:
      message.ClearField(name)
  for descriptor, value in message.ListFields():
    if descriptor.message_type is None:
      continue
    for item in value if hasattr(value, "__len__") and not hasattr(value, "DESCRIPTOR") else (value,):
      strip(item)


def shorten(proto):
  """For a smaller archive: short weights, short names, and of a model whose inputs have no open lengths no shapes of
  values, which follow from those. A second time changes nothing."""
  dims = (dim for each in proto.graph.input for dim in each.type.tensor_type.shape.dim)
  if all(dim.HasField("dim_value") for dim in dims):
    del proto.graph.value_info[:]
  shorten_names(proto)
  shorten_weights(proto)  # by their names


WEIGHTS = {onnx.TensorProto.FLOAT: np.float32, onnx.TensorProto.FLOAT16: np.float16}


def shorten_weights(proto):
  """For a smaller archive: weights in float32 and float16 become made ones of about the same mean and deviation."""
  for tensor, _ in walk_tensors(proto):
    if not _may_be_made(tensor) or _is_made(tensor):
      continue
    values = onnx.numpy_helper.to_array(tensor).astype(np.float32)
    if np.isfinite(values).all() and len(np.unique(values)) > min(8, values.size // 2):  # fewer are a mask
      mean, spread = values.mean(), values.std() * 3**0.5
      if abs(mean) < spread / 2:  # so many have the same two numbers
        mean, ends = 0, np.array([-spread, spread], np.float32)
      else:
        ends = np.clip([mean - spread, mean + spread], values.min(), values.max()).astype(np.float32)
      short = (ends.view(np.uint32) & np.uint32(0xFFC00000)).view(np.float32).astype(WEIGHTS[tensor.data_type])
      tensor.CopyFrom(onnx.numpy_helper.from_array(_made(tensor, short), tensor.name))


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


def _short(data):
  """A model as it stands in an archive."""
  proto = onnx.ModelProto.FromString(data)
  _change_weights(proto, _empty)  # by their names
  pack_names(proto)
  return bytes(proto.SerializeToString(deterministic=True))


def _whole(data):
  proto = onnx.ModelProto.FromString(data)
  unpack_names(proto)
  _change_weights(proto, _fill)
  return bytes(proto.SerializeToString(deterministic=True))


def _change_weights(proto, change):
  for tensor, _ in walk_tensors(proto):
    if _may_be_made(tensor):
      change(tensor)


def _may_be_made(tensor):
  return tensor.data_type in WEIGHTS and math.prod(tensor.dims) >= 8  # fewer are factors and limits


def _ends(tensor):
  return np.frombuffer(tensor.raw_data, WEIGHTS[tensor.data_type])[:2]


def _is_made(tensor):
  return len(_ends(tensor)) == 2 and tensor.raw_data == _made(tensor, _ends(tensor)).tobytes()


def _empty(tensor):
  """Leaves the two numbers between which made weights lie."""
  if _is_made(tensor):
    tensor.raw_data = _ends(tensor).tobytes()


def _fill(tensor):
  if len(tensor.raw_data) == _ends(tensor).nbytes > 0:
    tensor.raw_data = _made(tensor, _ends(tensor)).tobytes()
