"""The archive of models and what is said of them; each exporter replaces its own files in it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from models.names import shorten_names
from models.packed import ARCHIVE, pack, shorten_weights, strip, unpack

FILES = ARCHIVE.with_name("architectures.tar.xz")
ENTRIES = "architectures.json"
SEED = 20240701

Feeds = Mapping[str, np.ndarray]


def finished(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model without doc strings and metadata, where exporters store paths; checked."""
    strip(proto)
    onnx.checker.check_model(proto, full_check=True)
    return proto


def shorten(proto: onnx.ModelProto) -> None:
    """For a smaller archive: short weights, short names, and of a model whose inputs have no open lengths no shapes of
    values, which follow from those. A second time changes nothing."""
    dims = (dim for each in proto.graph.input for dim in each.type.tensor_type.shape.dim)
    if all(dim.HasField("dim_value") for dim in dims):
        del proto.graph.value_info[:]
    shorten_names(proto)
    shorten_weights(proto)  # by their names


def check(proto: onnx.ModelProto, runs: Sequence[tuple[Feeds, Sequence[np.ndarray]]], what: str) -> None:
    """Raises AssertionError where ONNX Runtime gives other values than the library that the model comes from."""
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    names = {each.name for each in session.get_inputs()}
    for feeds, wanted in runs:
        found = session.run(None, {name: value for name, value in feeds.items() if name in names})
        for got, value in zip(found, wanted, strict=True):
            scale = float(np.abs(value).max()) if value.dtype.kind == "f" and value.size else 1.0
            np.testing.assert_allclose(got, value, rtol=1e-3, atol=1e-4 * scale, err_msg=what)


def check_first(proto: onnx.ModelProto, runs: Sequence[tuple[Feeds, np.ndarray]]) -> None:
    """`check` of the first output only, whatever its shape; labels must be the same."""
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for feeds, wanted in runs:
        got = session.run(None, dict(feeds))[0].reshape(wanted.shape)
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-3)


def entry(
    architecture: str, exporter: str, proto: onnx.ModelProto, runs: Sequence[Feeds], packages: Sequence[str],
    high: Mapping[str, int] | None = None, **more: Any,
) -> dict[str, Any]:  # fmt: skip
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


def write(made: Mapping[str, tuple[onnx.ModelProto, dict[str, Any]]], known: set[str], exporters: set[str]) -> None:
    """Adds the models to the archive, in place of their former ones, and removes those of `exporters` not `known`."""
    with tempfile.TemporaryDirectory(prefix="ortplugin-models-") as name:
        folder = Path(name)
        if FILES.exists():
            unpack(folder, FILES)
        path = folder / ENTRIES
        said_before = json.loads(path.read_text()) if path.exists() else {"exporters": {}, "models": {}}
        entries: dict[str, Any] = said_before["models"]
        versions: dict[str, Any] = said_before["exporters"]
        for model, (proto, said) in made.items():
            shorten(proto)
            (folder / f"{model}.onnx").write_bytes(proto.SerializeToString(deterministic=True))
            entries[model] = {key: value for key, value in said.items() if key != "versions"}
            versions[said["exporter"]] = said["versions"]
        gone = [each for each, said in entries.items() if said["exporter"] in exporters and each not in known]
        for each in gone:
            (folder / f"{each}.onnx").unlink()
            del entries[each]
        parts = ({"exporters": versions, "models": entries}).items()
        path.write_text("{\n" + ",\n".join(f"{json.dumps(name)}: {_lines(part)}" for name, part in parts) + "\n}\n")
        pack(folder, FILES)
    print(f"{len(entries)} models, {FILES.stat().st_size} bytes")


def _lines(part: Mapping[str, Any]) -> str:
    """An object as JSON, with a line for each of its keys."""
    lines = (f"{json.dumps(each)}: {json.dumps(part[each], separators=(',', ':'))}" for each in sorted(part))
    return "{\n" + ",\n".join(lines) + "\n}"
