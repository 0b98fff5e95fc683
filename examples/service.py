"""A web service with one optimized session, which the threads of the server share.

    MODEL=fast.onnx uvicorn --app-dir examples service:app
    curl localhost:8000/infer -H 'Content-Type: application/json' -d '{"inputs": {"x": [[1, 2], [3, 4]]}}'

The first dimension is the batch. NaN and infinities, which JSON lacks, are null in the answer.
"""

import os
from typing import Annotated, Any

import numpy as np
from fastapi import Body, FastAPI, HTTPException

import ortplugin

app = FastAPI()
session = ortplugin.session(os.environ["MODEL"])


@app.post("/infer")
def infer(inputs: Annotated[dict[str, Any], Body(embed=True)]) -> dict[str, Any]:
  """Runs the model in one of the threads that FastAPI has for functions that are no coroutines."""
  known = {value.name: value for value in session.get_inputs()}
  if inputs.keys() != known.keys():
    raise HTTPException(422, f"the model takes the inputs {sorted(known)}, not {sorted(inputs)}")
  feeds = {name: tensor(numbers, known[name]) for name, numbers in inputs.items()}
  results = zip(session.get_outputs(), session.run(None, feeds), strict=True)
  return {"outputs": {value.name: array.tolist() for value, array in results}}


def tensor(numbers: Any, value: Any) -> Any:
  """Nested lists as an array of the dtype and shape of an input of the model."""
  element = value.type.removeprefix("tensor(").removesuffix(")")
  try:
    array = np.array(numbers, {"float": "float32", "double": "float64"}.get(element, element))
  except (TypeError, ValueError, OverflowError) as error:
    raise HTTPException(422, f"input '{value.name}' can't be read as {value.type}: {error}") from error
  sizes = list(zip(array.shape, value.shape, strict=False))
  if array.ndim != len(value.shape) or any(isinstance(size, int) and size != given for given, size in sizes):
    raise HTTPException(422, f"input '{value.name}' has shape {list(array.shape)}; the model's is {value.shape}")
  return array
