import importlib.util
import lzma
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.checker
from onnx_models import parametrize, raises

# Appended: `benchmarks` has a module of the name of a package of ours.
sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import attention
import matmul
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


@parametrize(
  "text, message",
  [
    ("nothing:8", "'nothing:8' has no name of resnet50"),
    ("resnet50", "'resnet50' is not resnet50:BATCH"),
    ("resnet50:8x128", "is not resnet50:BATCH"),
    ("bert_base:8", "is not bert_base:BATCHxLENGTH"),
    ("bert_base:8x0", "is not bert_base:BATCHxLENGTH"),
    ("resnet50:8:int8", "ends in none of fp16, bf16, fp32"),
  ],
)
def test_a_case_that_is_none_says_what_would_be(text, message):
  with raises(SystemExit, message):
    models.Case.parse(text)


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


# ---- attention


def test_cases_of_attention_are_distinct_and_have_steps_that_fit():
  assert len({str(case) for case in attention.CASES}) == len(attention.CASES)
  for case in attention.CASES:
    elements = sum(np.prod(shape) for shape in case.shapes().values())
    assert 5 <= case.steps <= 25
    assert case.steps * 2 * elements <= 1.1 * attention.BYTES


@parametrize(
  "given, flops, text",
  [
    ({}, 4 * 2 * 4 * 32 * 81, "x, 2 x 4 x 9 x 32"),
    ({"causal": True}, 4 * 2 * 4 * 32 * 45, "x, 2 x 4 x 9 x 32, causal"),
    ({"keys": 5, "kv_heads": 2, "mask": "bias"}, 4 * 2 * 4 * 32 * 45, "x, 2 x 4 x 9 x 5 x 32, 2 kv heads, bias"),
  ],
)
def test_flops_are_of_what_is_seen(given, flops, text):
  case = attention.Case("sweep", "x", 2, 9, 4, 32, **given)
  assert case.flops == flops
  assert str(case) == text


@parametrize("mask", ["", "bias", "padding"])
def test_a_step_of_attention_shares_nothing(mask):
  model = onnx.load_from_string(attention.Case("sweep", "x", 2, 9, 4, 32, keys=5, kv_heads=2, mask=mask).model(3))
  onnx.checker.check_model(model)
  names = [name for node in model.graph.node for name in (*node.input, *node.output)]
  assert len(set(names)) == len(names) == 3 * (5 if mask else 4)
  assert {value.name for value in (*model.graph.input, *model.graph.output)} == set(names)


# ---- matrix products


def test_products_are_distinct_and_have_steps_that_fit():
  cases = [*matmul.network_cases(), *matmul.sweep_cases(matmul.ROWS, matmul.WEIGHTS, list(matmul.EPILOGUES))]
  assert len({str(case) for case in cases}) == len(cases)
  for case in cases:
    assert 4 <= case.steps <= 25
    assert case.steps * 2 * case.n * case.k <= 2**30  # a model holds less than 2 GiB


@parametrize("epilogue", matmul.EPILOGUES)
@parametrize("dtype", ["float16", "float"])
def test_a_step_of_a_product_shares_nothing(epilogue, dtype):
  case = matmul.Case("sweep", "", 3, 5, 7, epilogue, dtype)
  weights = [{"w": np.ones((5, 7), case.numpy), "b": np.ones(5, case.numpy)} for _ in range(2)]
  model = onnx.load_from_string(case.model(2, weights))
  onnx.checker.check_model(model)
  names = [name for node in model.graph.node for name in (*node.input, *node.output)]
  assert len(set(names)) == len(names) == 2 * (3 + len(case.operands))
  assert {tuple(tensor.dims) for tensor in model.graph.initializer} - {(5,)} == {(5, 7)}
