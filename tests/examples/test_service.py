"""The web service: requests at the same time, and those that are refused."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from example_model import reference

pytest.importorskip("fastapi", reason="FastAPI is not installed; install the extra 'service'")
if not (find_spec("httpx2") or find_spec("httpx")):
  pytest.skip("httpx2 is not installed; install the extra 'service'", allow_module_level=True)
testclient = importlib.import_module("fastapi.testclient")


@pytest.fixture(scope="module")
def client(example: Callable[[str], ModuleType], model: Path) -> Any:
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv("MODEL", str(model))
    return testclient.TestClient(example("service").app)


def test_requests_at_the_same_time(client: Any, rng: np.random.Generator) -> None:
  together = threading.Barrier(8)

  def ask(batch: int) -> tuple[Any, Any]:
    images = rng_of[batch].uniform(-4, 4, (batch, 3, 4, 4)).astype(np.float32)
    together.wait(30)
    return images, client.post("/infer", json={"inputs": {"image": images.tolist()}})

  rng_of = dict(enumerate(rng.spawn(32), 1))
  with ThreadPoolExecutor(8) as pool:
    answers = list(pool.map(ask, rng_of))
  for images, answer in answers:
    assert answer.status_code == 200, answer.text
    outputs = {name: np.array(value) for name, value in answer.json()["outputs"].items()}
    wanted = reference(images)
    np.testing.assert_allclose(outputs["mean"], wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(outputs["largest"], wanted.max(1), rtol=1e-5, atol=1e-6)


def test_a_value_that_json_lacks(client: Any) -> None:
  answer = client.post("/infer", json={"inputs": {"image": np.full((1, 3, 4, 4), None).tolist()}})  # None is NaN
  assert answer.json()["outputs"]["mean"] == [[None] * 3]


@pytest.mark.parametrize(
  ("inputs", "words"),
  [
    ({}, "takes the inputs ['image']"),
    ({"image": [[1]], "more": 1}, "not ['image', 'more']"),
    ({"image": [[1, 2]]}, "has shape [1, 2]; the model's is ['N', 3, 4, 4]"),
    ({"image": np.zeros((2, 3, 4, 5)).tolist()}, "has shape [2, 3, 4, 5]"),
    ({"image": [[1], [2, 3]]}, "can't be read as tensor(float)"),
    ({"image": "four"}, "can't be read as tensor(float)"),
  ],
)
def test_what_is_refused(client: Any, inputs: dict[str, Any], words: str) -> None:
  answer = client.post("/infer", json={"inputs": inputs})
  assert answer.status_code == 422
  assert words in answer.json()["detail"]
