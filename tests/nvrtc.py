"""CUDA C++ compiled without a GPU: NVRTC from the package nvidia-cuda-nvrtc, through ctypes."""

import ctypes
import importlib.metadata
from functools import cache
from pathlib import Path

# The architectures that every kernel must compile for: Turing, Ampere (A100, consumer), Ada, Hopper, Blackwell (B200,
# consumer).
ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")


class CompileError(Exception):
  """NVRTC refused; the message is its log, followed by the numbered source."""


def library_path():
  """libnvrtc of the installed package. Raises importlib.metadata.PackageNotFoundError without it."""
  package = importlib.metadata.distribution("nvidia-cuda-nvrtc")
  paths = [Path(str(package.locate_file(file))) for file in package.files or ()]
  (path,) = (path for path in paths if path.name.startswith("libnvrtc.so."))
  return path.resolve()


@cache
def library():
  nvrtc = ctypes.CDLL(str(library_path()))
  nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
  return nvrtc


def version():
  major, minor = ctypes.c_int(), ctypes.c_int()
  _check(library().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
  return major.value, minor.value


def compile_cuda(source, architecture, options=()):
  """The cubin of `source` for a real architecture such as "sm_90". Raises CompileError with the log."""
  return compile_with_log(source, architecture, options)[0]


def compile_with_log(source, architecture, options=()):
  """As compile_cuda, with NVRTC's log: warnings, and what options such as --ptxas-options=-v make it say."""
  nvrtc = library()
  program = ctypes.c_void_p()
  _check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None))
  try:
    arguments = [f"--gpu-architecture={architecture}", *options]
    array = (ctypes.c_char_p * len(arguments))(*(argument.encode() for argument in arguments))
    status = nvrtc.nvrtcCompileProgram(program, len(arguments), array)
    size = ctypes.c_size_t()
    _check(nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size)))
    log = ctypes.create_string_buffer(size.value)
    _check(nvrtc.nvrtcGetProgramLog(program, log))
    text = log.value.decode(errors="replace")
    if status != 0:
      numbered = "\n".join(f"{number:5}  {line}" for number, line in enumerate(source.splitlines(), 1))
      raise CompileError(f"{_name(status)} for {' '.join(arguments)}\n{text}\n{numbered}")
    _check(nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)))
    cubin = ctypes.create_string_buffer(size.value)
    _check(nvrtc.nvrtcGetCUBIN(program, cubin))
    return cubin.raw, text
  finally:
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _name(status):
  name = library().nvrtcGetErrorString(status)
  return str(name.decode()) if name else f"NVRTC status {status}"


def _check(status):
  if status != 0:
    raise CompileError(_name(status))


if __name__ == "__main__":  # for programs that want it in ORTPLUGIN_NVRTC
  print(library_path())
