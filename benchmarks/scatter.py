"""Scatter: a few rows or elements written into a tensor, and a million updates at random places.

The first table is the workload of TVM pull request 7233: ScatterND of k rows along axis 0 and ScatterElements of k
elements, in place and out of place (fp32), against PyTorch's index_put and scatter and a device copy of the tensor. The
second is a million updates of a 1-D tensor of a million elements, with duplicates and without, assigned and added,
against the deterministic forms of PyTorch and CuPy.

Everything runs in one process. Assigned results are checked bit by bit, and ortplugin's sums too; sums of others within
the rounding that their order may cost.
"""

import numpy as np
import onnx
from onnx import helper

import timing

ROWS = (((1000, 256, 7, 7), 1), ((1000, 256, 7, 7), 8), ((1000, 256, 7, 7), 49), ((256,), 1), ((1, 12, 2048, 64), 1))
MILLION = 1_000_000
DTYPES = ("float32", "float16")
COLUMNS = {
  "ort": "ORT",
  "torch": "torch",
  "ortplugin": "**ortplugin**",
  "copy": "device copy",
  "torch in place": "torch, in place",
  "ortplugin in place": "**ortplugin, in place**",
}


def chain(op, shapes, dtype, length, *, own, in_place, **given):
  """A model that scatters the same updates `length` times, each into the result of the one before.

  Out of place every result is an output of the model, so that none may be written over. In place the model gives
  one row of the last result, so that no result but the first is a copy.
  """
  nodes, outputs = [], []
  for step in range(length):
    source, target = f"y{step - 1}" if step else "data", f"y{step}"
    domain = "ortplugin" if own else ""
    nodes.append(helper.make_node(op, [source, "indices", "updates"], [target], target, domain=domain, **given))
    if not in_place:
      outputs.append((target, dtype, shapes["data"]))
  last = f"y{length - 1}"
  if in_place:
    nodes.append(helper.make_node("Constant", [], ["first"], value=onnx.numpy_helper.from_array(np.zeros(1, np.int64))))
    nodes.append(helper.make_node("Gather", [last, "first"], ["row"], "row"))
    outputs.append(("row", dtype, [1, *shapes["data"][1:]]))
  dtypes = {"data": dtype, "indices": np.int64, "updates": dtype}
  return timing.model_of(nodes, [(name, each, shapes[name]) for name, each in dtypes.items()], outputs, opset=18)


def sessions(op, feeds, *, own=True, in_place, **given):
  """The chains as ONNX Runtime sessions with CUDA graphs."""
  shapes = {name: list(array.shape) for name, array in feeds.items()}
  dtype = str(feeds["data"].dtype)
  models = {
    length: chain(op, shapes, dtype, length, own=own, in_place=in_place, **given) for length in (1, timing.LENGTH)
  }
  return timing.session_chain(models, feeds, plugin=own)


def once(op, feeds, length=1, **given):
  """The last result of a chain of the plugin's; of three the second is made in place."""
  import ortplugin

  shapes = {name: list(array.shape) for name, array in feeds.items()}
  model = onnx.load_from_string(chain(op, shapes, str(feeds["data"].dtype), length, own=True, in_place=False, **given))
  del model.graph.output[:-1]
  session = ortplugin.session(model.SerializeToString(), providers=["CUDAExecutionProvider"])
  return ortplugin.run(session, feeds)[f"y{length - 1}"]


def kept(step):
  """The step with every result kept, as the outputs of the models are: nobody writes into memory just read."""
  results = []

  def keeping(x):
    results.append(step(x))
    return results[-1]

  return keeping


def require(good, what):
  if not bool(good):
    raise SystemExit(f"{what}: wrong result")


