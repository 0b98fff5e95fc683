import ast
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from onnx_models import parametrize, raises

from ortplugin import target
from ortplugin.passes.conv import turn_conv_transpose
from ortplugin.passes.layout import image_output
from ortplugin.passes.pointwise import cost
from ortplugin.target import DEFAULT, ENGINES, TARGETS, read

ROOT = Path(__file__).resolve().parents[2]
PRINT_TARGETS = ROOT / "build" / "native" / "print_targets"

# Numbers that a pass may write: none that a measurement gives.
COUNTS = {0, 1, 2, -1}
RANK = 4  # of an image's tensors


@pytest.mark.skipif(not PRINT_TARGETS.exists(), reason="build/native/print_targets is not built; `make native` does it")
def test_both_languages_read_the_same():
  native = subprocess.run([PRINT_TARGETS], capture_output=True, text=True, check=True).stdout.splitlines()
  lines = [f"engines {name} {float(limit.value)!r}" for name, limit in ENGINES.limits.items()]
  for entry in TARGETS:
    assert entry.capability is not None, entry.name
    major, minor = entry.capability
    lines.append(f"{entry.name} {major}.{minor}{' default' if entry is DEFAULT else ''}")
    lines += [f"{entry.name} {name} {float(limit.value)!r}" for name, limit in entry.limits.items()]
  assert sorted(_normal(line) for line in native) == sorted(lines)


def _normal(line):
  *words, last = line.split(" ")
  return " ".join([*words, repr(float(last))]) if re.fullmatch(r"[-\d.e+]+", last) and len(words) == 2 else line


def test_every_gpu_has_every_limit():
  assert {path.stem.upper() for path in target.FOLDER.glob("*.def")} == {"ENGINES", *(each.name for each in TARGETS)}
  assert len({each.capability for each in TARGETS}) == len(TARGETS)
  for entry in TARGETS:
    assert list(entry.limits) == list(DEFAULT.limits), entry.name
    assert all(limit.value >= 0 for limit in entry.limits.values())


@parametrize("entry", TARGETS, ids=lambda entry: entry.name)
def test_every_limit_is_measured_by_a_command_of_this_repository(entry):
  for limit in entry.limits.values():
    assert all((limit.unit, limit.why)), limit.name
    path, *options = shlex.split(limit.command)
    script = ROOT / "benchmarks" / path
    assert script.exists(), limit
    for flag in (each for each in options if each.startswith("--")):
      assert f'"{flag}"' in script.read_text(), f"{limit.name}: {path} knows no {flag}"


def test_what_engines_take_names_its_test():
  for limit in ENGINES.limits.values():
    assert all((limit.unit, limit.why, (ROOT / limit.command).exists())), limit


@parametrize("entry", [DEFAULT, ENGINES], ids=["h200", "engines"])
def test_every_limit_is_asked_for(entry):
  sources = [path.read_text() for path in (ROOT / "ortplugin").rglob("*.cc")]
  sources += [path.read_text() for path in (ROOT / "ortplugin" / "passes").rglob("*.py")]
  asked = "\n".join(sources)
  unused = [name for name in entry.limits if not re.search(rf"\b{name}\b", asked)]
  assert not unused


def test_a_pass_and_its_engine_ask_the_same_lines():
  """One that asks less than the other has drifted: the pass then writes images that the engine does not."""
  asked = [Path(image_output.__file__), ROOT / "ortplugin" / "ops" / "conv" / "engines" / "few_output_channels.cc"]
  wanted = {name for name in ENGINES.limits if name.startswith("few_output_channels_")}
  for path in asked:
    assert set(re.findall(r"\bfew_output_channels_[a-z0-9_]+", path.read_text())) & set(ENGINES.limits) == wanted


def numbers_of(path):
  """Each number beyond COUNTS that a module writes outside its docstrings, with its line."""
  found = []
  for node in ast.walk(ast.parse(path.read_text())):
    known = isinstance(node, ast.Constant) and type(node.value) in (int, float) and node.value not in COUNTS
    if known and isinstance(node, ast.Constant):
      found.append(f"{path.name}:{node.lineno}: {node.value}")
  return found


@parametrize("module", [turn_conv_transpose, image_output], ids=lambda module: module.__name__)
def test_passes_have_no_measured_limit(module):
  path = Path(str(module.__file__))
  assert [each for each in numbers_of(path) if not each.endswith(f": {RANK}")] == []


def test_costs_have_no_measured_limit():
  """Operations are counted in the table WORK; what one of them costs on a GPU is asked for."""
  path = Path(cost.__file__)
  table = ast.parse(path.read_text())
  (work,) = [n for n in table.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "WORK"]
  rest = [each for each in numbers_of(path) if not work.lineno <= int(each.split(":")[1]) <= work.end_lineno]
  assert rest == []
  assert DEFAULT["launch_bytes"] == cost.LAUNCH_BYTES


def test_a_number_in_a_pass_is_found(tmp_path):
  module = tmp_path / "example.py"
  module.write_text('"""In 4096 words."""\nMOST = 1 << 29\nhalf = 0.125\nrank = len(x) - 1\n')
  assert sorted(numbers_of(module)) == ["example.py:2: 29", "example.py:3: 0.125"]


FAULTS = {
  "no limit": ("LIMIT(one, 3)\n", "'LIMIT(one, 3)' is no limit"),
  "an expression": ('LIMIT(one, 1 << 3, "a", "b", "c")\n', "is no limit"),
  "twice": ('LIMIT(one, 3, "a", "b", "c")\nLIMIT(one, 4, "a", "b", "c")\n', "'LIMIT(one, 4"),
  "a word": ('TARGET("X", 9, 0)\nlimit\n', "'limit' is no limit"),
}


@parametrize("name", FAULTS)
def test_a_faulty_file_is_quoted(name, tmp_path):
  text, message = FAULTS[name]
  path = tmp_path / "x.def"
  path.write_text(text)
  with raises(ValueError, re.escape(message)):
    read(path)


def test_a_file_is_read(tmp_path):
  path = tmp_path / "x.def"
  path.write_text(
    '// A word.\nTARGET("X", 12, 1)\n\nLIMIT(one, 3LL << 30, "a, (b)", "c",\n      "d")\n'
    '// Another.\nLIMIT(two, 0.5, "e", "f", "g")\nLIMIT(three, 12\'000, "h", "i", "j")\n'
  )
  found = read(path)
  assert (found.name, found.capability) == ("X", (12, 1))
  assert (found["one"], found.limits["two"].value, found["three"]) == (3 << 30, 0.5, 12000)
  assert found.limits["one"].unit == "a, (b)"
  assert found.limits["one"].command == "d"
  with raises(TypeError, r"two is 0\.5"):
    found["two"]
  with pytest.raises(KeyError):
    found["four"]
