"""`ortplugin.run`: a session on host or device arrays, as its provider has it."""

from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import UsageError, near_names
from . import device
from .core import CUDA
from .host import run_on_host


def run(
  session: Any, feeds: Mapping[str, Any], outputs: Iterable[str] | None = None, *, copy: bool = False
) -> dict[str, Any]:
  """Runs a session; returns output name to array.

  On a session with the CUDA provider, feeds are CuPy arrays, arrays of any library that offers DLPack (PyTorch, JAX),
  or NumPy arrays, which are copied to the device. Device arrays are bound without a copy if they are contiguous.
  The results are CuPy arrays over ONNX Runtime's memory. All work that CuPy's current stream holds is done before
  the session starts, and the session's work is done when this returns.

  With a CUDA graph, addresses are fixed: for each set of input shapes there are device buffers, into which the feeds
  are copied, and the results are views of fixed buffers, which *the next run with the same shapes overwrites*.

  On other sessions NumPy arrays go in and come out.

  Args:
      session: an `onnxruntime.InferenceSession`, of `ortplugin.session` or any other.
      feeds: array by input name. The dtype must be the input's: nothing is converted silently.
      outputs: names of the outputs to compute; None computes all.
      copy: with a CUDA graph, return copies that later runs leave alone.
  """
  known = {value.name: value for value in session.get_inputs()}
  for value in session.get_overridable_initializers():
    known.setdefault(value.name, value)
  for name in feeds:
    if name not in known:
      raise UsageError(f"the model has no input '{name}'{near_names(name, known)}")
  missing = [v.name for v in session.get_inputs() if v.name not in feeds and not v.type.startswith("optional")]
  if missing:
    raise UsageError(f"the inputs {', '.join(missing)} are missing; the model needs all of {', '.join(known)}")
  produced = [value.name for value in session.get_outputs()]
  names = produced if outputs is None else list(outputs)
  for name in names:
    if name not in produced:
      raise UsageError(f"the model has no output '{name}'{near_names(name, produced)}")
  if CUDA in session.get_providers():
    return device.run(session, feeds, names, copy)
  return run_on_host(session, feeds, names)
