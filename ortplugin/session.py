"""ONNX Runtime with the plugin: register the library, make a session, run it on host or device arrays.

onnxruntime and CuPy are imported when a function needs them, so `import ortplugin` needs neither.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from ortplugin.errors import RuntimeMissingError, UsageError, near_names, one_line

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
ALIASES = {"cpu": CPU, "cuda": CUDA, "gpu": CUDA}

LIBRARY = "libortplugin.so"
# The session config entry that the library sets: ONNX Runtime refuses one domain registered twice.
_REGISTERED = "ortplugin.registered"
_register_lock = threading.Lock()
_load_lock = threading.Lock()

# ONNX Runtime's name of a tensor type -> (ONNX element type, a TensorProto.DataType, and NumPy dtype). Numbers, because
# importing onnx takes longer than everything else that `import ortplugin` does.
_ELEMENTS: dict[str, tuple[int, np.dtype[Any]]] = {
    "float": (1, np.dtype(np.float32)),
    "double": (11, np.dtype(np.float64)),
    "float16": (10, np.dtype(np.float16)),
    "bfloat16": (16, np.dtype(ml_dtypes.bfloat16)),
    "float8e4m3fn": (17, np.dtype(ml_dtypes.float8_e4m3fn)),
    "float8e4m3fnuz": (18, np.dtype(ml_dtypes.float8_e4m3fnuz)),
    "float8e5m2": (19, np.dtype(ml_dtypes.float8_e5m2)),
    "float8e5m2fnuz": (20, np.dtype(ml_dtypes.float8_e5m2fnuz)),
    "int8": (3, np.dtype(np.int8)),
    "int16": (5, np.dtype(np.int16)),
    "int32": (6, np.dtype(np.int32)),
    "int64": (7, np.dtype(np.int64)),
    "uint8": (2, np.dtype(np.uint8)),
    "uint16": (4, np.dtype(np.uint16)),
    "uint32": (12, np.dtype(np.uint32)),
    "uint64": (13, np.dtype(np.uint64)),
    "bool": (9, np.dtype(np.bool_)),
    "string": (8, np.dtype(np.object_)),
}
# dtypes that NumPy itself lacks travel to ONNX Runtime under an integer dtype of their size.
_CARRIER: dict[int, np.dtype[Any]] = {1: np.dtype(np.uint8), 2: np.dtype(np.uint16)}


def element_type(ort_type: str) -> tuple[int, np.dtype[Any]] | None:
    """(ONNX element type, NumPy dtype) of a type such as 'tensor(float16)'; None for what is no tensor."""
    if ort_type.startswith("tensor(") and ort_type.endswith(")"):
        return _ELEMENTS.get(ort_type[len("tensor(") : -1])
    return None


# ------------------------------------------------------------------------------------------- library and providers


def library_path() -> str:
    """The path of the native library, for any ONNX Runtime program in any language."""
    from ortplugin import __path__ as folders

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


def session(
    path_or_bytes: str | os.PathLike[str] | bytes,
    providers: Sequence[str | tuple[str, Mapping[str, object]]] | None = None,
    cuda_graph: bool = False,
    session_options: Any = None,
    provider_options: Sequence[Mapping[str, object]] | None = None,
    device_id: int | None = None,
) -> Any:
    """A plain `onnxruntime.InferenceSession` in which the plugin's operators run.

    Where ONNX Runtime would fall back to the CPU without a word, this raises RuntimeMissingError.

    Args:
        path_or_bytes: the model.
        providers: 'cuda', 'cpu' or any provider's full name, each alone or with its options; the CPU is added as the
            last one. None takes CUDA where it is present, and the CPU.
        cuda_graph: capture what `run` runs into a CUDA graph, one for each set of input shapes and of values that ONNX
            Runtime reads on the host (a target shape, say), and replay it.
        session_options: `onnxruntime.SessionOptions` of yours; the library is registered with them.
        provider_options: options of each provider, in the order of `providers`.
        device_id: the GPU's number in this process; None takes the one in the provider's options, else the first.
    """
    ort = onnxruntime()
    wanted = _wanted_providers(providers, provider_options)
    if device_id is not None:
        check_device(device_id, wanted)
        if CUDA in wanted and wanted[CUDA].setdefault("device_id", str(device_id)) != str(device_id):
            raise UsageError(f"device_id is {device_id}, the provider's options say {wanted[CUDA]['device_id']}")
    if cuda_graph:
        if CUDA not in wanted:
            raise UsageError("a CUDA graph needs the CUDA provider; add 'cuda' to the providers")
        wanted[CUDA]["enable_cuda_graph"] = "1"
    options = session_options if session_options is not None else ort.SessionOptions()
    register(options)
    result = ort.InferenceSession(
        os.fspath(path_or_bytes) if not isinstance(path_or_bytes, bytes) else path_or_bytes,
        options,
        providers=list(wanted),
        provider_options=list(wanted.values()),
        enable_fallback=0,
    )
    missing = [name for name in wanted if name not in result.get_providers()]
    if missing:
        raise RuntimeMissingError(
            f"ONNX Runtime could not start {', '.join(missing)}; its log above says which library is missing "
            "(`pip install ortplugin[gpu]` brings CUDA and cuDNN)"
        )
    return result


def host_inputs(session: Any) -> frozenset[str]:
    """Inputs that a CUDA session reads on the host: their consumers have no GPU kernel, or take shapes, axes or counts.

    A CUDA graph keeps what was read when it was captured. Empty before ONNX Runtime 1.23, which does not tell.
    """
    return _on_host(session, "input")


def host_outputs(session: Any) -> frozenset[str]:
    """Outputs that a CUDA session makes on the host: by operators without a GPU kernel, or as shapes.

    ONNX Runtime (1.31) copies those that are bound to a GPU into memory that it has just freed, without waiting for
    the kernels that use it still: such an output, or another one, is wrong now and then. So they are to be bound to the
    host. Empty before ONNX Runtime 1.23, which does not tell.
    """
    return _on_host(session, "output")


def _on_host(session: Any, kind: str) -> frozenset[str]:
    if CUDA not in session.get_providers() or not hasattr(session, f"get_{kind}_memory_infos"):
        return frozenset()
    memory = zip(getattr(session, f"get_{kind}s")(), getattr(session, f"get_{kind}_memory_infos")(), strict=True)
    return frozenset(value.name for value, info in memory if info.name in ("Cpu", "CudaPinned"))


def _wanted_providers(
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


# ------------------------------------------------------------------------------------------------------------- runs


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
        from ortplugin import device

        return device.run(session, feeds, names, copy)
    return run_on_host(session, feeds, names)


def check_dtype(name: str, got: np.dtype[Any], wanted: np.dtype[Any]) -> None:
    """Raises UsageError unless an input's dtype is the one that the model wants."""
    strings = wanted == np.dtype(np.object_) and got.kind in "OUST"
    if got != wanted and not strings:
        raise UsageError(f"input '{name}' is {got}, the model wants {wanted}; convert it with .astype('{wanted}')")


