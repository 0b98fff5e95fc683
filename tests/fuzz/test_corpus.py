"""Every case that was ever wrong, minimised: the corpus only grows. open.txt names those that wait to be mended."""

import pytest

from fuzz.corpus import corpus, from_text, open_faults
from fuzz.worker import Worker

OPEN = open_faults()
CASES = [
  pytest.param(text, id=name, marks=[pytest.mark.xfail(strict=True, reason=OPEN[name])] if name in OPEN else [])
  for name, text in sorted(corpus().items())
]


@pytest.fixture(scope="module")
def worker():
  worker = Worker()
  yield worker
  worker.close()


@pytest.mark.parametrize("text", CASES)
def test_corpus(text, worker):
  verdict = worker.ask(from_text(text))
  assert verdict.what == "same", verdict


def test_open_faults_have_cases():
  assert OPEN.keys() <= corpus().keys()
