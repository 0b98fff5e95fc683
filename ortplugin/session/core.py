"""ONNX Runtime with the plugin: its providers and GPUs, the library, and sessions that have it."""

import contextlib
import ctypes
import os
import sys
import threading
import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..errors import RuntimeMissingError, UsageError, near_names, one_line

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
COUNTED_ON_HOST = {("", "Compress"), ("", "NonZero"), ("com.microsoft", "Inverse")}
RANDOM = {("", f"Random{kind}{form}") for kind in ("Normal", "Uniform") for form in ("", "Like")} | {("", "Bernoulli")}
ALIASES = {"cpu": CPU, "cuda": CUDA, "gpu": CUDA}

LIBRARY = "libortplugin.so"
# The session config entry that the library sets: ONNX Runtime refuses one domain registered twice.
_REGISTERED = "ortplugin.registered"
_register_lock = threading.Lock()
_load_lock = threading.Lock()


def library_path() -> str:
  """The path of the native library, for any ONNX Runtime program in any language."""
  folders = sys.modules["ortplugin"].__path__
  for folder in folders:  # an editable install keeps the Python files and the library in two folders
    path = Path(folder) / LIBRARY
    if path.is_file():
      return str(path)
  raise RuntimeMissingError(
    f"{LIBRARY} is not in {', '.join(str(folder) for folder in folders)}; "
    "reinstall ortplugin, or run `make dev` in a source tree"
  )


def register(session_options: Any) -> None:
  """Makes the operators of domain `ortplugin` known to sessions made with these `onnxruntime.SessionOptions`.

  Registering the same options again does nothing; threads may call it at the same time.
  """
  path = library_path()
  with _register_lock:
    if _is_registered(session_options):
      return
    try:
      session_options.register_custom_ops_library(path)
    except Exception as error:
      version = onnxruntime().__version__
      raise RuntimeMissingError(f"onnxruntime {version} can't register {path}: {one_line(error)}") from error


def _is_registered(session_options: Any) -> bool:
  try:
    return bool(session_options.get_session_config_entry(_REGISTERED) == "1")
  except RuntimeError:  # no such entry
    return False


def onnxruntime() -> Any:
  """The onnxruntime module, with CUDA's and cuDNN's libraries loaded from their wheels where there is a GPU."""
  with _load_lock:
    return _load()


@lru_cache(maxsize=1)
def _load() -> Any:
  try:
    import onnxruntime as module
  except ImportError as error:
    raise RuntimeMissingError(
      f"onnxruntime can't be imported ({one_line(error)}); "
      "install it with `pip install ortplugin[gpu]` for NVIDIA GPUs or `pip install ortplugin[cpu]`"
    ) from error
  if CUDA in module.get_available_providers() and gpu_count() > 0 and hasattr(module, "preload_dlls"):
    # It prints what it does not find; a session that then lacks CUDA says so itself, below. That redirects the
    # whole process's output, and threads that did it together would leave it closed.
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
      module.preload_dlls()
  return module


@lru_cache(maxsize=1)
def gpu_count() -> int:
  """How many NVIDIA GPUs the driver shows to this process; 0 without a driver."""
  try:
    driver = ctypes.CDLL("libcuda.so.1")
  except OSError:
    return 0
  count = ctypes.c_int(0)
  if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
    return 0
  return count.value


def available_providers() -> tuple[str, ...]:
  """The providers that a session can use here: CUDA if there is a GPU and ONNX Runtime is built for it, then CPU."""
  return (CUDA, CPU) if CUDA in onnxruntime().get_available_providers() and gpu_count() > 0 else (CPU,)


def resolve_provider(name: str) -> str:
  """The full name of a provider: 'cuda' is 'CUDAExecutionProvider'. Raises where this machine can't run it."""
  full = ALIASES.get(name.lower(), name)
  present = onnxruntime().get_available_providers()
  if full not in present:
    if full == CUDA:
      raise RuntimeMissingError(
        "the installed onnxruntime has no CUDA provider; "
        "remove it and install onnxruntime-gpu with `pip install ortplugin[gpu]`"
      )
    raise UsageError(f"there is no execution provider '{name}'{near_names(full, present)}")
  if full == CUDA and gpu_count() == 0:
    raise RuntimeMissingError(
      "the CUDA provider needs an NVIDIA GPU and its driver (libcuda.so.1), which this machine or container "
      "lacks; use the provider 'cpu'"
    )
  return full


