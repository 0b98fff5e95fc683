"""The cases that were ever wrong (tests/fuzz/corpus) on CUDA, without a graph and under one."""

import pytest
from fuzz.corpus import corpus, from_text
from fuzz.worker import Worker


@pytest.fixture(scope="module", params=["cuda", "cuda-graph"])
def worker(request):
  worker = Worker(request.param, 120)
  yield worker
  worker.close()


@pytest.mark.parametrize("name", sorted(corpus()))
def test_corpus(name, worker):
  """Some cannot be compared there: ONNX Runtime lacks a kernel, or the original is not right itself."""
  verdict = worker.ask(from_text(corpus()[name]))
  assert verdict.what in ("same", "unfit"), verdict
