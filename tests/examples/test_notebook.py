"""The notebook's cells run, and show what they say."""

import ast
import json

from example_model import EXAMPLES

NOTEBOOK = EXAMPLES / "report.ipynb"


def values(cells):
  """What each cell's last line is."""
  names = {}
  found = []
  for cell in cells:
    *statements, last = ast.parse(cell).body
    assert isinstance(last, ast.Expr)
    exec(compile(ast.Module(statements, []), NOTEBOOK.name, "exec"), names)
    found.append(eval(compile(ast.Expression(last.value), NOTEBOOK.name, "eval"), names))
  return found


def test_cells_run(library):
  cells = json.loads(NOTEBOOK.read_text())["cells"]
  report, shapes = values(["".join(each["source"]) for each in cells if each["cell_type"] == "code"])
  assert "<iframe" in report._repr_html_()
  assert report.changes
  assert list(shapes.values()) == [(1, 1000)]