def measure_rows(shape, k, op):
  """One row of the first table, in microseconds."""
  import cupy
  import torch

  rng = np.random.default_rng(k)
  rows = rng.permutation(shape[0])[:k]
  updated = (k, *shape[1:]) if op == "ScatterND" else (k, *(1 for _ in shape[1:]))
  data, updates = (rng.standard_normal(size, dtype=np.float32) for size in (shape, updated))
  indices = rows.reshape((k, 1) if op == "ScatterND" else updated).astype(np.int64)
  feeds = {"data": cupy.asarray(data), "indices": cupy.asarray(indices), "updates": cupy.asarray(updates)}
  x, i, v = (torch.from_dlpack(array) for array in feeds.values())
  expected = data.copy()
  if op == "ScatterND":
    expected[rows] = updates
    row = i.reshape(-1)
    out_of_place = lambda y: torch.index_put(y, (row,), v)  # noqa: E731
    in_place = lambda y: y.index_put_((row,), v)  # noqa: E731
  else:
    expected[(rows, *(0 for _ in shape[1:]))] = updates.reshape(-1)
    out_of_place = lambda y: torch.scatter(y, 0, i, v)  # noqa: E731
    in_place = lambda y: y.scatter_(0, i, v)  # noqa: E731
  wanted = cupy.asarray(expected)
  for length in (1, 3):
    require((once(op, feeds, length) == wanted).all(), f"{op} {shape} {k}")
  for result in (out_of_place(x), in_place(x.clone())):
    require((cupy.from_dlpack(result) == wanted).all(), f"torch {op} {shape} {k}")
  times = timing.microseconds(
    {
      "ortplugin": sessions(op, feeds, in_place=False),
      "ortplugin in place": sessions(op, feeds, in_place=True),
      "torch": timing.torch_chain(kept(out_of_place), x),
      "torch in place": timing.torch_chain(in_place, x.clone()),
      "copy": timing.torch_chain(kept(torch.clone), x),
    }
  )
  times |= timing.microseconds({"ort": sessions(op, feeds, own=False, in_place=False)}, rounds=1)
  return {"operator": op, "data": list(shape), "k": k, "microseconds": times}


# ---- a million updates


def torch_forms(reduction, i, v):
  """PyTorch's ways to do it in place; all of them deterministic under use_deterministic_algorithms."""
  if reduction == "none":
    return {
      "torch index_put_": lambda y: y.index_put_((i,), v),
      "torch scatter_": lambda y: y.scatter_(0, i, v),
      "torch index_copy_": lambda y: y.index_copy_(0, i, v),
    }
  return {
    "torch index_put_": lambda y: y.index_put_((i,), v, accumulate=True),
    "torch scatter_add_": lambda y: y.scatter_add_(0, i, v),
    "torch index_add_": lambda y: y.index_add_(0, i, v),
  }


def cupy_forms(reduction, unique, i, v):
  """CuPy's ways, each with whether a CUDA graph can hold it.

  a[i] = v and scatter_add are deterministic only without duplicates. With them: the last of each index found by an
  integer maximum, or by a stable sort; and sums over the runs of a stable sort.
  """
  import cupy
  import cupyx

  def assign(y):
    y[i] = v
    return y

  def add(y):
    cupyx.scatter_add(y, i, v)
    return y

  if unique:
    return {"cupy a[i] = v": (assign, True)} if reduction == "none" else {"cupy scatter_add": (add, True)}
  numbers = cupy.arange(len(i), dtype=np.int32)

  def last_by_maximum(y):
    owner = cupy.full(len(y), -1, np.int32)
    cupyx.scatter_max(owner, i, numbers)
    cupy.copyto(y, v[cupy.maximum(owner, 0)], where=owner >= 0)
    return y

  def runs():
    order = cupy.argsort(i, kind="stable")
    ordered = i[order]
    return order, ordered, cupy.concatenate([cupy.ones(1, bool), ordered[1:] != ordered[:-1]])

  def last_by_sorting(y):
    order, ordered, starts = runs()
    ends = cupy.concatenate([starts[1:], cupy.ones(1, bool)])
    y[ordered[ends]] = v[order[ends]]
    return y

  def add_by_sorting(y):
    order, ordered, starts = runs()
    first = cupy.flatnonzero(starts)
    y[ordered[first]] += cupy.add.reduceat(v[order].astype(np.float32), first).astype(v.dtype)
    return y

  if reduction == "none":
    return {"cupy maximum": (last_by_maximum, True), "cupy sort": (last_by_sorting, False)}
  return {"cupy sort": (add_by_sorting, False)}


