"""All tests of this folder need the library."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def needs_library(library: Path) -> None:
  """Fails without it."""
