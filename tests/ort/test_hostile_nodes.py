"""Nodes that nobody should write: each is refused with a status that says which node and what is wrong, or runs right.

They run in processes of their own: one that crashes is a test that fails, and not the end of all tests.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hostile_nodes import nodes

SCRIPT = Path(__file__).resolve().parent.parent / "hostile_nodes.py"
PATIENCE = 30 * int(os.environ.get("ORTPLUGIN_TEST_SLOWNESS", "1"))  # seconds for one node
WORKERS = min(4, os.cpu_count() or 1)


def _work(first: int) -> dict[int, dict[str, Any]]:
    """What became of every WORKERS-th node from `first` on. A process that ends early is followed by another."""
    found: dict[int, dict[str, Any]] = {}
    path = os.pathsep.join(each for each in sys.path if each)
    while first < len(nodes()):
        command = [sys.executable, str(SCRIPT), str(first), str(WORKERS)]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
        )
        assert process.stdout is not None
        assert process.stderr is not None
        errors: list[str] = []
        reader = threading.Thread(target=lambda p=process: errors.append(p.stderr.read()), daemon=True)
        reader.start()
        begun: int | None = None
        timer = threading.Timer(PATIENCE * 2, process.kill)  # until the first line: imports, and the list of nodes
        timer.start()
        for line in process.stdout:
            timer.cancel()
            timer = threading.Timer(PATIENCE, process.kill)
            timer.start()
            told = json.loads(line)
            begun = told.get("begins")
            if begun is None:
                found[told["ends"]] = told
        timer.cancel()
        status = process.wait()
        reader.join()
        if begun is None:
            assert status == 0, f"the process that starts at node {first} ended with {status}: {errors[0][-2000:]}"
            break
        how = "it took too long" if status == -signal.SIGKILL else f"the process ended with {status}"
        found[begun] = {"crashed": f"{how}: {errors[0][-3000:]}"}
        first = begun + WORKERS
    return found


@pytest.fixture(scope="module")
def found(library: Path) -> dict[int, dict[str, Any]]:
    """What became of each node, by its number: `refused`, `crashed`, or the `shapes` of its outputs."""
    with ThreadPoolExecutor(WORKERS) as pool:
        parts = list(pool.map(_work, range(WORKERS)))
    return {number: each for part in parts for number, each in part.items()}


def _fail(wrong: list[str]) -> None:
    assert not wrong, f"{len(wrong)} nodes:\n" + "\n".join(wrong[:20])


def test_no_node_ends_the_process(found: dict[int, dict[str, Any]]) -> None:
    assert set(found) == set(range(len(nodes())))
    _fail([f"{nodes()[n].op} {nodes()[n].name}: {each['crashed']}" for n, each in found.items() if "crashed" in each])
