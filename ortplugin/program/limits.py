"""How large a program may be. runtime/program/program.cc has the same numbers."""

from typing import Final

MAX_CHARACTERS: Final = 65_536
MAX_PARAMETERS: Final = 32
MAX_RESULTS: Final = 16
MAX_STATEMENTS: Final = 256
MAX_NAME: Final = 64
MAX_SUM_AXIS: Final = 63
