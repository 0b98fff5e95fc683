"""--tune on the GPU: candidates are timed in CUDA graphs, and the tuned model agrees with the original."""

import numpy as np
import onnx
import pytest
from conv_grad_cases import RELU, Case, Geometry, check
from exported import DATA
from node_cases import UNIT_ROUNDOFF, typed
from onnx_models import nodes_of, parsed

import ortplugin
from gpu.device import cupy
from ortplugin.check import tune
from ortplugin.session import CUDA

pytestmark = pytest.mark.gpu

ROWS, UPDATES, WIDTH = 5000, 3000, 64


def scatter_model():
  """Rows of a matrix replaced, by the standard's operator."""
  inputs = f"float[{ROWS},{WIDTH}] data, int64[{UPDATES},1] at, float[{UPDATES},{WIDTH}] rows"
  return parsed(f"g ({inputs}) => (float[{ROWS},{WIDTH}] y) {{ [scatter] y = ScatterND(data, at, rows) }}", 18, 10)


def test_a_scatter(rng):
  feeds = {
    "data": rng.standard_normal((ROWS, WIDTH), dtype=np.float32),
    "at": rng.permutation(ROWS)[:UPDATES, None],
    "rows": rng.standard_normal((UPDATES, WIDTH), dtype=np.float32),
  }
  tuned, report = ortplugin.optimize(scatter_model(), tune=True, verify=True, providers=["cuda"], inputs=feeds)
  assert report.passed
  (entry,) = report.tuning
  times = entry.microseconds
  assert set(times) == {"", "algorithm=sequential", "algorithm=parallel", "algorithm=sorting", tune.STANDARD}
  default, standard = times[""], times[tune.STANDARD]
  assert default is not None
  assert standard is not None
  assert default < standard
  expected = feeds["data"].copy()
  expected[feeds["at"][:, 0]] = feeds["rows"]
  session = ortplugin.session(tuned.SerializeToString(), providers=["cuda"])
  assert (cupy.asnumpy(ortplugin.run(session, feeds)["y"]) == expected).all()


def conv_model(rng):
  """A convolution with bias and Relu, float16."""
  w = (rng.standard_normal((64, 64, 3, 3)) / 24).astype(np.float16)
  b = rng.standard_normal(64).astype(np.float16)
  return parsed(
    """g (float16[2,64,28,28] x) => (float16[2,64,28,28] y) {
        [conv] c = Conv <pads=[1,1,1,1]>(x, w, b)  [relu] y = Relu(c) }""",
    18,
    10,
    weights={"w": w, "b": b},
  )


def test_a_convolution(rng):
  """cuDNN's plans are timed, and the one that is kept says so in the node and runs without complaint."""
  model = conv_model(rng)
  feeds = {"x": rng.standard_normal((2, 64, 28, 28)).astype(np.float16)}
  tuned, report = ortplugin.optimize(model, tune=True, verify=True, providers=["cuda"], inputs=feeds)
  assert report.passed
  (entry,) = (each for each in report.tuning if "(FusedConv)" in each.node)
  names = [name for name in entry.microseconds if name not in ("", tune.STANDARD)]
  assert any(name.startswith("algorithm=fused:engine=") for name in names)
  assert any(name.startswith("algorithm=split:engine=") for name in names)
  assert all(entry.microseconds[name] is not None for name in names)
  found = nodes_of(tuned, "FusedConv")
  if entry.choice.startswith("algorithm="):
    (attribute,) = (each for each in found[0].attribute if each.name == "algorithm")
    assert f"algorithm={attribute.s.decode()}" == entry.choice


GRADIENTS = (
  Case("fp16", Geometry(8, 64, (28, 28), 64, 3, pads=1), typed(RELU, "float16"), layout="NHWC",
       attributes={"weight_dtype": "float"}),
  Case("few channels", Geometry(100, 1, (28, 28), 16, 3, pads=1), typed(RELU, "float")),
  Case("a poor choice", Geometry(100, 1, (28, 28), 16, 3, pads=1), typed(RELU, "float"),
       attributes={"weight_algorithm": "cudnn", "data_algorithm": "cudnn"}),
)  # fmt: skip


@pytest.mark.parametrize("case", GRADIENTS)
def test_a_gradient(case, capfd):
  """Ways to make dX, then, beside the best of these, ways to make dW; the node says which are kept."""
  tuned, (entry,) = tune.tune(onnx.load_from_string(case.model()), case.feeds(), CUDA)
  times = entry.microseconds
  assert times[""] is not None
  measured = [name for name in times if times[name] is not None or name in entry.wrong]
  beside = [name for name in measured if ", " in name]  # a way to make dW, with the dX that was chosen
  assert sum(name.startswith("data_algorithm=") and ", " not in name for name in measured) > 1
  assert sum("weight_algorithm=" in name for name in measured) > 1
  assert len({name.partition(", ")[0] for name in beside}) <= 1
  (found,) = nodes_of(tuned, "ConvGrad") or [None]
  if entry.choice != tune.STANDARD:
    assert found is not None
    given = {each.name: each.s.decode() for each in found.attribute}
    for choice in filter(None, entry.choice.split(", ")):
      name, _, text = choice.partition("=")
      assert given[name] == text
  if case.name == "a poor choice":
    assert entry.choice.endswith(("weight_algorithm=own", "weight_algorithm=auto"))  # which is own here
  session = ortplugin.session(tuned.SerializeToString(), providers=["cuda"])
  results = ortplugin.run(session, case.feeds())
  check(case, [cupy.asnumpy(results[name]) for name in case.outputs()], unit=UNIT_ROUNDOFF[case.gradient.dtype])
  assert "is not used" not in capfd.readouterr().err


def test_a_transformer():
  _, report = ortplugin.optimize(DATA / "bert_dynamo.onnx", tune=True, verify=True, providers=["cuda"])
  assert report.passed
  assert report.tuning
  assert all(entry.microseconds[""] is not None for entry in report.tuning)
