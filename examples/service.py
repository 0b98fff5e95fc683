"""A web service with one optimized session: JSON numbers in, JSON numbers out.

    MODEL=fast.onnx uvicorn --app-dir examples service:app

    curl -X POST localhost:8000/infer -H 'Content-Type: application/json' -d '{"inputs": {"x": [[1, 2], [3, 4]]}}'

The inputs' first dimension is the batch. FastAPI runs `infer`, which is no coroutine, in a pool of threads: they share
the session, whose `run` may be called by several threads at the same time. Values that JSON lacks (NaN, infinities)
are null in the answer.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

import ortplugin


class Request(BaseModel):
  """Nested lists of numbers by input."""

  inputs: dict[str, Any]


class Response(BaseModel):
  """Nested lists of numbers by output."""

  outputs: dict[str, Any]


def create(model: str | Path) -> FastAPI:
  """The service of a model, on a GPU where there is one."""
  session = ortplugin.session(model)
  inputs, names = session.get_inputs(), [value.name for value in session.get_outputs()]
  service = FastAPI(title=Path(model).name)

  @service.post("/infer")
  def infer(request: Request) -> Response:
    known = {value.name for value in inputs}
    if request.inputs.keys() != known:
      raise HTTPException(422, f"the model takes the inputs {sorted(known)}, not {sorted(request.inputs)}")
    feeds = {value.name: tensor(request.inputs[value.name], value) for value in inputs}
    results = session.run(names, feeds)
    return Response(outputs={name: array.tolist() for name, array in zip(names, results, strict=True)})

  return service


def tensor(numbers: Any, value: Any) -> Any:
  """Nested lists in the dtype of an input of the model, if they have its shape; an HTTP error 422 if not."""
  element = value.type.removeprefix("tensor(").removesuffix(")")
  try:
    array = np.array(numbers, {"float": "float32", "double": "float64"}.get(element, element))
  except (TypeError, ValueError, OverflowError) as error:
    raise HTTPException(422, f"input '{value.name}' can't be read as {value.type}: {error}") from error
  sizes = zip(array.shape, value.shape, strict=False)
  if array.ndim != len(value.shape) or any(isinstance(b, int) and a != b for a, b in sizes):
    raise HTTPException(422, f"input '{value.name}' has shape {list(array.shape)}; the model's is {value.shape}")
  return array


if "MODEL" in os.environ:
  app = create(os.environ["MODEL"])
