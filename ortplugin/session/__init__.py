"""ONNX Runtime with the plugin: register the library, make a session, run it on host or device arrays.

onnxruntime and CuPy are imported when a function needs them, so `import ortplugin` needs neither.
"""

from .core import (
  CPU,
  CUDA,
  available_providers,
  check_device,
  gpu_count,
  host_inputs,
  host_outputs,
  library_path,
  onnxruntime,
  register,
  resolve_provider,
)
from .dispatch import run
from .elements import check_dtype, element_type, foreign
from .host import run_on_host, to_numpy

__all__ = [
  "CPU",
  "CUDA",
  "available_providers",
  "check_device",
  "check_dtype",
  "element_type",
  "foreign",
  "gpu_count",
  "host_inputs",
  "host_outputs",
  "library_path",
  "onnxruntime",
  "register",
  "resolve_provider",
  "run",
  "run_on_host",
  "to_numpy",
]
