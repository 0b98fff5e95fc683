"""Reading a model safely and writing one atomically.

Reading: a file that is missing, empty, truncated or no ONNX model is a ModelError of one line. Weights outside the
model file are opened component by component below the model's folder, following no link, and their offset and length
are checked against the tensor and the file before a byte is allocated.

Writing: into a temporary file of the same folder, flushed to disk, then renamed over the output; the folder is flushed
as well. Whatever stops it, an old output stays whole and no partial one appears. The input is never written to.

A model over 2 GiB does not fit a protobuf message, so its weights go to a second file. Two files can't be replaced in
one step; the data file is therefore named after its contents, `<output>.<16 hexadecimal digits>.data`, which leaves
the old output's data in place until the new model file, the commit point, is there. Files of that name pattern belong
to the output of that name: those of its former versions are removed afterwards.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import GraphProto, ModelProto, TensorProto

from ..errors import ModelError, StorageError, UsageError
from ..graph import walk_graphs
from ..graph.messages import copy_fields, walk_tensors
from .checks import HEAVY, byte_count, check_structure, check_tensors
from .normalise import normalise

PathLike = str | os.PathLike[str]

PROTOBUF_LIMIT = 2**31 - 1  # bytes that one protobuf message may have
_ALIGNMENT = 4096  # of a tensor in the data file, so that ONNX Runtime can map it into memory
_CHUNK = 2**30  # bytes read at a time: Linux reads at most 2^31 - 4096 in one call
_OVERLAP_FACTOR, _OVERLAP_FLOOR = 16, 2**30  # tensors may share data, but not blow a file up without bound


@dataclass(frozen=True)
class StoredModel:
  """A model read from disk.

  Attributes:
      proto: the model, with all weights in memory.
      path: the file it came from.
      data_files: the files that its external data came from; empty when the model is one file.
  """

  proto: ModelProto
  path: Path
  data_files: tuple[Path, ...] = ()

  @property
  def files(self) -> tuple[Path, ...]:
    """Every file of the model: what an output must not replace."""
    return (self.path, *self.data_files)


# ---- reading


def load_model(path: PathLike) -> ModelProto:
  """The model in the file `path` with all its weights; see `load`."""
  return load(path).proto


def load(path: PathLike) -> StoredModel:
  """Reads and checks the model in the file `path`, external data included. Raises ModelError or UsageError."""
  path = Path(path)
  data = _read_file(path)
  model = ModelProto()
  try:
    model.ParseFromString(data)
  except DecodeError as error:
    raise ModelError(f"'{path}' is not an ONNX model, or it is truncated ({len(data)} bytes)") from error
  del data
  if not model.HasField("graph") or not model.opset_import:
    missing = "graph" if not model.HasField("graph") else "opset import"
    raise ModelError(f"'{path}' holds no {missing}: it is truncated or not an ONNX model")
  try:
    files = _load_external_data(model, path)
    check_tensors(model)
    normalise(model)
    check_structure(model)
  except ModelError as error:
    raise ModelError(f"'{path}': {error}") from error
  return StoredModel(model, path, files)


def _read_file(path: Path) -> bytes:
  try:
    # O_NONBLOCK: opening a named pipe must not wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
  except FileNotFoundError as error:
    raise UsageError(f"'{path}' does not exist; check the path") from error
  except (OSError, ValueError) as error:
    raise UsageError(f"'{path}' can't be read: {_reason(error)}") from error
  status = os.fstat(descriptor)
  if not stat.S_ISREG(status.st_mode):
    os.close(descriptor)
    raise UsageError(f"'{path}' is not a regular file; give the path of an .onnx file")
  with os.fdopen(descriptor, "rb") as file:
    if status.st_size == 0:
      raise ModelError(f"'{path}' is empty; export the model again")
    if status.st_size > PROTOBUF_LIMIT:
      raise ModelError(
        f"'{path}' has {status.st_size} bytes, over the 2 GiB of an ONNX file; "
        "save it with external data (onnx.save_model with save_as_external_data=True)"
      )
    try:
      return file.read()
    except OSError as error:
      raise ModelError(f"'{path}' can't be read: {_reason(error)}") from error


@dataclass
class _DataFile:
  """One file of external data: its descriptor, size and the bytes that tensors have asked of it."""

  descriptor: int
  size: int
  asked: int = 0


@dataclass
class _ExternalReader:
  """Opens the files that external data lie in, below one folder only."""

  folder: Path
  files: dict[str, _DataFile] = field(default_factory=dict)

  def open(self, location: str, what: str) -> _DataFile:
    if location not in self.files:
      descriptor = _open_below(self.folder, location, what)
      self.files[location] = _DataFile(descriptor, os.fstat(descriptor).st_size)
    return self.files[location]

  def close(self) -> None:
    for file in self.files.values():
      os.close(file.descriptor)


def _load_external_data(model: ModelProto, path: Path) -> tuple[Path, ...]:
  """Reads every external tensor into its raw_data; returns the files that they came from.

  All of them are checked before the first is read, so that a bad one costs no memory.
  """
  tensors = [(t, what) for t, what in walk_tensors(model) if t.data_location == TensorProto.EXTERNAL]
  if not tensors:
    return ()
  reader = _ExternalReader(path.parent)
  try:
    plan = [(tensor, what, *_locate(tensor, what, reader)) for tensor, what in tensors]
    needed, memory = sum(length for *_, length in plan), _physical_memory()
    if needed > memory:
      raise ModelError(f"its weights take {needed} bytes and this machine has {memory} bytes of memory")
    for tensor, what, file, offset, length in plan:
      tensor.raw_data = _read_range(file.descriptor, offset, length, what)
      tensor.ClearField("data_location")
      del tensor.external_data[:]
  finally:
    reader.close()
  return tuple(path.parent / location for location in reader.files)


def _locate(tensor: TensorProto, what: str, reader: _ExternalReader) -> tuple[_DataFile, int, int]:
  """Where the data of an external tensor lie: (file, offset, length), checked against the tensor and the file."""
  entries = {entry.key: entry.value for entry in tensor.external_data}
  if tensor.data_type == TensorProto.STRING:
    raise ModelError(f"{what} holds strings, which can't be external data")
  expected = byte_count(tensor, what)
  offset = _unsigned(entries.get("offset", "0"), "offset", what)
  length = _unsigned(entries["length"], "length", what) if "length" in entries else expected
  if length != expected:
    raise ModelError(
      f"{what} of shape {list(tensor.dims)} needs {expected} bytes, its external data has the length {length}"
    )
  location = entries.get("location", "")
  file = reader.open(location, what)
  if offset + length > file.size:
    raise ModelError(
      f"{what} lies at bytes {offset} to {offset + length} of '{location}', which has {file.size}; "
      "the file is truncated or belongs to another model"
    )
  file.asked += length
  if file.asked > max(_OVERLAP_FACTOR * file.size, _OVERLAP_FLOOR):
    raise ModelError(f"its tensors ask for more than {_OVERLAP_FACTOR} times the {file.size} bytes of '{location}'")
  return file, offset, length


def _unsigned(text: str, key: str, what: str) -> int:
  if not (text.isascii() and text.isdecimal() and len(text) <= 19):
    raise ModelError(f"{what} has the external data {key} {text[:40]!r}; it must be an integer from 0 to 2^63")
  return int(text)


def _open_below(folder: Path, location: str, what: str) -> int:
  """A descriptor of the regular file `location` below `folder`; no component may be a link or lead upward."""
  parts = [part for part in location.split("/") if part not in ("", ".")]
  if not parts or location.startswith("/") or ".." in parts or "\\" in location or "\0" in location:
    raise ModelError(
      f"{what} has the external data location {location[:200]!r}; "
      "it must be a relative path that stays in the model's folder"
    )
  descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
  for index, part in enumerate(parts):
    last = index == len(parts) - 1
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_NONBLOCK if last else os.O_DIRECTORY)
    parent = descriptor
    try:
      descriptor = os.open(part, flags, dir_fd=parent)
    except FileNotFoundError as error:
      raise ModelError(f"{what} needs '{location}', which is not there; put it beside the model") from error
    except OSError as error:
      linked = error.errno == errno.ELOOP or _is_link(part, parent)
      reason = "goes through a symbolic link" if linked else f"can't be opened: {_reason(error)}"
      remedy = "; copy the file itself into the model's folder" if linked else ""
      raise ModelError(f"{what} needs '{location}', which {reason}{remedy}") from error
    finally:
      os.close(parent)
  status = os.fstat(descriptor)
  if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
    os.close(descriptor)
    kind = "is a hard link" if stat.S_ISREG(status.st_mode) else "is not a regular file"
    raise ModelError(f"{what} needs '{location}', which {kind}; copy the file itself into the model's folder")
  return descriptor


def _is_link(name: str, folder: int) -> bool:
  try:
    return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
  except OSError:
    return False


def _read_range(descriptor: int, offset: int, length: int, what: str) -> bytes:
  chunks = []
  while length:
    try:
      chunk = os.pread(descriptor, min(length, _CHUNK), offset)
    except OSError as error:
      raise ModelError(f"the data of {what} can't be read: {_reason(error)}") from error
    if not chunk:
      raise ModelError(f"the data of {what} ended while they were read")
    chunks.append(chunk)
    offset += len(chunk)
    length -= len(chunk)
  return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _physical_memory() -> int:
  return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


# ---- writing


def check_output(path: PathLike, protect: Iterable[Path] = ()) -> None:
  """Raises UsageError or StorageError when `path` can't or must not be written; call it before long work.

  Args:
      path: the output.
      protect: files that it must not replace, by any of their names: the input and its data files.
  """
  try:
    _check_output(Path(path), protect)
  except (OSError, ValueError) as error:  # no permission to look into a folder, a name that is too long
    raise StorageError(f"the output '{path}' can't be examined: {_reason(error)}; choose another one") from error


def _check_output(path: Path, protect: Iterable[Path]) -> None:
  if not path.name or path.is_dir():
    raise UsageError(f"the output '{path}' is a folder; give a file name, such as '{path / 'optimized.onnx'}'")
  if not path.parent.is_dir():
    raise UsageError(f"the output's folder '{path.parent}' does not exist; create it")
  for file in protect:
    # By path, symbolic link or hard link: samefile compares the file itself.
    same = path.exists() and file.exists() and os.path.samefile(path, file)
    if same or os.path.realpath(path) == os.path.realpath(file):
      raise UsageError(f"the output '{path}' is the input '{file}'; choose another output")
  if path.is_symlink():
    raise UsageError(f"the output '{path}' is a symbolic link; give the path that it leads to")
  if path.exists() and not path.is_file():
    raise UsageError(f"the output '{path}' is not a regular file; choose another output")
  if not os.access(path.parent, os.W_OK | os.X_OK):
    raise StorageError(f"the output's folder '{path.parent}' is not writable; choose another one")


def save_model(
  model: ModelProto, path: PathLike, *, protect: Iterable[Path] = (), external: bool | None = None, durable: bool = True
) -> None:
  """Writes `model` to `path`, whole or not at all. The same model gives the same bytes.

  Args:
      model: not changed.
      path: the output; an old file there is replaced at the end, in one step.
      protect: files that must not be replaced: the input and its data files.
      external: True puts the weights into a second file, False never does, None does it over 2 GiB.
      durable: flush to disk before the rename; only for a file that does not outlive the process is it needless.
  """
  path = Path(path)
  protected = tuple(protect)
  check_output(path, protected)
  try:
    _save(model, path, protected, external, durable)
  except (OSError, MemoryError) as error:
    raise StorageError(
      f"'{path}' can't be written: {_reason(error)}; nothing was changed"
      + ("; free some space" if getattr(error, "errno", 0) in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else "")
    ) from error


def write_text(text: str, path: PathLike, protect: Iterable[Path] = ()) -> None:
  """Writes a text file, whole or not at all; see `save_model`."""
  path = Path(path)
  check_output(path, protect)
  try:
    with _replacing(path, durable=True) as file:
      file.write(text.encode())
  except OSError as error:
    raise StorageError(f"'{path}' can't be written: {_reason(error)}") from error


def _save(model: ModelProto, path: Path, protect: tuple[Path, ...], external: bool | None, durable: bool) -> None:
  rest = ModelProto()
  copy_fields(model, rest, leave_out="graph")
  graph = GraphProto()
  copy_fields(model.graph, graph, leave_out="initializer")
  # (serialised tensor without its raw data, the tensor that has them or None)
  initializers: list[tuple[TensorProto, TensorProto | None]] = []
  for tensor in model.graph.initializer:
    if tensor.HasField("raw_data") and byte_count(tensor, f"initializer '{tensor.name}'") >= HEAVY:
      initializers.append((_without_data(tensor), tensor))
    else:
      initializers.append((tensor, None))
  if external is None:
    external = _model_size(rest, graph, initializers) > PROTOBUF_LIMIT
  if not external:
    if _model_size(rest, graph, initializers) > PROTOBUF_LIMIT:
      raise StorageError(f"'{path}' would be over the 2 GiB of an ONNX file; it needs external data")
    with _replacing(path, durable) as file:
      _write(file, rest, graph, initializers)
    _remove_old_data(path, keep="", protect=protect)
    return
  with _temporary(path, durable) as (data_file, temporary):
    initializers, digest = _write_data(data_file, graph, initializers)
    _finish(data_file, durable)
    name = f"{path.name}.{digest}.data"
    for header, _ in initializers:
      _set_location(header, name)
    for body in walk_graphs(graph):
      for tensor in body.initializer:
        _set_location(tensor, name)
    target = path.parent / name
    check_output(target, protect)
    with _temporary(path, durable) as (model_file, temporary_model):
      _write(model_file, rest, graph, initializers)
      _finish(model_file, durable)
      os.replace(temporary, target)
      _sync_folder(path.parent, durable)
      os.replace(temporary_model, path)
  _sync_folder(path.parent, durable)
  _remove_old_data(path, keep=name, protect=protect)


def _without_data(tensor: TensorProto) -> TensorProto:
  """A copy of `tensor` that lacks raw_data."""
  header = TensorProto(dims=tensor.dims, data_type=tensor.data_type, name=tensor.name)
  if tensor.HasField("doc_string"):
    header.doc_string = tensor.doc_string
  if hasattr(tensor, "metadata_props"):  # since onnx 1.16
    header.metadata_props.extend(tensor.metadata_props)
  return header


# The wire format, as far as it is needed to write weights straight from the tensors to the file: serialising a model
# of 400 MB in memory takes two seconds, this takes a third of one. A length-delimited field is its tag, its length as
# a varint and its bytes; the order of fields is free.
_MODEL_GRAPH = bytes([7 << 3 | 2])
_GRAPH_INITIALIZER = bytes([5 << 3 | 2])
_TENSOR_RAW_DATA = bytes([9 << 3 | 2])


def _varint(value: int) -> bytes:
  result = bytearray()
  while value > 0x7F:
    result.append(value & 0x7F | 0x80)
    value >>= 7
  result.append(value)
  return bytes(result)


def _tensor_parts(header: TensorProto, source: TensorProto | None) -> tuple[bytes, int]:
  """(everything of a serialised initializer that stands before its raw data, the size of the raw data)."""
  body = header.SerializeToString(deterministic=True)
  raw = byte_count(source, f"initializer '{source.name}'") if source is not None else 0
  if source is not None:
    body += _TENSOR_RAW_DATA + _varint(raw)
  return _GRAPH_INITIALIZER + _varint(len(body) + raw) + body, raw


def _model_size(rest: ModelProto, graph: GraphProto, initializers: list[tuple[TensorProto, TensorProto | None]]) -> int:
  """An upper bound of the bytes that `_write` writes."""
  parts = (_tensor_parts(header, source) for header, source in initializers)
  weights = sum(len(start) + raw for start, raw in parts)
  bodies = 0
  for body in walk_graphs(graph):
    bodies += sum(byte_count(tensor, f"initializer '{tensor.name}'") for tensor in body.initializer)
  if weights + bodies > PROTOBUF_LIMIT:
    return weights + bodies  # the graph itself might not serialise
  return weights + len(graph.SerializeToString()) + len(rest.SerializeToString()) + 16


def _write(
  file: BinaryIO, rest: ModelProto, graph: GraphProto, initializers: list[tuple[TensorProto, TensorProto | None]]
) -> None:
  """Writes the model that `rest`, `graph` and `initializers` make up."""
  try:
    body = graph.SerializeToString(deterministic=True)
  except Exception as error:  # protobuf's own error class differs between its implementations
    raise StorageError(f"the graph without its initializers is over 2 GiB: {_reason(error)}") from error
  parts = [_tensor_parts(header, source) for header, source in initializers]
  size = len(body) + sum(len(start) + raw for start, raw in parts)
  file.write(rest.SerializeToString(deterministic=True))
  file.write(_MODEL_GRAPH + _varint(size) + body)
  for (start, raw), (_, source) in zip(parts, initializers, strict=True):
    file.write(start)
    if source is not None:
      file.write(_raw_data(source, raw))


def _raw_data(tensor: TensorProto, size: int) -> bytes:
  data = tensor.raw_data
  if len(data) != size:
    raise StorageError(f"initializer '{tensor.name}' needs {size} bytes and holds {len(data)}")
  return data


def _write_data(
  file: BinaryIO, graph: GraphProto, initializers: list[tuple[TensorProto, TensorProto | None]]
) -> tuple[list[tuple[TensorProto, TensorProto | None]], str]:
  """Writes the weights one after another; returns the initializers that point at them and the digest of the file.

  The initializers of If, Loop and Scan bodies go there too; they are changed in `graph`, which is a copy.
  """
  digest = hashlib.sha256()
  offset = 0

  def append(data: bytes) -> int:
    nonlocal offset
    padding = bytes(-offset % _ALIGNMENT)
    for chunk in (padding, data):
      digest.update(chunk)
      file.write(chunk)
    start = offset + len(padding)
    offset = start + len(data)
    return start

  result: list[tuple[TensorProto, TensorProto | None]] = []
  for header, source in initializers:
    if source is None:
      result.append((header, None))
      continue
    data = _raw_data(source, byte_count(source, f"initializer '{source.name}'"))
    pointer = _without_data(source)
    _point(pointer, append(data), len(data))
    result.append((pointer, None))
  for body in walk_graphs(graph):
    for tensor in body.initializer:
      if tensor.HasField("raw_data") and len(tensor.raw_data) >= HEAVY:
        data = tensor.raw_data
        tensor.ClearField("raw_data")
        _point(tensor, append(data), len(data))
  return result, digest.hexdigest()[:16]


def _point(tensor: TensorProto, offset: int, length: int) -> None:
  """Makes `tensor` external; its location is set once the file's name is known."""
  tensor.data_location = TensorProto.EXTERNAL
  for key, value in (("location", ""), ("offset", str(offset)), ("length", str(length))):
    tensor.external_data.add(key=key, value=value)


