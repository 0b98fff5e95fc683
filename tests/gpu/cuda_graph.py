"""What a session puts into a CUDA graph: nodes and edges, by the driver's interface."""

import ctypes
import re
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "ortplugin"
KERNEL = 0  # CU_GRAPH_NODE_TYPE_KERNEL
PROGRAMMATIC = 1  # CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC
AT_EXIT, AT_LAUNCH = 1, 2  # CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC, _LAUNCH_ORDER
RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED


@dataclass(frozen=True)
class Edge:
  """Kernels by name, other nodes by the number of their type; `port`: where a programmatic edge leaves."""

  upstream: str
  downstream: str
  port: int
  is_programmatic: bool


class _EdgeData(ctypes.Structure):
  _fields_ = [
    ("from_port", ctypes.c_ubyte),
    ("to_port", ctypes.c_ubyte),
    ("type", ctypes.c_ubyte),
    ("reserved", ctypes.c_ubyte * 5),
  ]


class _KernelParams(ctypes.Structure):
  _fields_ = [("function", ctypes.c_void_p), ("shape", ctypes.c_uint * 7), ("parameters", ctypes.c_void_p),
              ("extra", ctypes.c_void_p), ("kernel", ctypes.c_void_p), ("context", ctypes.c_void_p)]  # fmt: skip


def _call(name, *arguments):
  status = getattr(ctypes.CDLL("libcuda.so.1"), name)(*arguments)
  assert status == 0, f"{name} failed: {status}"


def captured(stream, run):
  """The edges of the graph that `run` makes of its work on a CuPy stream."""
  pointer, graph, count = ctypes.c_void_p(stream.ptr), ctypes.c_void_p(), ctypes.c_size_t()
  _call("cuStreamBeginCapture_v2", pointer, RELAXED)
  run()
  _call("cuStreamEndCapture", pointer, ctypes.byref(graph))
  _call("cuGraphGetEdges_v2", graph, None, None, None, ctypes.byref(count))
  upstream, downstream = (ctypes.c_void_p * count.value)(), (ctypes.c_void_p * count.value)()
  data = (_EdgeData * count.value)()
  _call("cuGraphGetEdges_v2", graph, upstream, downstream, data, ctypes.byref(count))
  names = {node: _name(node) for node in {*upstream, *downstream}}
  edges = [
    Edge(names[a], names[b], each.from_port, each.type == PROGRAMMATIC)
    for a, b, each in zip(upstream, downstream, data, strict=True)
  ]
  _call("cuGraphDestroy", graph)
  return edges


def _name(node):
  kind, name, params = ctypes.c_int(), ctypes.c_char_p(), _KernelParams()
  _call("cuGraphNodeGetType", ctypes.c_void_p(node), ctypes.byref(kind))
  if kind.value != KERNEL:
    return str(kind.value)
  _call("cuGraphKernelNodeGetParams_v2", ctypes.c_void_p(node), ctypes.byref(params))
  if params.function:
    _call("cuFuncGetName", ctypes.byref(name), ctypes.c_void_p(params.function))
  else:
    _call("cuKernelGetName", ctypes.byref(name), ctypes.c_void_p(params.kernel))
  return (name.value or b"").decode()


def our_kernels():
  """The names of this library's kernels, as its sources have them."""
  attribute = re.compile(r"__(?:launch_bounds|cluster_dims)__\((?:[^()]|\([^()]*\))*\)|IN_CLUSTERS|^#.*$", re.M)
  sources = [attribute.sub("", path.read_text()) for path in PACKAGE.rglob("*.cu")]
  return {name for source in sources for name in re.findall(r"__global__ void\s+(\w+)\(", source)}
