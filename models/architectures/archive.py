"""The archive of models and what is said of them; each exporter replaces its own files in it.

python -m models.architectures.archive      # leaves out what adds nothing to the others
"""

import json
import re
import tempfile
from collections import Counter
from collections.abc import Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

import ortplugin
from models.names import shorten_names
from models.packed import ARCHIVE, pack, shorten_weights, strip, unpack
from ortplugin.graph.messages import walk_nodes

FILES = ARCHIVE.with_name("architectures.tar.bz2")
ENTRIES = "architectures.json"
SEED = 20240701

Feeds = Mapping[str, np.ndarray]


def finished(proto):
  """The model without doc strings and metadata, where exporters store paths; checked."""
  strip(proto)
  onnx.checker.check_model(proto, full_check=True)
  return proto


def shorten(proto):
  """For a smaller archive: short weights, short names, and of a model whose inputs have no open lengths no shapes of
  values, which follow from those. A second time changes nothing."""
  dims = (dim for each in proto.graph.input for dim in each.type.tensor_type.shape.dim)
  if all(dim.HasField("dim_value") for dim in dims):
    del proto.graph.value_info[:]
  shorten_names(proto)
  shorten_weights(proto)  # by their names


def check(proto, runs, what):
  """Raises AssertionError where ONNX Runtime gives other values than the library that the model comes from."""
  session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
  names = {each.name for each in session.get_inputs()}
  for feeds, wanted in runs:
    found = session.run(None, {name: value for name, value in feeds.items() if name in names})
    for got, value in zip(found, wanted, strict=True):
      scale = float(np.abs(value).max()) if value.dtype.kind == "f" and value.size else 1.0
      np.testing.assert_allclose(got, value, rtol=1e-3, atol=1e-4 * scale, err_msg=what)


def check_first(proto, runs):
  """`check` of the first output only, whatever its shape; labels must be the same."""
  session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
  for feeds, wanted in runs:
    got = session.run(None, dict(feeds))[0].reshape(wanted.shape)
    np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-3)


def entry(
    architecture, exporter, proto, runs, packages,
    high=None, **more,
):  # fmt: skip
  """What architectures.json says of a model. `runs`: its inputs, once for each of the shapes to run."""
  known = {each.name for each in proto.graph.input}
  inputs = {
    name: {
      "dtype": value.dtype.name if value.dtype.kind != "U" else "str",
      "shapes": [list(run[name].shape) for run in runs],
      **({"high": high[name]} if high and high.get(name) else {}),
    }
    for name, value in runs[0].items()
    if name in known
  }
  return {
    "architecture": architecture,
    "exporter": exporter,
    "opset": next(each.version for each in proto.opset_import if each.domain in ("", "ai.onnx")),
    "inputs": inputs,
    **more,
    "versions": {package: version(package).split("+")[0] for package in packages},
  }


def write(made, known, exporters):
  """Adds the models to the archive, in place of their former ones, and removes those of `exporters` not `known`."""
  with _opened() as (folder, versions, entries):
    for model, (proto, said) in made.items():
      shorten(proto)
      (folder / f"{model}.onnx").write_bytes(proto.SerializeToString(deterministic=True))
      entries[model] = {key: value for key, value in said.items() if key != "versions"}
      versions[said["exporter"]] = said["versions"]
    gone = [each for each, said in entries.items() if said["exporter"] in exporters and each not in known]
    for each in gone:
      (folder / f"{each}.onnx").unlink()
      del entries[each]


def prune():
  """Removes PyTorch's models, largest first, whose passes, near misses and operators all are other files' as well."""
  with _opened() as (folder, _, entries):
    features = {name: _features(folder / f"{name}.onnx") for name in entries}
    counts = Counter(each for found in features.values() for each in found)
    sizes = {name: (folder / f"{name}.onnx").stat().st_size for name in entries}
    for name in sorted(entries, key=lambda name: -sizes[name]):
      of_torch = entries[name]["exporter"] in ("dynamo", "torchscript")
      if of_torch and all(counts[each] > 1 for each in features[name]):
        (folder / f"{name}.onnx").unlink()
        del entries[name]
        counts.subtract(features[name])


def _features(path):
  """What the optimizer meets and makes in a model, as it is and in float16."""
  found = {node.op_type for node in walk_nodes(onnx.load(path))}
  for precision in (None, "fp16"):
    model, report = ortplugin.optimize(path, precision=precision)
    found |= {node.op_type for node in walk_nodes(model)} | {change.rewrite for change in report.changes}
    reasons = (f"{miss.rewrite}: {miss.reason}" for miss in report.near_misses)
    found |= {re.sub(r"'[^']*'|\d+", "", each) for each in reasons}
  return found


@contextmanager
def _opened():
  """The files of the archive in a folder, and what is said of exporters and models; packed again at the end."""
  with tempfile.TemporaryDirectory(prefix="ortplugin-models-") as name:
    folder = Path(name)
    if FILES.exists():
      unpack(folder, FILES)
    path = folder / ENTRIES
    said = json.loads(path.read_text()) if path.exists() else {"exporters": {}, "models": {}}
    yield folder, said["exporters"], said["models"]
    path.write_text("{\n" + ",\n".join(f"{json.dumps(key)}: {_lines(part)}" for key, part in said.items()) + "\n}\n")
    pack(folder, FILES)
  print(f"{len(said['models'])} models, {FILES.stat().st_size} bytes")


def _lines(part):
  """An object as JSON, with a line for each of its keys."""
  lines = (f"{json.dumps(each)}: {json.dumps(part[each], separators=(',', ':'))}" for each in sorted(part))
  return "{\n" + ",\n".join(lines) + "\n}"


if __name__ == "__main__":
  prune()
