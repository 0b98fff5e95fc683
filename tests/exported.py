"""The models that real exporters wrote: DATA is a folder with them and expected.json."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from models.packed import ARCHIVE, unpack

_folder = tempfile.TemporaryDirectory(prefix="ortplugin-models-")  # removed when the process ends
DATA = Path(_folder.name)

unpack(DATA)
shutil.copy(ARCHIVE.parent / "expected.json", DATA)
