"""The sweep over networks: its list, its order, its judgement, its processes and its table. None of it needs a GPU."""

import os
import signal
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.checker
import onnx.parser
import onnx.printer
from onnx_models import one_in, parametrize, parsed

# Appended: `benchmarks` has a module of the name of a package of ours.
sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import timing
import zoo
import zoo_networks
from zoo_row import FACTOR, FLOORS, Job, Setting, in_float32, judge, make_session

ENVIRONMENT = {"gpu": "one", "driver": "1", "onnxruntime": "1", "torch": "1", "commit": "a" * 40, "date": "today"}

# ---- the list


def test_every_line_of_the_tables_is_a_case_of_its_own():
  listed = (zoo_networks.TORCHVISION + zoo_networks.TIMM).split()
  assert len(zoo_networks.CASES) == len(listed) + 2 * len(zoo_networks.TRANSFORMERS)


@parametrize(
  "kind, text, name, shape",
  [
    ("small", "resnet18", "resnet18@96*4", (4, 3, 96, 96)),
    ("usual", "resnet50", "resnet50@224", (8, 3, 224, 224)),
    ("usual", "fcn_resnet50*4", "fcn_resnet50@224", (4, 3, 224, 224)),
    ("small", "vit_b_32!", "vit_b_32@96*4", (4, 3, 96, 96)),
    ("small", "r3d_18@56*2", "r3d_18@56*2", (2, 3, 8, 56, 56)),
  ],
)
def test_what_a_name_of_the_tables_says(kind, text, name, shape):
  case = zoo_networks.image_case("torchvision", kind, text)
  assert case.name == name
  assert [each.shape for each in case.inputs] == [shape]
  assert case.build.args == (name.split("@")[0], 96 if "!" in text else 0)


def test_a_sweep_sees_every_network_once_before_one_twice():
  every = zoo.jobs()
  count = len(zoo_networks.CASES)
  assert len(set(every)) == len(every) == 4 * count
  for start in range(0, len(every), count):
    assert {job.case for job in every[start : start + count]} == set(zoo_networks.CASES)


# ---- judgement

HALF = {"precision": "fp16", "error": 1e-3, "error_torch": 1e-3, "error_ort": 1e-3, "differed": 0}
SINGLE = {"precision": "fp32", "error": 1e-6, "error_ort": 1e-6, "error_tf32": 1e-3, "error_tf32_ort": 1e-3}
LIMIT = FACTOR * 1e-3 + FLOORS["fp16"]


@parametrize(
  "row, verdict",
  [
    (HALF, "right"),
    (HALF | {"error": 0.99 * LIMIT}, "right"),
    (HALF | {"error": 1.01 * LIMIT}, "wrong"),
    (HALF | {"error": float("inf")}, "wrong"),
    (HALF | {"error": float("nan")}, "wrong"),
    (HALF | {"differed": 1}, "wrong"),
    (HALF | {"modes": 1e-6}, "wrong"),
    (HALF | {"differed": 1, "differed_ort": 5}, "not judged"),
    # ONNX Runtime errs as much with the original; or less, and then it is ours.
    (HALF | {"error": 0.5, "error_ort": 0.5}, "not judged"),
    (HALF | {"error": 0.5, "error_ort": 0.1}, "wrong"),
    (HALF | {"error": 0.5, "error_ort": 1e-3}, "wrong"),
    # The exported model computed in float32 is the nearer reference.
    (HALF | {"error": 0.5, "error_exported": 0.99 * LIMIT}, "right"),
    (HALF | {"error": 0.5, "error_exported": 1.01 * LIMIT}, "wrong"),
    (HALF | {"uncaptured": "why"}, "fails"),
    (HALF | {"uncaptured": "why", "ort_uncaptured": "why"}, "right"),
    (HALF | {"ort_uncaptured": "why"}, "right"),
    (SINGLE, "right"),
    (SINGLE | {"error": 1e-3}, "wrong"),
    (SINGLE | {"error_tf32": 1e-2}, "wrong"),
    (SINGLE | {"error_tf32": 1e-2, "error_rounded": 5e-3}, "right"),
    (SINGLE | {"error_tf32": 1e-2, "error_rounded": 4e-3}, "wrong"),
    ({"precision": "fp32", "error": 1e-6, "error_ort": 1e-6}, "right"),
    ({"precision": "fp32", "error_ort": 1e-6}, "not judged"),
    # The exporter wrote another network.
    ({"precision": "fp32", "error": 0.28, "error_ort": 0.28}, "not judged"),
  ],
)
def test_the_rule(row, verdict):
  found, why = judge(row)
  assert found == verdict
  assert bool(why) == (verdict != "right")


