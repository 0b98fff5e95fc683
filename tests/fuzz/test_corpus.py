"""Every case that was ever wrong, minimised: corpus/ only grows. open.txt names those that wait to be mended."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fuzz.corpus import FOLDER, from_text, open_faults
from fuzz.worker import Worker

OPEN = open_faults()
CASES = [
    pytest.param(path, id=path.stem, marks=[pytest.mark.xfail(strict=True, reason=OPEN[path.stem])]
                 if path.stem in OPEN else [])
    for path in sorted(FOLDER.glob("*.txt"))
]  # fmt: skip


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    worker = Worker()
    yield worker
    worker.close()


@pytest.mark.parametrize("path", CASES)
def test_corpus(path: Path, worker: Worker) -> None:
    verdict = worker.ask(from_text(path.read_text()))
    assert verdict.what == "same", verdict


def test_open_faults_have_cases() -> None:
    assert OPEN.keys() <= {path.stem for path in FOLDER.glob("*.txt")}