def check_device(device_id: int, providers: Iterable[str] = (CUDA,)) -> None:
  """Raises UsageError where this process sees no GPU of this number, or the providers use none."""
  if device_id == 0:
    return
  if CUDA not in providers:
    raise UsageError(f"GPU {device_id} is for the CUDA provider, which is not used here; add the provider 'cuda'")
  count = gpu_count()
  if not 0 <= device_id < count:
    known = "none" if count == 0 else "GPU 0 alone" if count == 1 else f"GPUs 0 to {count - 1}"
    raise UsageError(f"there is no GPU {device_id}; this process sees {known} (see CUDA_VISIBLE_DEVICES)")


def host_inputs(session: Any) -> frozenset[str]:
  """Inputs that a CUDA session reads on the host: their consumers have no GPU kernel, or take shapes, axes or counts.

  A CUDA graph keeps what was read when it was captured. Empty before ONNX Runtime 1.23, which does not tell.
  """
  return _on_host(session, "input")


def host_outputs(session: Any) -> frozenset[str]:
  """Outputs that a CUDA session makes on the host: by operators without a GPU kernel, or as shapes.

  Bound to a GPU, such an output, or another one, is wrong now and then (ONNX Runtime 1.31): by what is found in it,
  it is copied into memory that was freed while kernels use it still. So they are to be bound to the host. Empty
  before ONNX Runtime 1.23, which does not tell.
  """
  return _on_host(session, "output")


def _on_host(session: Any, kind: str) -> frozenset[str]:
  if CUDA not in session.get_providers() or not hasattr(session, f"get_{kind}_memory_infos"):
    return frozenset()
  memory = zip(getattr(session, f"get_{kind}s")(), getattr(session, f"get_{kind}_memory_infos")(), strict=True)
  return frozenset(value.name for value, info in memory if info.name in ("Cpu", "CudaPinned"))


def is_captured(options: Mapping[str, object]) -> bool:
  """Whether these options of the CUDA provider make it capture what it runs."""
  return str(options.get("enable_cuda_graph", "0")) in ("1", "True", "true")


def record_nodes(session_options: Any) -> None:
  """Makes sessions of these options tell `check_captured` which provider runs each node."""
  session_options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")


def check_captured(session: Any) -> None:
  """Raises UsageError if a node of a CUDA session can't be right in a CUDA graph, though it is captured.

  Its kernel copies a count from the GPU to a variable on the stack and goes by it. In a capture the copy is not made,
  so the count is 0, and each replay writes to where that variable was (onnxruntime/core/providers/cuda/tensor,
  compress.cc and nonzero_op.cc, and contrib_ops/cuda/inverse.cc; 1.31). Warns of nodes that draw random numbers: their
  seeds, too, are those of the capture. Nothing is found before ONNX Runtime 1.24, which does not tell which provider
  runs a node.
  """
  if not hasattr(session, "get_provider_graph_assignment_info"):
    return
  for part in session.get_provider_graph_assignment_info():
    for node in part.get_nodes() if part.ep_name == CUDA else ():
      name = f"'{node.name}' ({node.op_type})" if node.name else f"a {node.op_type} without a name"
      if (node.domain, node.op_type) in COUNTED_ON_HOST:
        raise UsageError(
          f"node {name} reads on the host what the GPU has computed, which in a CUDA graph gives wrong results and "
          "overwrites memory of this process; make the session without a CUDA graph"
        )
      if (node.domain, node.op_type) in RANDOM:
        warnings.warn(
          f"node {name} draws the same numbers in each replay of a CUDA graph; where they should differ, make the "
          "session without one",
          stacklevel=3,
        )


def wanted_providers(
  providers: Sequence[str | tuple[str, Mapping[str, object]]] | None,
  provider_options: Sequence[Mapping[str, object]] | None,
) -> dict[str, dict[str, str]]:
  """Full provider names in order with their options; the CPU is always the last."""
  if isinstance(providers, str):
    raise UsageError(f"providers must be a sequence of names, such as ['{providers}']")
  names = list(available_providers()) if providers is None else list(providers)
  options = list(provider_options) if provider_options is not None else [{} for _ in names]
  if len(options) != len(names):
    raise UsageError(f"{len(options)} provider_options are given for {len(names)} providers; give one for each")
  wanted: dict[str, dict[str, str]] = {}
  for entry, extra in zip(names, options, strict=True):
    name, own = entry if isinstance(entry, tuple) else (entry, {})
    wanted[resolve_provider(name)] = {str(key): str(value) for key, value in {**own, **extra}.items()}
  wanted.setdefault(CPU, {})
  return wanted
