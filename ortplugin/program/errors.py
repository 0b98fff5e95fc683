"""The error of the language."""

from ..errors import ModelError


class ProgramError(ModelError):
  """The text or the parts are no valid pointwise program; the message says where and what was expected."""
