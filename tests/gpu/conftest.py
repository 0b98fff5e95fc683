"""All tests of this folder need the library."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def needs_library(library):
  """Fails without it."""
