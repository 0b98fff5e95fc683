"""What is going on and for how long, in one line on stderr while a command works; nothing where that is no terminal."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.text import Text

from .errors import printable


class _Seconds(ProgressColumn):
  def render(self, task: Task) -> Text:
    """'3 s' since the command began, '2 s of 3 s' where the step began later."""
    step, whole = (int(time.monotonic() - task.fields[name]) for name in ("step", "begun"))
    return Text(f"{step} s of {whole} s" if 0 < step < whole else f"{whole} s", style="dim")


@contextmanager
def shown_progress() -> Iterator[Callable[[str], None]]:
  """A function that is told each step in a few words. A name of the model in them is shown as it is."""
  console = Console(stderr=True, highlight=False)
  columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), _Seconds()
  shown = sys.stderr.isatty() and console.is_interactive  # colours can be forced on a file, a spinner has no use there
  begun = time.monotonic()
  with Progress(*columns, console=console, transient=True, disable=not shown) as progress:
    task = progress.add_task("starting", total=None, begun=begun, step=begun)
    yield lambda text: progress.update(task, description=printable(text), step=time.monotonic())
