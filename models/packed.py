"""The exported models of tests/data and what is said of them, compressed: exporters write the same again and again.

Files in it are sorted and carry no times or owners, so that the same models make the same archive.
"""

from __future__ import annotations

import io
import lzma
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper

from ortplugin.graph.messages import walk_tensors

ARCHIVE = Path(__file__).resolve().parent.parent / "tests" / "data" / "models.tar.xz"

# Prime, so that rows of a weight differ. No length of theirs is a multiple, of which rows would be equal, or one more
# than a multiple, of which square weights would be symmetric.
PERIOD = 37

# For bytes that stand at any offset, as those of protobuf do: 1% smaller than the preset alone.
_FILTER = {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 4, "lp": 0, "pb": 0}


def unpack(folder: Path, source: Path = ARCHIVE) -> None:
    """Writes every file to `folder`, "lerp/<name>.onnx" into its own."""
    with tarfile.open(source) as archive:
        for member in archive:
            data = archive.extractfile(member)
            assert data is not None
            path = folder / member.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data.read())


def pack(folder: Path, target: Path = ARCHIVE) -> None:
    """Makes the archive of all models in `folder`, and of the JSON that says of each what there is to know."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path in sorted((*folder.rglob("*.onnx"), *folder.glob("*.json"))):
            member = tarfile.TarInfo(path.relative_to(folder).as_posix())
            member.size = path.stat().st_size
            with path.open("rb") as data:
                archive.addfile(member, data)
    target.write_bytes(lzma.compress(raw.getvalue(), filters=[_FILTER]))


def strip(message: Any) -> None:
    """Empties every doc_string and metadata_props in a protobuf message, however deep."""
    for name in ("doc_string", "metadata_props"):
        if name in message.DESCRIPTOR.fields_by_name:
            message.ClearField(name)
    for descriptor, value in message.ListFields():
        if descriptor.message_type is None:
            continue
        for item in value if hasattr(value, "__len__") and not hasattr(value, "DESCRIPTOR") else (value,):
            strip(item)


def shorten_weights(proto: onnx.ModelProto) -> None:
    """For a smaller archive: float32 weights of two significant bits that repeat after PERIOD elements."""
    for tensor, _ in walk_tensors(proto):
        values = onnx.numpy_helper.to_array(tensor)
        if values.dtype == np.float32 and values.size >= 8:  # fewer are factors and limits
            short = (values.view(np.uint32) & np.uint32(0xFFC00000)).view(np.float32)
            if np.isfinite(short).all() and len(np.unique(short)) > 8:  # fewer are a mask
                short = np.resize(short.ravel()[:PERIOD], short.shape)
            tensor.CopyFrom(onnx.numpy_helper.from_array(short, tensor.name))