def _set_location(tensor: TensorProto, name: str) -> None:
  if tensor.data_location == TensorProto.EXTERNAL:
    tensor.external_data[0].value = name


@contextmanager
def _temporary(path: Path, durable: bool) -> Iterator[tuple[BinaryIO, Path]]:
  """A new file beside `path` under a name of its own, removed at the end unless it was renamed meanwhile.

  It is made with the mode that the umask gives new files, or the mode of the file that it will replace.
  """
  temporary = path.parent / f".{path.name}.{secrets.token_hex(8)}.tmp"
  flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
  descriptor = os.open(temporary, flags, 0o666)
  try:
    with os.fdopen(descriptor, "wb", buffering=2**20) as file:
      with suppress(OSError):  # no old file, or a file system without modes
        os.fchmod(descriptor, stat.S_IMODE(os.stat(path).st_mode))
      yield file, temporary
  finally:
    with suppress(FileNotFoundError):
      os.unlink(temporary)


@contextmanager
def _replacing(path: Path, durable: bool) -> Iterator[BinaryIO]:
  """A file to write to that replaces `path` when the block ends without an error."""
  with _temporary(path, durable) as (file, temporary):
    yield file
    _finish(file, durable)
    os.replace(temporary, path)
  _sync_folder(path.parent, durable)


def _finish(file: BinaryIO, durable: bool) -> None:
  file.flush()
  if durable:
    os.fsync(file.fileno())


def _sync_folder(folder: Path, durable: bool) -> None:
  """Makes renames in `folder` survive a power failure; some network file systems can't, which is no error."""
  if durable:
    with suppress(OSError):
      descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
      try:
        os.fsync(descriptor)
      finally:
        os.close(descriptor)


def _remove_old_data(path: Path, keep: str, protect: tuple[Path, ...]) -> None:
  """Removes the data files of former versions of the output `path`."""
  pattern = re.compile(re.escape(path.name) + r"\.[0-9a-f]{16}\.data")
  guarded = {os.path.realpath(file) for file in protect}
  entries: list[os.DirEntry[str]] = []
  with suppress(OSError):  # a folder that can be written to but not listed
    entries = list(os.scandir(path.parent))
  for entry in entries:
    ours = entry.name != keep and pattern.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)
    if ours and os.path.realpath(entry.path) not in guarded:
      with suppress(OSError):
        os.unlink(entry.path)


def _reason(error: BaseException) -> str:
  text = getattr(error, "strerror", None) or str(error) or type(error).__name__
  return " ".join(text.split())
