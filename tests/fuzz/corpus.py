"""Cases as text: a header of comments, then the oracle's model in ONNX's textual syntax.

The corpus is what was ever wrong: texts in corpus/, and the earlier ones packed beside them.

    cd tests && python -m fuzz.corpus --pack         # packs the texts, too
    cd tests && python -m fuzz.corpus NAME           # shows one
"""

import bz2
import json
import re
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx.printer
from onnx import helper

from .evaluate import to_onnx
from .generate import Case
from .graph import HALVES
from .narrow import narrow_model

USUAL = {"seed": 0, "dtype": "fp32", "kept": [], "checks": [], "dead": False}  # what a header leaves out
FOLDER = Path(__file__).resolve().parent / "corpus"
PACKED = FOLDER / "earlier.json.bz2"


def to_text(case, finding):
  """The case with what is wrong with it."""
  header = {
    "kind": finding.kind,
    "guilty": finding.guilty,
    "message": finding.message[:90],
    "seed": case.seed,
    "dtype": case.dtype,
    "kept": sorted(case.kept & {each.name for each in case.oracle.graph.initializer}),
    "checks": list(case.checks),
    "dead": case.dead,
    "options": case.options,
  }
  lines = [f"# {name}: {json.dumps(value)}" for name, value in header.items() if value != USUAL.get(name)]
  for number, feeds in enumerate(case.feeds):
    lines += [
      f"# feed {number} {json.dumps(name)}: {json.dumps(_plain(array), separators=(',', ':'))}"
      for name, array in feeds.items()
    ]
  return "\n".join([*lines, _short(onnx.printer.to_text(case.oracle))]) + "\n"


def _short(text):
  """A model's text without empty names, types of attributes that their values show, and indentation."""
  text = re.sub(r'(?<=[\w"]): (ints|strings) = \[(?!\])', " = [", text.replace('[""] ', ""))
  return re.sub(r'(?m)^ +|(?<=[\w"]): (?:int|string)(?= = )', "", text)


def from_text(text):
  """The case of a text that `to_text` made, or that was written by hand in the same form."""
  header = {**USUAL}
  feeds = {}
  lines = text.splitlines()
  for line in lines:
    if not line.startswith("# "):
      continue
    if line.startswith("# feed "):
      number, rest = line[len("# feed ") :].split(" ", 1)
      name, end = json.JSONDecoder().raw_decode(rest)
      feeds.setdefault(int(number), {})[name] = _array(json.loads(rest[end + 1 :]))
    else:
      name, _, value = line[2:].partition(": ")
      header[name] = json.loads(value)
  model = onnx.parser.parse_model("\n".join(line for line in lines if not line.startswith("# ")))
  dtype, kept = header["dtype"], frozenset(header["kept"])
  half = dtype in HALVES
  return Case(
    header["seed"],
    dtype,
    narrow_model(model, dtype, kept) if half else model,
    model if half else None,
    kept,
    [feeds[number] for number in sorted(feeds)] or [{}],
    header["options"],
    tuple(header["checks"]),
    header["dead"],
  )


def _plain(array):
  data = array.reshape(-1).tolist()
  if array.dtype in (np.float16, np.float32):  # as few digits as tell it from its neighbours
    data = [float(str(each)) for each in array.reshape(-1)]
  return {"dtype": array.dtype.name, "shape": list(array.shape), "data": data}


def _array(plain):
  dtype = helper.tensor_dtype_to_np_dtype(to_onnx(np.dtype(plain["dtype"])))
  return np.asarray(plain["data"], dtype).reshape(plain["shape"])


def corpus():
  packed = json.loads(bz2.decompress(PACKED.read_bytes()))
  return packed | {path.stem: path.read_text() for path in FOLDER.glob("*.txt")}


def pack():
  """Moves the texts of the folder into the packed ones."""
  PACKED.write_bytes(bz2.compress(json.dumps(dict(sorted(corpus().items())), indent=0).encode()))
  for path in FOLDER.glob("*.txt"):
    path.unlink()


def open_faults():
  """The corpus's cases that fail still, by name, with the reason; a line of open.txt each: 'name: reason'."""
  lines = (FOLDER.parent / "open.txt").read_text().splitlines()
  return {name: reason for name, _, reason in (line.partition(": ") for line in lines if line)}


def known():
  """A regular expression of findings that wait to be mended: known.txt has one on each line; '#' begins a remark."""
  lines = (line.partition("  #")[0].strip() for line in (FOLDER.parent / "known.txt").read_text().splitlines())
  return "|".join(f"(?:{line})" for line in lines if line and not line.startswith("#"))


if __name__ == "__main__":
  if sys.argv[1:] == ["--pack"]:
    pack()
  else:
    print("\n".join(corpus()[name] for name in sys.argv[1:]))
