"""The models that real exporters wrote: tests/data keeps them compressed, DATA is a folder with them unpacked."""

from __future__ import annotations

import lzma
import shutil
import tempfile
from pathlib import Path

PACKED = Path(__file__).resolve().parent / "data"

_folder = tempfile.TemporaryDirectory(prefix="ortplugin-models-")  # removed when the process ends
DATA = Path(_folder.name)

for _packed in PACKED.rglob("*.onnx.xz"):
    _model = DATA / _packed.relative_to(PACKED).with_suffix("")
    _model.parent.mkdir(exist_ok=True)
    _model.write_bytes(lzma.decompress(_packed.read_bytes()))
shutil.copy(PACKED / "expected.json", DATA)
