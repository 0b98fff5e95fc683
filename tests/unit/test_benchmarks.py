import importlib.util
import sys
from pathlib import Path

# Appended: `benchmarks` has a module of the name of a package of ours.
sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import timing


def _load_models():
  """benchmarks/models.py by another name, without what it does to sys.path: `models` is a package of ours."""
  path = Path(timing.__file__).with_name("models.py")
  spec = importlib.util.spec_from_file_location("benchmark_models", path)
  module = importlib.util.module_from_spec(spec)
  sys.modules[spec.name] = module
  before = [*sys.path]
  spec.loader.exec_module(module)
  sys.path[:] = before
  return module


models = _load_models()


def test_the_pages_have_the_tables_of_the_records():
  records = {group: timing.read(timing.RESULTS / f"{group}.json.xz") for group in models.GROUPS}
  for record in records.values():
    assert models.table(record) in timing.BENCHMARKS.read_text()
  assert models.headline(records) in timing.README.read_text()
