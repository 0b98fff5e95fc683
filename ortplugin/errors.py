"""The errors that a user can cause. Each message is one line: what is wrong, with the value, and what to do about it.

What a model calls its nodes and values is a stranger's text, control characters among it. Whatever prints it, an error,
a report or a message of progress, shows it as `printable` does.

Everything derives from `OrtPluginError`, so a caller (the command line among them) can tell a mistake or a fault of the
surroundings from a defect in this package.
"""

import difflib
from collections.abc import Iterable
from typing import Any


class OrtPluginError(Exception):
  """Base of the errors that this package raises on purpose. Its message holds nothing that a terminal would obey."""

  def __init__(self, message: object = "") -> None:
    super().__init__(printable(str(message)))


class UsageError(OrtPluginError):
  """An argument is wrong: an unknown pass, a shape for an input that doesn't exist, a bad path. Exit status 2."""


class ModelError(OrtPluginError):
  """The model file or the model in it is invalid, unsafe or beyond what is supported."""


class StorageError(OrtPluginError):
  """The output can't be written. Nothing was changed on disk."""


class RuntimeMissingError(OrtPluginError):
  """onnxruntime, CuPy, a GPU or the native library is missing or unfit; the message says what to install."""


class VerificationError(OrtPluginError):
  """The optimized model's outputs differ from the original's, or the comparison could not be made.

  `report` is the optimizer's report (`ortplugin.report.Report`) where outputs differ, None where the comparison could
  not be made. It has no type here because everything imports this module, which imports nothing of the package.
  """

  report: Any = None


def printable(text: str) -> str:
  """The text with escape sequences for the characters that are no glyphs: \\x1b, \\n, \\u202e, a lone surrogate."""
  if text.isprintable():
    return text
  return "".join(each if each.isprintable() else _escaped(ord(each)) for each in text)


def _escaped(code: int) -> str:
  known = {9: "\\t", 10: "\\n", 13: "\\r"}
  return known.get(code) or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}")


def near_names(name: str, known: Iterable[str]) -> str:
  """'; did you mean a, b?' with the names of `known` that resemble `name`, or '; known: ...' when none does."""
  names = list(known)
  if near := difflib.get_close_matches(name, names, n=3, cutoff=0.5):
    return f"; did you mean {', '.join(near)}?"
  return f"; known: {', '.join(names)}" if names else ""


def one_line(error: BaseException | str, limit: int = 600) -> str:
  """The text of an error on one line, printable, cut to `limit` characters."""
  text = printable(" ".join(str(error).split()))
  if not text and isinstance(error, BaseException):
    text = type(error).__name__
  return text if len(text) <= limit else text[: limit - 1] + "…"
