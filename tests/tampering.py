"""A program with foreign text at every place: what the two parsers, the optimizer's and the library's, must refuse."""

import re
from itertools import product

# Every kind of token that there is: dtypes, names, numbers, flags, words and attributes' dtypes.
PROGRAM = """(float x, uint8 u) => (float y, uint8 z, bool i) {
  a = Gelu<approximate="tanh">(x)
  c = Clip(a, -1, 1000)
  m = Mod<fmod=1>(c, 0.5)
  h = Cast<to=float16>(m)
  y = Cast<to=float>(h)
  l = BitShift<direction="LEFT">(u, 3)
  z = Add(l, 255)
  i = IsInf<detect_negative=0>(x)
}"""
TOKENS = list(re.finditer(r'"[A-Za-z]*"|[A-Za-z0-9_.+-]+|=>|[(){}<>=,]', PROGRAM))

# What someone might want a compiler to see, and what might end a literal, a line or the text early.
PAYLOADS = [
  '#include "/etc/passwd"', 'asm("trap;");', "__trap()", "*(volatile int*)0 = 1", "/* */", "// x\n", "\\\n#error\n",
  ";", "}", "(", "1;", "0x1p3", "1f", "1e", "'a'", '"', '"LEFT\\""', "R\"(x)\"", "??=", "%s%n", "${x}", "`id`", "@",
  "::", "\x00", "\x7f", "\x1b[2J", "\xe9", "\u2028", "inf inf", "nan nan",
]  # fmt: skip


def tampered(every=1):
  """The program with each payload behind each token and in its place; of these texts one in `every`."""
  for number, (token, payload) in enumerate(product(TOKENS, PAYLOADS)):
    behind = f"{PROGRAM[: token.end()]} {payload} {PROGRAM[token.end() :]}"
    instead = f"{PROGRAM[: token.start()]}{payload}{PROGRAM[token.end() :]}"
    if number % every == 0:
      yield from (text for text in (behind, instead) if text != PROGRAM)
