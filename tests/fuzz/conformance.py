"""The cases that the onnx package ships, as cases of this differential testing: original against optimized.

    cd tests && python -m fuzz.conformance --jobs 2

Each in several variants: as it is; with its inputs as constants; with open dimensions; between Transposes and Casts, so
that rewrites that need neighbours find some. What ONNX Runtime itself can't run is listed with its reason.
"""

import argparse
import sys
import threading
import warnings
from collections import Counter
from functools import lru_cache
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.helper import make_node

from .generate import Case
from .worker import Worker, in_parallel

# What waits to be mended: a variant's case and why.
OPEN = {}
KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")


@lru_cache(maxsize=1)
def originals():
  """(name, model, feeds) of each case, in the order of their names."""
  from onnx.backend.test.loader import load_model_tests

  with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the cases' own arithmetic
    cases = [(kind, case) for kind in KINDS for case in load_model_tests(kind=kind)]
  found = {}
  for kind, case in cases:
    if case.model is not None:
      model, inputs = case.model, list(case.data_sets[0][0])
    else:
      model = onnx.load(Path(case.model_dir) / "model.onnx")
      inputs = _stored(model, Path(case.model_dir) / "test_data_set_0")
    inputs = [_plain(each) for each in inputs]
    found[f"{kind}/{case.name}"] = (model, dict(zip(_inputs(model), inputs, strict=False)))
  return tuple((name, *found[name]) for name in sorted(found))


def _plain(value):
  if isinstance(value, TensorProto):  # of dtypes that NumPy lacks
    return numpy_helper.to_array(value)
  return value if isinstance(value, (list, dict)) or value is None else np.asarray(value)


def _inputs(model):
  given = {each.name for each in model.graph.initializer}
  return [each.name for each in model.graph.input if each.name not in given]


def _stored(model, folder):
  result = []
  types = {each.name: each.type.WhichOneof("value") for each in model.graph.input}
  for index, name in enumerate(_inputs(model)):
    data = (folder / f"input_{index}.pb").read_bytes()
    if types[name] == "sequence_type":
      result.append(numpy_helper.to_list(onnx.SequenceProto.FromString(data)))
    else:
      result.append(numpy_helper.to_array(TensorProto.FromString(data)))
  return result


# ---- variants


def as_it_is(model, feeds):
  return model, feeds


def with_constants(model, feeds):
  """Tensors that are inputs as initializers."""
  kept = []
  for value in model.graph.input:
    array = feeds.get(value.name)
    if isinstance(array, np.ndarray) and value.type.HasField("tensor_type"):
      model.graph.initializer.append(_tensor(value.name, array))
    else:
      kept.append(value)
  names = {each.name for each in kept}
  _keep(model.graph.input, kept)
  model.ir_version = max(model.ir_version, 4)
  return model, {name: array for name, array in feeds.items() if name in names}


def _tensor(name, array):
  if array.dtype.kind in "OUST":
    return helper.make_tensor(name, TensorProto.STRING, array.shape, [str(each) for each in array.reshape(-1)])
  return numpy_helper.from_array(array, name)


def with_open_dims(model, feeds):
  """No dimension of an input or output is known."""
  for value in [*model.graph.input, *model.graph.output]:
    if value.type.HasField("tensor_type"):
      for dim in value.type.tensor_type.shape.dim:
        dim.Clear()
  del model.graph.value_info[:]
  return model, feeds


