"""How the package is divided: its parts form layers, its root and its functions stay small.

Every import counts, those inside functions and those for type checkers alone too: each says that one part can't be
read or changed without the other. Where a new import closes a cycle, what it imports stands in the wrong place, or
belongs to a part below both.
"""

import ast
import itertools
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import ortplugin

ROOT = Path(ortplugin.__file__).parent
MODULES_IN_ROOT = 10
LINES_OF_FUNCTION = 80  # docstring included


def modules():
  found = {}
  for path in ROOT.rglob("*.py"):
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
  return found


MODULES = modules()


@cache
def nodes(text):
  return tuple(ast.walk(ast.parse(text)))


def imports(module, path, known):
  package = module if path.name == "__init__.py" else module.rpartition(".")[0]
  for node in nodes(path.read_text()):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names if alias.name in known)
    elif isinstance(node, ast.ImportFrom):
      above = package.split(".")[: package.count(".") + 2 - node.level] if node.level else []
      source = ".".join([*above, *([node.module] if node.module else [])])
      for alias in node.names:
        inner = f"{source}.{alias.name}"
        if inner in known or source in known:
          yield inner if inner in known else source


def part(module):
  names = module.split(".")
  if names[1:2] == ["passes"] and len(names) > 3:
    return ".".join(names[:3])
  return ".".join(names[:2])


def edges(known, by_part):
  found = defaultdict(dict)
  for module, path in known.items():
    for other in imports(module, path, known):
      one, two = (part(module), part(other)) if by_part else (module, other)
      if one != two:
        found[one].setdefault(two, f"{module} imports {other}")
  return found


def cycle(graph):
  done = set()

  def search(node, path):
    if node in path:
      around = [*path[path.index(node) :], node]
      return [graph[one][two] for one, two in itertools.pairwise(around)]
    if node in done:
      return []
    for other in graph.get(node, {}):
      found = search(other, [*path, node])
      if found:
        return found
    done.add(node)
    return []

  return next((found for node in list(graph) if (found := search(node, []))), [])


def test_no_part_imports_one_that_needs_it():
  assert cycle(edges(MODULES, by_part=True)) == []


def test_no_module_imports_one_that_needs_it():
  assert cycle(edges(MODULES, by_part=False)) == []


def test_what_stands_below_everything_imports_nothing():
  graph = edges(MODULES, by_part=True)
  assert not {"ortplugin.arrays", "ortplugin.errors", "ortplugin.target"} & set(graph)
  assert set(graph["ortplugin.program"]) == set(graph["ortplugin.session"]) == {"ortplugin.errors"}
  assert set(graph["ortplugin.graph"]) == {"ortplugin.arrays", "ortplugin.errors", "ortplugin.program"}
  assert "ortplugin.ops" in graph["ortplugin.passes.conv"]


def test_the_root_is_small():
  root = sorted(path.name for path in ROOT.glob("*.py"))
  assert len(root) <= MODULES_IN_ROOT, root


def test_functions_are_short():
  for module, path in MODULES.items():
    for node in nodes(path.read_text()):
      if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        lines = node.end_lineno - node.lineno + 1
        assert lines <= LINES_OF_FUNCTION, f"{module}.{node.name} has {lines} lines"


def native_functions(text):
  """The name and the lines of each function of a C++ or CUDA file, as clang-format lays them out."""
  lines = text.splitlines()
  for first, line in enumerate(lines):
    indent = line[: len(line) - len(line.lstrip())]
    if not re.match(r"(?!(for|if|while|switch|do|else|return|case|namespace|using)\b)[\w~]", line.lstrip()):
      continue
    last = first  # of the signature, which goes on in lines further to the right, and around directives
    while not lines[last].endswith((";", "{", "}")) and last + 1 < len(lines):
      if not lines[last + 1].startswith((indent + "    ", "#")):
        break
      last += 1
    names = re.findall(r"(?!__)\b(\w+)\(", " ".join(lines[first : last + 1]))
    inside = (indent + " ", "#")
    end = next((at for at in range(last + 1, len(lines)) if lines[at] and not lines[at].startswith(inside)), first)
    if names and lines[last].endswith("{") and lines[end] == indent + "}":
      yield names[0], end - first + 1


def test_native_functions_are_short():
  root = Path(__file__).parents[2] / "ortplugin"
  paths = [path for path in root.rglob("*") if path.suffix in (".cc", ".h", ".cu", ".cuh")]
  lengths = [found for path in paths for found in native_functions(path.read_text())]
  assert len(lengths) > 1000
  assert {name for name, lines in lengths if lines > LINES_OF_FUNCTION} == set()


def test_a_cycle_is_found_wherever_its_import_stands(tmp_path):
  texts = {
    "ortplugin.a.one": "from ortplugin.b import two",
    "ortplugin.b.two": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import ortplugin.c.three",
    "ortplugin.c.three": "def f():\n    from ..passes.conv.four import x",
    "ortplugin.passes.conv.four": "",
    "ortplugin.passes.layout.five": "import ortplugin.passes.conv.four",
  }
  known = {}

  def write(module, text):
    known[module] = tmp_path / f"{module}.py"
    known[module].write_text(text)

  for module, text in texts.items():
    write(module, text)
  assert cycle(edges(known, by_part=True)) == []
  write("ortplugin.passes.conv.four", "def f():\n    def g():\n        from ortplugin.a.one import x")
  closed = [
    "ortplugin.a.one imports ortplugin.b.two",
    "ortplugin.b.two imports ortplugin.c.three",
    "ortplugin.c.three imports ortplugin.passes.conv.four",
    "ortplugin.passes.conv.four imports ortplugin.a.one",
  ]
  assert cycle(edges(known, by_part=True)) == closed
  write("ortplugin.passes.conv.four", "from ortplugin.passes.layout.five import x")
  assert len(cycle(edges(known, by_part=True))) == 2