def run_on_host(session: Any, feeds: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Runs a session on host arrays, bfloat16 and float8 included; returns output name to array.

    Sequences and maps go in and come out as lists and dictionaries.
    """
    inputs = {value.name: element_type(value.type) for value in session.get_inputs()}
    inputs |= {value.name: element_type(value.type) for value in session.get_overridable_initializers()}
    arrays = {name: _host_array(name, value, inputs[name]) for name, value in feeds.items()}
    outputs = {value.name: element_type(value.type) for value in session.get_outputs()}
    involved = [inputs[name] for name in arrays] + [outputs[name] for name in names]
    if not any(element is not None and foreign(element[1]) for element in involved):
        return dict(zip(names, session.run(list(names), arrays), strict=True))
    values = {name: _to_ort_value(array, inputs[name]) for name, array in arrays.items()}
    results = session.run_with_ort_values(list(names), values)
    return {name: to_numpy(value, outputs[name]) for name, value in zip(names, results, strict=True)}


def foreign(dtype: np.dtype[Any]) -> bool:
    """Whether ml_dtypes, not NumPy, defines this dtype."""
    return dtype.type.__module__.startswith("ml_dtypes")


def _host_array(name: str, value: Any, element: tuple[int, np.dtype[Any]] | None) -> Any:
    if element is None:
        return value
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"input '{name}' is a {type(value).__name__} that NumPy can't read ({one_line(error)}); "
            "a session on the CPU takes host arrays"
        ) from error
    check_dtype(name, array.dtype, element[1])
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def _to_ort_value(array: Any, element: tuple[int, np.dtype[Any]] | None) -> Any:
    ort_value = onnxruntime().OrtValue
    if element is not None and foreign(element[1]):
        return ort_value.ortvalue_from_numpy_with_onnx_type(array.view(_CARRIER[array.itemsize]), element[0])
    return ort_value.ortvalue_from_numpy(array)


def to_numpy(value: Any, element: tuple[int, np.dtype[Any]] | None) -> Any:
    """An OrtValue on the host as an array, whose element type is `element`; a sequence or a map as Python's."""
    if element is None or not foreign(element[1]):
        return value.numpy()
    shape = tuple(value.shape())
    if 0 in shape:
        return np.zeros(shape, element[1])
    held = (ctypes.c_char * value.tensor_size_in_bytes()).from_address(value.data_ptr())
    return np.frombuffer(bytes(held), element[1]).reshape(shape)