def measure_million(dtype, reduction, unique):
  """One row of the second table, in microseconds; every form in place."""
  import cupy
  import torch

  rng = np.random.default_rng(7)
  places = rng.permutation(MILLION) if unique else rng.integers(0, MILLION, MILLION)
  data, updates = (rng.standard_normal(MILLION, dtype=np.float32).astype(dtype) for _ in range(2))
  where = f"{reduction} {dtype} {'without' if unique else 'with'} duplicates"
  precise = data.astype(np.float32)
  exact = data.astype(np.float64)
  if reduction == "add":
    np.add.at(precise, places, updates.astype(np.float32))
    np.add.at(exact, places, updates.astype(np.float64))
    expected = precise.astype(dtype)
  else:
    expected = data.copy()
    expected[places] = updates
  feeds = {"data": cupy.asarray(data), "indices": cupy.asarray(places[:, None]), "updates": cupy.asarray(updates)}
  i, v = cupy.asarray(places), feeds["updates"]
  given = {} if reduction == "none" else {"reduction": reduction}
  wanted = cupy.asarray(expected)

  def check(result, what):
    if reduction == "none" or what == "ortplugin":
      require((result == wanted).all(), f"{what}, {where}")
    else:
      error = abs(result.astype(np.float64) - cupy.asarray(exact)).max()
      require(error < (0.1 if dtype == "float16" else 1e-3), f"{what}, {where}, error {error}")

  variants = {"ortplugin": given, **({"ortplugin unique=1": {**given, "unique": 1}} if unique else {})}
  contenders = {}
  for name, attributes in variants.items():
    check(once("ScatterND", feeds, **attributes), "ortplugin")
    contenders[name] = sessions("ScatterND", feeds, in_place=True, **attributes)
  torch.use_deterministic_algorithms(True)
  torch.utils.deterministic.fill_uninitialized_memory = False
  for name, step in torch_forms(reduction, torch.from_dlpack(i), torch.from_dlpack(v)).items():
    check(cupy.from_dlpack(step(torch.from_dlpack(feeds["data"]).clone())), name)
    contenders[name] = timing.torch_chain(step, torch.from_dlpack(feeds["data"]).clone())
  torch.use_deterministic_algorithms(False)
  for name, (form, graph) in cupy_forms(reduction, unique, i, v).items():
    check(form(feeds["data"].copy()), name)
    contenders[name] = timing.cupy_chain(form, feeds["data"].copy(), graph=graph)
  return {"dtype": dtype, "reduction": reduction, "unique": unique, "microseconds": timing.microseconds(contenders)}


# ---- record


def table(record):
  """The record as two Markdown tables."""
  lines = ["| data, k | " + " | ".join(COLUMNS.values()) + " | / copy |", "|---|" + "---:|" * (len(COLUMNS) + 1)]
  shown, line = timing.ends(record["rows"], lambda row: row["microseconds"]["copy"] / row["microseconds"]["ortplugin"])
  if line:
    lines = [f"Against a copy: {line[0].lower() + line[1:]}", "", *lines]
  for row in shown:
    times = row["microseconds"]
    what = "rows" if row["operator"] == "ScatterND" else "elements"
    cells = [f"{times[column]:.1f}" for column in COLUMNS]
    shape = "x".join(map(str, row["data"]))
    lines.append(f"| {shape}, {row['k']} {what} | {' | '.join(cells)} | {times['ortplugin'] / times['copy']:.2f} |")
  lines += ["", "| a million updates | torch | CuPy | **ortplugin** | vouched unique |", "|---|---:|---:|---:|---:|"]
  for row in record["million"]:
    times = row["microseconds"]
    best = [min(time for name, time in times.items() if name.startswith(who)) for who in ("torch", "cupy")]
    vouched = f"{times['ortplugin unique=1']:.1f}" if "ortplugin unique=1" in times else ""
    what = f"{row['dtype']}, {row['reduction']}, {'no' if row['unique'] else 'with'} duplicates"
    lines.append(f"| {what} | {best[0]:.1f} | {best[1]:.1f} | {times['ortplugin']:.1f} | {vouched} |")
  where = record["environment"]
  other = record.get("million_environment", where)["commit"][:12]  # measured apart, where the record says so
  million = "" if other == where["commit"][:12] else f"; the million updates at commit {other}"
  note = f"{million}. torch and CuPy: the fastest of their deterministic forms"
  return timing.page(lines, "scatter", where, note, libraries="onnxruntime torch cupy")


def measure_all(args, record):
  import onnxruntime

  onnxruntime.set_default_logger_severity(3)  # its own ScatterND warns at every run
  for op in ("ScatterND", "ScatterElements"):
    for shape, k in ROWS:
      record["rows"].append(row := measure_rows(shape, k, op))
      yield f"{op} {shape} {k}: {timing.shown(row)}"
  record["million"] = []
  for reduction in ("none", "add"):
    for dtype in DTYPES:
      for unique in (False, True):
        record["million"].append(row := measure_million(dtype, reduction, unique))
        yield f"{reduction} {dtype} {'unique' if unique else 'duplicates'}: {timing.shown(row)}"


if __name__ == "__main__":
  timing.run("scatter", __doc__, measure_all, table)
