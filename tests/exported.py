"""The models that real exporters wrote: DATA is a folder with them and expected.json."""

import tempfile
from functools import cache
from pathlib import Path

from models.packed import unpack

_folder = tempfile.TemporaryDirectory(prefix="ortplugin-models-")  # removed when the process ends
DATA = Path(_folder.name)

unpack(DATA)


_architectures = tempfile.TemporaryDirectory(prefix="ortplugin-architectures-")


@cache
def architectures():
  """A folder with the models of many architectures and architectures.json, unpacked when first asked for."""
  unpack(Path(_architectures.name), many=True)
  return Path(_architectures.name)
