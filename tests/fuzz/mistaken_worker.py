"""A worker with a mistake in a pass, to see that the fuzzer finds it: another text for a line of a module, imported in
place of the module's own."""

import importlib.machinery
import importlib.util
import sys
from pathlib import Path

MODULE = "ortplugin.passes.layout.channel_shuffle"
RIGHT = ".reshape(groups, members).T"
WRONG = ".reshape(members, groups).T"


def plant():
  if MODULE in sys.modules:
    raise RuntimeError(f"{MODULE} has been imported already")
  package = importlib.util.find_spec("ortplugin")
  folders = [Path(each) for each in package.submodule_search_locations or ()]
  files = [folder.joinpath(*MODULE.split(".")[1:]).with_suffix(".py") for folder in folders]
  text = next(file for file in files if file.is_file()).read_text()
  if text.count(RIGHT) != 1:
    raise RuntimeError(f"{MODULE} has the text {RIGHT!r} {text.count(RIGHT)} times")
  sys.meta_path.insert(0, _Finder(text.replace(RIGHT, WRONG)))


class _Finder:
  """Finds one module, whose source is a text."""

  def __init__(self, text):
    self._text = text

  def find_spec(self, name, path=None, target=None):
    return importlib.machinery.ModuleSpec(name, self) if name == MODULE else None

  def create_module(self, spec):
    """As usual."""

  def exec_module(self, module):
    exec(compile(self._text, f"<{MODULE} with a mistake>", "exec"), vars(module))


if __name__ == "__main__":
  plant()
  from .worker import main

  main()
