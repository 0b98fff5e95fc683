"""The programs in C++ and C#, with the installed ONNX Runtime, where what compiles them is found."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import example_model
import numpy as np
import onnxruntime
import pytest


@pytest.fixture
def folder(tmp_path):
  """Has ONNX Runtime's library under the name that a linker and .NET look for."""
  libraries = sorted(Path(onnxruntime.__file__).parent.glob("capi/libonnxruntime.so*"))
  if not libraries:
    pytest.skip("the installed onnxruntime has no libonnxruntime.so")
  for name in ("libonnxruntime.so", "libonnxruntime.so.1"):
    (tmp_path / name).symlink_to(libraries[0])
  return tmp_path


def needed(variable, name, *tools):
  for tool in tools:
    if not shutil.which(tool):
      pytest.skip(f"{tool} is not installed")
  if variable not in os.environ:
    pytest.skip(f"{variable} names no folder of {name}")
  return Path(os.environ[variable]).resolve() / name


def check(command, folder, **environment):
  environment = {**os.environ, "LD_LIBRARY_PATH": str(folder), **environment}
  printed = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
  mean, top = re.search(r"^mean \[1, 3\]: (.*)\ntop \[1\]: (.*)", printed).groups()
  outputs = {"mean": np.array([mean.split()], float), "top": np.array([top], float)}
  example_model.check(outputs, (0.5 + np.arange(48) / 256).reshape(1, 3, 4, 4))


def test_cpp(model, library, folder):
  header = needed("ORT_INCLUDE_DIR", "onnxruntime_c_api.h", "g++")
  source = example_model.EXAMPLES / "cpp" / "run_model.cc"
  given = ["-std=c++17", "-Wall", "-Wextra", "-Werror", f"-isystem{header.parent}", f"-L{folder}", "-lonnxruntime"]
  subprocess.run(["g++", source, *given, "-o", folder / "run_model"], check=True)
  check([folder / "run_model", model], folder, ORTPLUGIN_LIBRARY=str(library))


def test_csharp(model, library, folder):
  binding = needed("ORT_CSHARP_DIR", "Microsoft.ML.OnnxRuntime.dll", "mcs", "mono")
  shutil.copy(binding, folder)
  source = example_model.EXAMPLES / "csharp" / "RunModel.cs"
  subprocess.run(["mcs", f"-r:{binding}", f"-out:{folder}/RunModel.exe", source], check=True)
  check(["mono", folder / "RunModel.exe", model, library], folder)
