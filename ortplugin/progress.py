"""What is going on and for how long, in one line on stderr while a command works; nothing where that is no terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

from ortplugin.errors import printable


class _Seconds(ProgressColumn):
    """'3 s' since the command began, '2 s of 3 s' where the step began later."""

    def render(self, task: Task) -> Text:
        """The column of one refresh."""
        now = time.monotonic()
        step, whole = int(now - task.fields["step"]), int(now - task.fields["begun"])
        return Text(f"{step} s of {whole} s" if 0 < step < whole else f"{whole} s", style="dim")


@contextmanager
def shown_progress() -> Iterator[Callable[[str], None]]:
    """A function that is told each step in a few words. A name of the model in them is shown as it is."""
    console = Console(stderr=True, highlight=False)
    words = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis"))
    seconds = _Seconds(table_column=Column(no_wrap=True))
    shown = (
        sys.stderr.isatty() and console.is_interactive
    )  # colours can be forced on a file, a spinner has no use there
    begun = time.monotonic()
    with Progress(SpinnerColumn(), words, seconds, console=console, transient=True, disable=not shown) as progress:
        task = progress.add_task("starting", total=None, begun=begun, step=begun)
        yield lambda text: progress.update(task, description=printable(text), step=time.monotonic())
