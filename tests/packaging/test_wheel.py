"""The package is one for all Pythons: the library is none of theirs, shows what it must and no more, and, in a wheel of
`make wheel`, needs nothing that its tag does not promise.
"""

import importlib.metadata
import os
import re
import subprocess
import zipfile
from pathlib import Path

import pytest

from ortplugin.session.core import LIBRARY

ROOT = Path(__file__).resolve().parent.parent.parent
WHEELS = sorted((ROOT / "dist").glob("*.whl"))
# What ONNX Runtime looks for, and Python: ops/list_algorithms.py.
EXPORTED = {"RegisterCustomOps", "OrtPluginListAlgorithms"}
GLIBC = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2"}
LOADER = re.compile(r"ld-linux.*\.so\.\d")


def readelf(library, *options):
  environment = {**os.environ, "LC_ALL": "C"}
  command = ["readelf", "--wide", *options, str(library)]
  return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout


def symbols(library):
  """The dynamic symbols that the library has for others, and those that it asks for."""
  rows = [line.split() for line in readelf(library, "--dyn-syms").splitlines()]
  named = [(row[6], row[7].split("@")[0]) for row in rows if len(row) >= 8 and row[0].rstrip(":").isdigit()]
  return {name for section, name in named if section != "UND"}, {name for section, name in named if section == "UND"}


def needed(library):
  """The other libraries that it is linked to, without the dynamic loader."""
  names = re.findall(r"\(NEEDED\).*\[(.+)\]", readelf(library, "--dynamic"))
  return {name for name in names if not LOADER.fullmatch(name)}


def glibc_version(library):
  """The latest version of glibc that it asks for."""
  versions = re.findall(r"Name: GLIBC_([\d.]+)", readelf(library, "--version-info"))
  return max(tuple(int(part) for part in version.split(".")) for version in versions)


def check(library):
  """What holds for the library, whoever built it."""
  given, asked = symbols(library)
  assert given == EXPORTED
  assert "malloc" in asked
  assert "NODELETE" in readelf(library, "--dynamic")  # a session that ends does not unload it for those that follow
  assert not {name for name in asked if re.match(r"_?Py[A-Z_]", name)}


def test_the_library(library):
  check(library)
  assert needed(library) <= GLIBC | {"libstdc++.so.6", "libgcc_s.so.1"}


def test_the_tag_names_no_python():
  tags = re.findall(r"^Tag: (.+)$", importlib.metadata.distribution("ortplugin").read_text("WHEEL") or "", re.M)
  assert tags
  assert {tag.rpartition("-")[0] for tag in tags} == {"py3-none"}


@pytest.mark.skipif(not WHEELS, reason="no wheel in dist/, where `make wheel` puts it")
def test_the_wheel(tmp_path):
  for wheel in WHEELS:
    tag = re.fullmatch(r"ortplugin-[\d.]+-py3-none-manylinux_(\d+)_(\d+)_\w+\.whl", wheel.name)
    assert tag, wheel.name
    with zipfile.ZipFile(wheel) as archive:
      names = archive.namelist()
      library = Path(archive.extract(f"ortplugin/{LIBRARY}", tmp_path))
    assert [name for name in names if ".so" in name] == [f"ortplugin/{LIBRARY}"]  # nothing grafted in
    check(library)
    assert needed(library) <= GLIBC
    assert glibc_version(library) <= tuple(int(part) for part in tag.groups())
