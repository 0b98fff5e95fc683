import importlib.util
import lzma
import sys
from pathlib import Path

from onnx_models import parametrize

# Appended: `benchmarks` has a module of the name of a package of ours.
sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import timing

ENVIRONMENT = {"gpu": "one", "driver": "1", "onnxruntime": "1", "torch": "1", "commit": "a" * 40, "date": "today"}


def _load_models():
  """benchmarks/models.py by another name, without what it does to sys.path: `models` is a package of ours."""
  path = Path(timing.__file__).with_name("models.py")
  spec = importlib.util.spec_from_file_location("benchmark_models", path)
  module = importlib.util.module_from_spec(spec)
  sys.modules[spec.name] = module
  before = [*sys.path]
  spec.loader.exec_module(module)
  sys.path[:] = before
  return module


models = _load_models()

# ---- whole networks


@parametrize(
  "text, dtype, sizes, found, title",
  [
    ("resnet50:8", "fp16", (8,), "resnet50:8", "ResNet-50, batch 8"),
    ("bert_base:8x128", "fp16", (8, 128), "bert_base:8x128", "BERT-base, 8x128"),
    ("bert_base:8x128", "bf16", (8, 128), "bert_base:8x128:bf16", "BERT-base, 8x128, bf16"),
    ("swin_t:4:fp32", "bf16", (4,), "swin_t:4:fp32", "Swin-T, batch 4, fp32"),
    ("whisper_encoder:1", "fp16", (1,), "whisper_encoder:1", "Whisper-tiny encoder, batch 1"),
  ],
)
def test_what_a_case_says(text, dtype, sizes, found, title):
  case = models.Case.parse(text, dtype)
  assert case.sizes == sizes
  assert str(case) == found
  assert models.Case.parse(found) == case
  assert case.title(case.network.exporter) == title
  other = "dynamo" if case.network.exporter == "torchscript" else "torchscript"
  assert case.title(other) == f"{title}, by {other}"


def test_the_pages_have_the_tables_of_the_records():
  records = {group: timing.read(timing.RESULTS / f"{group}.json.xz") for group in models.GROUPS}
  for record in records.values():
    assert models.table(record) in timing.BENCHMARKS.read_text()
  assert models.headline(records) in timing.README.read_text()


# ---- records


def test_a_record_is_what_was_written(tmp_path):
  rows = [
    {"case": "a", "us": {"ours": 12.0, "ort": 3.25}, "shapes": {"x": [2, 3]}, "counts": {"Relu": 1}, "empty": {}},
    {"case": "a", "us": {"ours": 0.000303, "ort": 1.23456789}, "shapes": {"x": []}, "counts": {"MatMul": 2},
     "error": 1.5e-7, "small": 0.0021},
    {"case": "b", "us": {"ours": 5e-4}, "shapes": {"x": [1]}, "counts": {"Add": 3}, "commit": "0.00051"},
    {"case": "b", "us": {"ours": 1e20, "ort": -0.5}, "shapes": {"x": [1]}, "counts": {"Sub": 1}},
  ]  # fmt: skip
  record = {"environment": ENVIRONMENT, "rows": rows, "rate": 0.0001}
  wanted = {**record, "rows": [{**rows[0]}, {**rows[1], "us": {"ours": 0.000303, "ort": 1.23457}}, *rows[2:]]}
  for columns in (False, True):
    path = timing.write("record", record, tmp_path, columns=columns)
    assert timing.read(path) == wanted
    assert timing.read(timing.write("several", {"a": record, "b": wanted}, tmp_path, columns=columns)) == {
      "a": wanted,
      "b": wanted,
    }
  text = lzma.decompress(path.read_bytes()).decode()
  assert '"case","us/ours","shapes/x","counts","us/ort"' in text
  assert "303e-6," in text
  assert "15e-8" in text
  assert '"counts/' not in text  # each row has others
