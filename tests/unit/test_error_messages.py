"""docs/errors.md has an entry for every message that the package and the library fail with, and none for others."""

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGE, PAGE = ROOT / "ortplugin", ROOT / "docs" / "errors.md"

# Reasons of near misses, which a report shows beside the node, and answers that other code hears.
NOT_SHOWN = {
  *("NotPointwiseError", "NotFusableError", "NotFoldableError", "_StaysError", "NotCaptured", "DiedError"),
  *("AttributeError",),
}
GAP = "{}"  # in the place of what a message shows


def template(node):
  """A message with gaps in it; without words, where it is computed elsewhere."""
  if isinstance(node, ast.Constant):
    return str(node.value)
  if isinstance(node, ast.JoinedStr):
    return "".join(template(each) for each in node.values)
  if isinstance(node, ast.BinOp):
    return template(node.left) + template(node.right)
  return GAP


def of_python(text):
  for node in ast.walk(ast.parse(text)):
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
      function = node.exc.func
      name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
      if name not in NOT_SHOWN:
        yield template(node.exc.args[0])


def of_cpp(text):
  """The arguments of Fail and its kin: literals, and gaps for all between them."""
  token = re.compile(r'"((?:[^"\\]|\\.)*)"|[(\[{]|[)\]}]|[^"()\[\]{}]+')
  for call in re.finditer(r"\b(?:Fail|FailAt|throw Error)\s*[({]", text):
    depth, message = 1, ""
    for part in token.finditer(text, call.end()):
      word = part[0]
      depth += (word in "([{") - (word in ")]}")
      if depth == 0:
        break
      if part[1] is not None and depth == 1:
        message += part[1].replace('\\"', '"')
      elif word.strip(" \n,") and not message.endswith(GAP):
        message += GAP
    yield message


@cache
def messages():
  found = {each for path in PACKAGE.rglob("*.py") for each in of_python(path.read_text())}
  for suffix in ("*.cc", "*.h"):
    found.update(each for path in PACKAGE.rglob(suffix) for each in of_cpp(path.read_text()))
  return tuple(sorted(each for each in found if len(re.findall("[a-z]{2,}", each)) > 1))


@cache
def entries():
  """The patterns of the page: a message holds what stands between the dots."""
  cells = [line.split("|")[1] for line in PAGE.read_text().splitlines() if line.startswith("| `")]
  patterns = [each for cell in cells for each in re.findall("`([^`]+)`", cell)]
  assert len(set(patterns)) == len(patterns)
  return {each: re.compile(".*".join(map(re.escape, each.split("…"))), re.IGNORECASE) for each in patterns}


def test_messages_are_found():
  text = (
    'raise UsageError(f"no {x} here" + y + "; give " "one")\nraise ModelError(known)\nraise NotPointwiseError("a b")'
  )
  assert list(of_python(text)) == ["no {} here{}; give one", "{}"]
  text = 'Fail("the \\"shape\\" ", ToString(x, "no"), " is", y ? " a" : " b",\n  ".");  throw Error{Text(z)};'
  assert list(of_cpp(text)) == ['the "shape" {} is{} a{} b.', "{}"]
  assert len(messages()) > 450


def test_every_message_has_an_entry():
  missing = [each for each in messages() if not any(pattern.search(each) for pattern in entries().values())]
  assert not missing


def test_every_entry_has_a_message():
  missing = [entry for entry, pattern in entries().items() if not any(map(pattern.search, messages()))]
  assert not missing
