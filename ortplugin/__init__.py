"""Makes ONNX models faster inside ONNX Runtime: an optimizer that writes fused operators, a library that runs them.

    model, report = ortplugin.optimize("model.onnx")     # or: optimize-model model.onnx -o fast.onnx

    options = onnxruntime.SessionOptions()
    ortplugin.register(options)
    session = onnxruntime.InferenceSession("fast.onnx", options)

Importing this package is cheap: onnx, onnxruntime and CuPy are imported by the functions that need them.
"""

from typing import TYPE_CHECKING

# `session` has the name of a package, so it must be bound after that is loaded: here.
from .model.restore import restore
from .session import library_path, register, run
from .standard import session
from .version import __version__

if TYPE_CHECKING:
  from .optimizer import optimize

__all__ = ["__version__", "library_path", "optimize", "register", "restore", "run", "session"]


def __getattr__(name: str) -> object:
  if name == "optimize":
    from .optimizer import optimize

    globals()[name] = optimize
    return optimize
  raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def __dir__() -> list[str]:
  return sorted(__all__)