def test_the_exported_model_in_float32():
  # Numbers of float16 are their bits: w is 1.5 and -2, k is 0.5, v is 3 and 4.
  model = parsed(
    """(float16[2] x, bool c) => (float16[2] y) <float16[2] w = {15872,49152}, int64[1] n = {2}> {
            k = float16[1] {14336}
            zeros = ConstantOfShape <value=float16[1] {0}>(n)
            whole = Cast <to=7>(x)
            back = Cast <to=10>(whole)
            sum = Add(back, w)
            more = Add(sum, zeros)
            y = If(c) <
                then () => (float16[2] a) <float16[2] v = {16896,17408}> { a = Mul(more, v) },
                else () => (float16[2] b) { b = Mul(more, k) }
            >
        }""",
    20,
    10,
  )
  wide = in_float32(model)
  onnx.checker.check_model(wide, full_check=True)
  assert "float16" not in onnx.printer.to_text(wide)
  feeds = {"x": np.float32([1, 2]), "c": np.array(False)}
  session = make_session(wide.SerializeToString(), Setting("cpu"), plugin=False)
  np.testing.assert_array_equal(session.run(None, feeds)[0], np.float32([1.25, 0]))


# ---- processes


def _pretend(job, setting, tell):
  """Measures nothing: what happens is in the name of the case."""
  if job.case == "right":
    tell({"stage": "times", "failing": ""})
    tell({"error": 0.5, "process": os.getpid()})
    tell({"verdict": "right"})
  elif job.case == "dies":
    tell({"stage": "optimized", "failing": "fails"})
    print("some last words", flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)
  else:
    tell({"error_torch": 1e-3, "error_ort": 1e-3, "error": 0.5})
    tell({"stage": "times", "failing": ""})
    os._exit(3)


def _swept(*cases, **given):
  todo = [Job(case, "fp16", "dynamo") for case in cases]
  given = {"workers": 2, "limit": 20, "seconds": 300} | given
  rows = zoo.sweep(todo, Setting("cpu"), function=_pretend, **given)
  return {row["case"]: row for row in rows}


@one_in(0)
def test_a_process_that_dies_is_a_row_and_the_others_go_on():
  rows = _swept("dies", "right", "dies late", workers=1)
  assert rows["right"]["verdict"] == "right"
  assert not {"stage", "failing"} & rows["right"].keys()
  assert rows["dies"]["verdict"] == "fails"
  assert rows["dies"]["why"] == "died in 'optimized': SIGSEGV; some last words"
  # What it had found is judged.
  assert rows["dies late"]["verdict"] == "wrong"
  assert rows["dies late"]["why"].endswith("died in 'times': exit code 3")


# ---- record and table


def _row(case, precision="fp16", exporter="dynamo", **values):
  errors = {"error_torch": 1e-3} if precision == "fp16" else {}
  row = {"case": case, "precision": precision, "exporter": exporter, **errors, "error_ort": 1e-3, "error": 1.5e-3,
         "before": 49, "after": 24, "differed": 0, "us": 100.0, "us_ort": 250.0}  # fmt: skip
  return row | values


SMALL, USUAL, THIRD = list(zoo_networks.CASES)[:3]


def test_parts_merge_and_say_their_commits(tmp_path):
  first = {"environment": ENVIRONMENT, "rows": [_row(SMALL), _row(USUAL)]}
  second = {"environment": ENVIRONMENT | {"commit": "b" * 40}, "rows": [_row(USUAL, us=90.0), _row(THIRD)]}
  paths = [timing.write("zoo", record, tmp_path / name) for name, record in (("a", first), ("b", second))]
  merged = zoo.merge(paths)
  assert [(row["case"], row["us"], row.get("commit", "")[:1]) for row in merged["rows"]] == [
    (SMALL, 100.0, "a"),
    (USUAL, 90.0, ""),
    (THIRD, 100.0, ""),
  ]
  assert "; 1 rows at commit aaaaaaaaaaaa" in zoo.table(merged)
