"""An object in a process of its own: its methods are called from here, and what kills that process does not kill this.

The process is spawned, so it shares no CUDA context and no lock with this one. It runs `serve` alone, never the
caller's `__main__`, imports what this process imports, and ends when its parent does.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from ..errors import OrtPluginError, RuntimeMissingError, one_line

_START_SECONDS = 120.0
_POLL_SECONDS = 0.05
_SHARE = 0.9  # of the memory that is free when the process starts
_LEAST_MEMORY = 2**30
_PAGE = os.sysconf("SC_PAGE_SIZE")

Tell = Callable[[Any], None]


class DiedError(Exception):
  """The process ended during a call; the message says how. `doing`: what the object told last, None if nothing."""

  def __init__(self, how: str, doing: Any) -> None:
    super().__init__(how)
    self.doing = doing


class _Remote(Exception):  # noqa: N818, it shows where an error came from
  """The traceback of an error in the process."""


class Child:
  """The object that `factory(*arguments, tell=...)` makes in a process, which starts with the first call and again
  after it died. Close it at the end.

  Args:
      factory: a function or class of a module; the object keeps `tell`, to say what it does next.
      arguments: can be pickled.
      tell: is called here with what the object tells. Where the object has a true `is_lost` after a call, its
          process has become useless, as where a GPU is lost to it, and the next call starts another one.
      memory: bytes that the process may have resident; None takes most of what is free at its start.
  """

  def __init__(
    self, factory: Callable[..., Any], *arguments: Any, tell: Tell = lambda _: None, memory: int | None = None
  ) -> None:
    self._made_of = (factory, arguments)
    self._tell = tell
    self._memory = memory
    self._process: subprocess.Popen[bytes] | None = None
    self._connection: Connection[Any, Any] | None = None
    self._errors: Any = None  # a file: what it writes to stderr
    self._limit = 0

  def call(self, method: str, *arguments: Any, seconds: Callable[[Any], float]) -> Any:
    """The result of a method of the object; raises what that raises.

    Raises DiedError where the process ends, exceeds its memory, or takes longer for what it told last than
    `seconds` of that: after the last two it is killed.
    """
    doing: Any = None
    try:
      if self._process is None:
        self._start()
      self._send((method, arguments))
      while (message := self._receive(seconds(doing)))[0] == "tell":
        doing = message[1]
        self._tell(doing)
      kind, content, remote, is_lost = message
      if is_lost:
        self._stop()
      if kind == "error":
        raise content from _Remote(remote)
      return content
    except _Ended as ended:
      how = self._stop(str(ended))
      raise DiedError(how, doing) from None
    except BaseException as error:
      if not isinstance(error, Exception):
        self._stop("was interrupted")
      raise

  def close(self) -> None:
    """Ends the process and shows what the library warned of."""
    self._stop()

  # ---- the parts

  def _start(self) -> None:
    if not sys.executable or getattr(sys, "frozen", False):
      raise RuntimeMissingError(
        "the verification runs in a Python process of its own, and this program does not know its Python "
        "interpreter (sys.executable); verify with the command optimize-model instead"
      )
    ours, theirs = Pipe()
    self._errors = tempfile.TemporaryFile()  # noqa: SIM115, closed by _stop
    code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import serve; serve({theirs.fileno()})"
    try:
      self._process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.DEVNULL,
        stdout=self._errors,
        stderr=self._errors,
        pass_fds=[theirs.fileno()],
      )
    finally:
      theirs.close()
    self._connection = ours
    self._limit = self._memory or max(_LEAST_MEMORY, int(_SHARE * free_memory()))
    factory, arguments = self._made_of
    self._send((factory, arguments))
    kind, content, remote, _ = self._receive(_START_SECONDS)
    if kind == "error":
      self._stop()
      raise content from _Remote(remote)

  def _send(self, message: object) -> None:
    assert self._connection is not None
    try:
      self._connection.send(message)
    except OSError:  # it died before it read all of that
      raise _Ended("") from None

  def _receive(self, seconds: float) -> tuple[Any, ...]:
    """The next message; _Ended where none can come."""
    assert self._connection is not None
    assert self._process is not None
    deadline = time.monotonic() + seconds
    while not self._connection.poll(_POLL_SECONDS):
      if _resident(self._process.pid) > self._limit:
        raise _Ended(f"took more than {self._limit / 1e9:.1f} GB of memory")
      if time.monotonic() > deadline:
        raise _Ended(f"took more than {seconds:.0f} s")
    try:
      message: tuple[Any, ...] = self._connection.recv()
    except (EOFError, OSError):
      raise _Ended("") from None
    return message

  def _stop(self, why: str = "") -> str:
    """Ends the process; returns how it ended: `why`, or its signal or status and its last words."""
    process, connection, errors = self._process, self._connection, self._errors
    self._process = self._connection = self._errors = None
    if process is None or connection is None:
      return why
    status: int | None = None
    if not why:
      connection.close()  # at which it ends, unless it is at work
      with contextlib.suppress(subprocess.TimeoutExpired):
        status = process.wait(timeout=2)
    if status is None:
      process.kill()
      process.wait()
    connection.close()
    errors.seek(0)
    lines = errors.read().decode(errors="replace").splitlines()
    errors.close()
    for line in lines:
      if line.startswith("ortplugin: "):  # the native library's warnings, which are the user's
        print(line, file=sys.stderr)
    if why:
      return why
    words = next((one_line(line, 200) for line in reversed(lines) if line.strip()), "")
    return _ending(status) + (f": {words}" if words else "")


class _Ended(Exception):  # noqa: N818
  """No message can come any more; the text says why, where the process itself does not."""


def _ending(status: int | None) -> str:
  """'died of SIGSEGV (Segmentation fault)'."""
  if status is None:
    return "did not answer"
  if status >= 0:
    return f"ended with status {status}"
  if status == -signal.SIGKILL:
    return "died of SIGKILL (Killed), as when the machine's memory runs out"
  try:
    name = signal.Signals(-status).name
  except ValueError:
    return f"died of signal {-status}"
  return f"died of {name} ({signal.strsignal(-status)})"


def free_memory() -> int:
  """Bytes that a process may still take here: of the machine, and of the control group where that has a limit."""
  found = [os.sysconf("SC_AVPHYS_PAGES") * _PAGE]
  with contextlib.suppress(OSError, ValueError, IndexError):
    lines = Path("/proc/meminfo").read_text().splitlines()
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")] or found
  for limit, used in (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
  ):
    with contextlib.suppress(OSError, ValueError):  # "max" is no limit
      found.append(int(Path(limit).read_text()) - int(Path(used).read_text()))
  return max(min(found), 0)


def _resident(pid: int) -> int:
  try:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
  except (OSError, ValueError, IndexError):  # it just ended
    return 0


# ---- in the process


def serve(descriptor: int) -> None:
  """Makes the object and answers calls until the parent closes the connection."""
  import resource

  signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the parent's, who ends this process
  resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
  with contextlib.suppress(OSError):
    Path("/proc/self/oom_score_adj").write_text("500")  # rather this process than its parent
  threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
  connection: Connection[Any, Any] = Connection(descriptor)
  try:
    factory, arguments = connection.recv()
    made = None

    def make() -> None:
      nonlocal made
      made = factory(*arguments, tell=lambda doing: connection.send(("tell", doing)))

    connection.send((*_answer(make), False))
    while True:
      method, given = connection.recv()
      answer = _answer(getattr(made, method), *given)
      connection.send((*answer, bool(getattr(made, "is_lost", False))))
  except (EOFError, OSError):
    pass
  os._exit(0)  # without destructors of libraries, which may crash where a GPU is lost


def _answer(function: Callable[..., Any], *arguments: Any) -> tuple[str, Any, str]:
  """("result", the function's, "") or ("error", what it raised, its traceback)."""
  try:
    return "result", function(*arguments), ""
  except Exception as error:
    remote = traceback.format_exc()
    if isinstance(error, (OrtPluginError, MemoryError)):
      return "error", error, remote
    return "error", RuntimeError(f"{type(error).__name__}: {error}"), remote  # others may not go through a pipe


def _end_with(parent: int) -> None:
  """Ends this process when its parent is gone, whatever it is at."""
  while os.getppid() == parent:
    time.sleep(1)
  os._exit(1)
