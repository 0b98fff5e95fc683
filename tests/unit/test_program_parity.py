import random
import subprocess
from pathlib import Path

import pytest
from tampering import PROGRAM, tampered
from test_program import BAD, EXAMPLE, body

from ortplugin.program import DTYPES, OPERATORS, ProgramError, parse

ROOT = Path(__file__).resolve().parents[2]
PRINT_PROGRAMS = ROOT / "build" / "native" / "print_programs"

pytestmark = pytest.mark.skipif(
  not PRINT_PROGRAMS.exists(), reason=f"{PRINT_PROGRAMS.relative_to(ROOT)} is not built; `make native` builds it"
)


def everything():
  statements = []
  for name, spec in OPERATORS.items():
    if "T" in spec.operands and "float" not in spec.types:
      continue
    if spec.core and name != "LayerNormalization":
      continue
    operands = ", ".join("b" if letter == "B" else "x" for letter in spec.operands)
    attributes = {"Cast": "<to=float>", "Mod": "<fmod=1>"}.get(name, "")
    statements.append((f"v{len(statements)}", spec.result, f"{name}{attributes}({operands})"))
  lines = [f"{name} = {text}" for name, _, text in statements]
  total = ["s0 = Add(x, 1)", "t0 = Or(b, 0)"]  # so that each of them is used
  for index, (name, result, _) in enumerate(statements):
    total.append(f"s{index + 1} = {f'Where({name}, s{index}, 2)' if result == 'B' else f'Add(s{index}, {name})'}")
  total += [f"y = Where(t0, s{len(statements)}, -0)"]
  return body(*lines, *total, parameters="float x, bool b")


def of_every_dtype():
  attributes = {"Mod": "<fmod=1>", "BitShift": '<direction="RIGHT">', "SumTo": '<axes="0 2", keepdims=0>'}
  for name, spec in OPERATORS.items():
    for dtype in DTYPES:
      for to in DTYPES if name == "Cast" else [""]:
        given = f"<to={to}>" if to else attributes.get(name, "")
        names = ["c" if letter == "B" else f"x{i}" for i, letter in enumerate(spec.operands)]
        parameters = {n: f"{'bool' if n == 'c' else dtype} {n}" for n in names}
        result = {"T": dtype, "B": "bool", "C": to}[spec.result]
        text = f"y = {name}{given}({', '.join(names)})"
        yield body(text, parameters=", ".join(parameters.values()), results=f"{result} y")
        if len(names) > 1:
          text = f"y = {name}{given}({', '.join([*names[:-1], '1'])})"
          kept = {n: parameter for n, parameter in parameters.items() if n in names[:-1]}
          yield body(text, parameters=", ".join(kept.values()), results=f"{result} y")


_NUMBERS = """
    0 -0 1 +1 -1 0.1 1e-05 1e-4 0.001 1.5e-4 0.00015 10000 100000 123456 1e22 1e23 5e-324 2.2250738585072014e-308
    1.7976931348623157e308 3.4028234663852886e38 3.4028235677973366e38 1e-46 1e-400 0e999 9007199254740993 16777217
    1.401298464324817e-45 inf +inf -inf nan 1e39 1e309 00.50 1E5 1e+05 0x10 1. .5 1e 1e+ --1 infinity
"""
NUMBERS = _NUMBERS.split()
LIMITS = [
  str(sign * 2**bits + more) for bits in (7, 8, 15, 16, 31, 32, 53, 63, 64) for sign in (1, -1) for more in (-1, 0, 1)
]

