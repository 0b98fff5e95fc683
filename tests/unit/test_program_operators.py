"""The table of pointwise operators: what its form refuses, and that nothing an operator needs is missing."""

import os
import shutil
import subprocess
import sys

import operator_places
import pytest
from operator_places import PLACES, POINTWISE_PLACES, ROOT, docs_rows, is_in_docs, missing

from ortplugin.program import ATTRIBUTES, OPERATORS, operators


def test_no_operator_lacks_anything():
  assert missing() == []


def test_the_docs_have_no_operator_more():
  assert {spec.name for spec, _ in docs_rows()} == OPERATORS.keys()


@pytest.mark.parametrize(
  "line",
  ['POINTWISE(Brandnew, "F -> F", Number("alpha", 2))', 'POINTWISE(Brandnew, "I, I -> bool")',
   'POINTWISE(Brandnew, "bool -> bool")'],
)  # fmt: skip
def test_a_new_line_is_asked_for_everything_else(line, tmp_path):
  """In a copy of the package: a name for each place, the one that the table itself does not give."""
  for folder in ("ortplugin", "docs"):
    unneeded = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(ROOT / folder, tmp_path / folder, ignore=unneeded)
  native = ("tests/native/test_evaluator.cc", "tests/native/test_evaluator_integers.cc")
  for name in ("tests/operator_places.py", *native):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / name, tmp_path / name)
  with (tmp_path / "ortplugin" / "program" / "operators.def").open("a") as table:
    table.write(line + "\n")
  paths = os.pathsep.join(map(str, (tmp_path, tmp_path / "tests", ROOT / "tests")))
  found = subprocess.run(
    [sys.executable, tmp_path / "tests" / "operator_places.py"],
    capture_output=True,
    text=True,
    env={**os.environ, "PYTHONPATH": paths},
    timeout=120,
  )
  assert found.returncode == 0, found.stderr
  assert found.stdout.splitlines() == [f"Brandnew lacks {place}" for place in (*POINTWISE_PLACES, *PLACES)]


@pytest.mark.parametrize(
  "operator, right, wrong",
  [
    ("Elu", "Elu<alpha=1>", "Elu<alpha=2>"),
    ("Selu", "Selu<alpha=1.67326…, gamma", "Selu<gamma=1.67326…, alpha"),
    ("PRelu", "| F | T, T → T | PRelu", "| N | T, T → T | PRelu"),
    ("Not", "| bool → bool | Not", "| bool, bool → bool | Not"),
    ("Asinh", " Asinh,", ""),
  ],
)
def test_a_wrong_entry_of_the_docs_is_seen(operator, right, wrong, patch):
  text = operator_places.text_of(operator_places.DOCS)
  assert text.count(right) == 1
  patch(operator_places, "text_of", lambda _: text.replace(right, wrong))
  assert [name for name, spec in OPERATORS.items() if not is_in_docs(spec)] == [operator]


def test_the_rows():
  pointwise = 'POINTWISE(A, "bool, N -> to", RequiredWord("w", "x", "y"), Axis("axis", -1))'
  (first, attributes), (second, none) = operators.rows(f'{pointwise}\n// no row\n\nCORE(B, "S -> bool")')
  assert (first.name, first.signature, first.core) == ("A", "BTC", False)
  assert first.types == OPERATORS["Add"].types
  assert first.attributes == (("w", None), ("axis", -1.0))
  assert [(each.kind, each.given) for each in attributes] == [("RequiredWord", ("x", "y")), ("Axis", ("-1",))]
  assert (second.signature, second.types, second.core, none) == ("TB", OPERATORS["SumTo"].types, True, ())


@pytest.mark.parametrize(
  "line",
  [
      'POINTWISE(A, "N -> N"', 'POINTWISE(A, "N N")', 'POINTWISE(A, "N -> I")', 'POINTWISE(A, "X -> X")', "A",
      'POINTWISE(A, "N -> N", Number(alpha, 1))', 'POINTWISE(A, "N -> N", Numeral("alpha", 1))',
      'POINTWISE(A, "N -> N", Flag("a", 1), Flag("b", 1), Flag("c", 1), Flag("d", 1), Flag("e", 1))',
  ],
)  # fmt: skip
def test_a_line_that_is_no_row_is_named(line):
  with pytest.raises(ValueError, match=r"operators.def, line 2"):
    list(operators.rows(f"// a comment\n{line}"))


def test_an_attributes_kind_goes_with_its_name():
  """`ATTRIBUTES` has one entry by name, so two operators may differ in the default only."""
  for _, attributes in operators.rows(operators.TABLE.read_text()):
    for each in attributes:
      assert each.kind == ATTRIBUTES[each.name].kind
      assert each.kind in ("Number", "Flag", "Axis", "Axes", "Count") or each.given == ATTRIBUTES[each.name].given