def sandwiched(model, feeds):
  """Floats go through Transposes and Casts on their way in and out."""
  graph, feeds = model.graph, dict(feeds)
  inner = list(graph.node)
  before = []
  after = []
  for value in graph.input:
    array = feeds.get(value.name)
    if not isinstance(array, np.ndarray) or array.dtype not in (np.float32, np.float64, np.float16) or array.ndim < 2:
      continue
    name, perm = value.name, list(range(array.ndim - 1, -1, -1))
    element = value.type.tensor_type.elem_type
    value.CopyFrom(helper.make_tensor_value_info(f"{name}/outer", element, array.shape[::-1]))
    feeds[f"{name}/outer"] = np.ascontiguousarray(feeds.pop(name).T)
    before.append(make_node("Transpose", [f"{name}/outer"], [f"{name}/turned"], perm=perm))
    before += _casts(f"{name}/turned", name, element)
  for value in graph.output:
    tensor = value.type.tensor_type
    if tensor.elem_type not in (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16):
      continue
    name, rank = value.name, len(tensor.shape.dim)
    if rank < 2 or name in {each.name for each in [*graph.input, *graph.initializer]} or name in feeds:
      continue
    for node in inner:
      for field in (node.output, node.input):
        for index, each in enumerate(field):
          field[index] = f"{name}/inner" if each == name else each
    perm = list(range(rank - 1, -1, -1))
    after.append(make_node("Transpose", [f"{name}/inner"], [f"{name}/first"], perm=perm))
    after += _casts(f"{name}/first", f"{name}/second", tensor.elem_type)
    after.append(make_node("Transpose", [f"{name}/second"], [name], perm=perm))
  _keep(graph.node, [*before, *inner, *after])
  if all(each.domain not in ("", "ai.onnx") for each in model.opset_import):
    model.opset_import.append(helper.make_opsetid("", 17))
  del graph.value_info[:]
  return model, feeds


def _casts(name, made, element):
  wide = TensorProto.FLOAT if element == TensorProto.DOUBLE else TensorProto.DOUBLE
  if element == TensorProto.DOUBLE:
    return [make_node("Identity", [name], [made])]  # float would round it
  return [make_node("Cast", [name], [f"{made}/wide"], to=wide), make_node("Cast", [f"{made}/wide"], [made], to=element)]


def _keep(field, kept):
  copies = [type(each).FromString(each.SerializeToString()) for each in kept]
  del field[:]
  field.extend(copies)


VARIANTS = {"plain": as_it_is, "constants": with_constants, "open": with_open_dims, "sandwich": sandwiched}
LAYOUTS = ("auto", "nhwc")


def cases(variant, part=0, parts=1):
  for number, (name, original, feeds) in enumerate(originals()):
    if number % parts != part:
      continue
    model = onnx.ModelProto()
    model.CopyFrom(original)
    made, given = VARIANTS[variant](model, dict(feeds))
    options = {"layout": LAYOUTS[(number // parts) % 2]}
    yield name, Case(number, "fp32", made, None, frozenset(), [given], options, ("restore", "again"))


def wrong(variant, verdicts):
  return {
    name: each
    for name, each in verdicts.items()
    if (each.finding is not None or each.what == "broken") and f"{variant} {name}" not in OPEN
  }


def judge_all(cases, jobs=2):
  verdicts = {}
  lock = threading.Lock()

  def work():
    worker = Worker()
    try:
      while True:
        with lock:
          name, case = next(cases, ("", None))
        if case is None:
          return
        verdicts[name] = worker.ask(case)
    finally:
      worker.close()

  in_parallel(jobs, work)
  return verdicts


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--jobs", type=int, default=2, help="processes (default 2)")
  parser.add_argument("--variants", nargs="*", choices=list(VARIANTS), default=list(VARIANTS))
  parser.add_argument("--part", default="0/1", help="such as 3/8: the fourth of eight parts")
  parser.add_argument("--reasons", action="store_true", help="what ONNX Runtime itself can't run, and why")
  arguments = parser.parse_args()
  part, parts = (int(each) for each in arguments.part.split("/"))
  failed = False
  for variant in arguments.variants:
    verdicts = judge_all(cases(variant, part, parts), arguments.jobs)
    for name, verdict in sorted(wrong(variant, verdicts).items()):
      failed = True
      print(f"{variant} {name}: {verdict.finding or verdict.message}", flush=True)
    for name, verdict in sorted(verdicts.items()):
      if verdict.finding is None and verdict.what != "same" and arguments.reasons:
        print(f"{variant} {name}: {verdict.what}: {verdict.message[:200]}")
    rewrites = sum(len(each.rewrites) for each in verdicts.values())
    counts = Counter(each.what for each in verdicts.values())
    print(f"{variant}: {len(verdicts)} cases, {dict(counts)}, {rewrites} rewrites", flush=True)
  return int(failed)


if __name__ == "__main__":
  sys.exit(main())