SEEDS = [
  EXAMPLE,
  PROGRAM,
  everything(),
  body('y = Gelu<approximate="tanh">(x)'),
  body('y = LayerNormalization<axes="0 2", epsilon=0.1>(x)'),
  body('y = RMSNormalization<axes="", axis=-1, groups=-0>(x)'),
  body('y = RMSNormalization<groups=32, axes="2 3", axis=1>(x)'),
  body("n = LayerNormalization<axis=-0, epsilon=0.1>(x)", "c = Less(n, 3)", "y = Where(c, x, inf)"),
  body("h = Cast<to=float16>(x)", "d = Cast<to=double>(h)", "y = Pow(d, 1e300)", results="double y"),
  body(
    "n = Cast<to=int64>(x)",
    "m = Mod(n, -9223372036854775808)",
    "s = Where(c, m, 7)",
    "c2 = Less(s, 0)",
    "u = Cast<to=uint8>(s)",
    'y = BitShift<direction="LEFT">(u, 200)',
    parameters="float x, bool c",
    results="uint8 y, bool c2",
  ),
  body(
    "a = Sub(1, w)",
    "g = Mul(a, d)",
    'dx = SumTo<axes="0 2 11", keepdims=0>(g)',
    'dw = SumTo<axes="3">(g)',
    "dy = Mul(w, d)",
    parameters="float w, float d",
    results="float dx, float dw, float dy",
  ),
  body(
    "y = IsInf<detect_negative=0>(x)", "z = IsInf<detect_positive=0, detect_negative=1>(x)", results="bool y, bool z"
  ),
  "(float x)=>(float x){}",
  "() => (float y) { y = Relu(y) }",
]


def programs():
  """The seeds, numbers in every place, what is wrong, and what small accidents make of the seeds."""
  texts = [*SEEDS, *(text for text in BAD if text.isascii() and "\0" not in text)]
  for number in NUMBERS:
    for statement in ("y = Add(x, {})", "y = LeakyRelu<alpha={}>(x)", "y = RMSNormalization<axis={}>(x)"):
      texts.append(body(statement.format(number)))
  for number in [*NUMBERS, *LIMITS, "007", "0" * 5000]:
    texts += [body(f"y = Max(x, {number})", parameters=f"{dtype} x", results=f"{dtype} y") for dtype in DTYPES]
  texts += [body(f'y = SumTo<axes="{axes}">(x)') for axes in ("0", "63", "64", "00", "1 0", "0 1 2", "0  1", "0 ", "")]
  texts += [body(f"y = IsInf<detect_positive={number}>(x)", results="bool y") for number in NUMBERS]
  texts += of_every_dtype()
  texts += [text for text in tampered() if text.isascii() and "\0" not in text]
  random_ = random.Random(0)
  alphabet = 'xyn019.,=<>(){}-+e_"\t\r\n\v\f \x1c\x1f;'
  for _ in range(3000):
    text = random_.choice(SEEDS)
    for _ in range(random_.randint(1, 3)):
      at = random_.randrange(len(text))
      kind = random_.randrange(4)
      if kind == 0:
        text = text[:at] + text[at + random_.randint(1, 4) :]
      elif kind == 1:
        text = text[:at] + random_.choice(alphabet) + text[at:]
      elif kind == 2:
        text = text[:at] + random_.choice(alphabet) + text[at + 1 :]
      else:
        end = min(len(text), at + random_.randint(1, 20))
        text = text[:end] + text[at:end] + text[end:]
    texts.append(text)
  return list(dict.fromkeys(texts))


def in_python(text):
  try:
    return "=" + str(parse(text))
  except ProgramError as error:
    return f"!{error}"


def in_the_library(texts):
  given = "".join(text + "\0" for text in texts).encode("ascii")
  found = subprocess.run([PRINT_PROGRAMS], input=given, capture_output=True, check=True, timeout=60).stdout
  return found.decode("ascii").split("\0")[:-1]


def test_both_accept_the_same_and_print_it_alike():
  texts = programs()
  accepted = 0
  for text, native in zip(texts, in_the_library(texts), strict=True):
    ours = in_python(text)
    if ours[0] == native[0] == "!":
      continue
    assert ours == native, f"of {text!r}"
    accepted += 1
  assert 100 < accepted < len(texts) - 100


def test_foreign_text_is_refused_by_both():
  texts = [text for text in tampered() if text.isascii() and "\0" not in text]
  assert len(texts) > 4000
  for text, native in zip(texts, in_the_library(texts), strict=True):
    assert in_python(text)[0] == native[0] == "!", text
