"""All tests of this folder need the library."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def needs_library(library):
  """Fails without it."""


@pytest.fixture
def hopper():
  """Skips the test on another GPU."""
  import cupy

  if cupy.cuda.Device().compute_capability != "90":
    pytest.skip("its instructions are Hopper's")
