"""The web service: requests at the same time, and those that are refused."""

import importlib
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from example_model import check

for needed in ("fastapi", "httpx2"):
  pytest.importorskip(needed, reason=f"{needed} is not installed; install the extra 'service'")


@pytest.fixture(scope="module")
def post(model):
  from fastapi.testclient import TestClient

  with pytest.MonkeyPatch.context() as patch:
    patch.setenv("MODEL", str(model))
    client = TestClient(importlib.import_module("service").app)
  return lambda inputs: client.post("/infer", json={"inputs": inputs})


def test_requests_at_the_same_time(post, rng):
  every = [rng.uniform(-4, 4, (batch, 3, 4, 4)).astype(np.float32) for batch in range(1, 33)]
  together = threading.Barrier(8)

  def ask(images):
    together.wait(30)
    return post({"image": images.tolist()})

  with ThreadPoolExecutor(8) as pool:
    answers = list(pool.map(ask, every))
  for images, answer in zip(every, answers, strict=True):
    check(answer.json()["outputs"], images)


def test_a_value_that_json_lacks(post):
  answer = post({"image": np.full((1, 3, 4, 4), None).tolist()})  # NaN to NumPy
  assert answer.json()["outputs"]["mean"] == [[None] * 3]


@pytest.mark.parametrize(
  "inputs, words",
  [
    ({"more": 1}, "takes the inputs ['image'], not ['more']"),
    ({"image": [[1, 2]]}, "has shape [1, 2]; the model's is ['N', 3, 4, 4]"),
    ({"image": np.zeros((2, 3, 4, 5)).tolist()}, "has shape [2, 3, 4, 5]"),
    ({"image": [[1], [2, 3]]}, "can't be read as tensor(float)"),
  ],
)
def test_what_is_refused(post, inputs, words):
  answer = post(inputs)
  assert answer.status_code == 422
  assert words in answer.json()["detail"]
