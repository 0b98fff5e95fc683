"""Runs the text of a CUDA kernel on the CPU, thread by thread: whether it computes what it should shows without a GPU.

The preprocessor expands the text, each asm statement becomes a call of a function that is named after its instructions
(emulated.h), shared memory becomes a block's own, and the C++ compiler does the rest. What the device does at the same
time happens one after the other here, so that a race goes unseen; a place in memory that is missed, NaN where nothing
was written, or a barrier that not all reach are found.
"""

import hashlib
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np

HEADER = Path(__file__).with_name("emulated.h")
FOLDER = HEADER.parents[1] / "build" / "emulated"
COMPILER = shutil.which("c++")
TO_PREPROCESS = ("-E", "-P", "-D__CUDA_ARCH__=900", "-xc++")
TO_COMPILE = ("-O1", "-w", "-std=c++20", "-fno-strict-aliasing")


def closing(text, start):
  """Where the parenthesis that opens at `start` is closed."""
  depth, at = 0, start
  while True:
    if text[at] == '"':
      at = re.compile(r'"(?:[^"\\]|\\.)*"').match(text, at).end()
      continue
    depth += {"(": 1, ")": -1}.get(text[at], 0)
    if depth == 0:
      return at
    at += 1


def divided(text, separator):
  """The parts between separators that stand in no string and no parenthesis."""
  parts, depth, start = [], 0, 0
  for token in re.finditer(r'"(?:[^"\\]|\\.)*"|::|.', text, re.DOTALL):
    depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(token[0], 0)
    if token[0][0] == separator and depth == 0:
      parts += [text[start : token.start()], *[""] * (len(token[0]) - 1)]  # "::" leaves nothing between
      start = token.end()
  return [*parts, text[start:]]


# What makes no difference on the CPU, where all copies arrive at once; and words that say no more of the others.
NOTHING = re.compile(
  r"griddepcontrol|fence|cp\.async\.(bulk\.)?(commit|wait)|wgmma\.(fence|wait)|setmaxnreg|prefetch|setp|bra$|\.reg"
)
WORDS = re.compile(
  r"[.:]+(sync|aligned|shared|cta|cluster|global|approx|ftz|relaxed|release|acquire|complete_tx|bytes|b64|b16|nc|L1|"
  r"no_allocate|m8n8|x[24])\b"
)


def instructions(template):
  """'setp.ne.b32 exists, %5, 0; @exists ld.global.u32 %0, [%4];': ['ld_u32'], and immediate operands of barriers."""
  found, immediate = [], []
  for line in re.split(r"[;\n]|\\n|\\t|(?<=[{}])|(?=[{}])", template):
    name, *operands = [word for word in line.split() if not word.startswith("@")] or [""]
    if not re.match(r"[a-z]", name) or name.endswith(":") or NOTHING.match(name):
      continue
    if name.startswith("bar."):
      immediate = [each.strip(",") for each in operands]
    found.append(re.sub(r"[.:]+", "_", name if immediate else WORDS.sub("", name)))
  return found, immediate


def call(statement):
  """An asm statement's text in its parentheses, as a call: inputs, then outputs."""
  template, *operands = divided(statement, ":")
  text = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', template))
  outputs, inputs = ([re.sub(r'^\s*("[^"]*"\s*)+', "", each, count=1) for each in divided(part, ",") if each.strip()]
                     for part in [*operands, "", ""][:2])  # fmt: skip
  names, immediate = instructions(text)
  if not names:
    return "void()"
  name = "_".join(names)
  if mma := re.match(r"wgmma_mma_async_m64n(\d+)k\d+_f32_(\w+)_", name):
    mn_major = mma[2] != "tf32" and text.rstrip("};\\nt ").endswith("1")
    sums = ", ".join(f"&{each}" for each in outputs)
    made = f"emulated::Wgmma<{mma[1]}, emulated::Of_{mma[2]}>(to, {int(mn_major)}, {', '.join(inputs)});"
    return f"[&] {{ float* const to[] = {{{sums}}}; {made} }}()"
  if mma := re.match(r"mma_m16n8k(\d+)_row_col_f32_(\w+)_\2", name):
    factors = inputs if len(inputs) == 6 else [*inputs[:2], "0", "0", inputs[2], "0"]
    made = f"{', '.join(outputs)}, {{{', '.join(factors)}}}"
    return f"emulated::Mma<emulated::Of_{mma[2]}, {2 if len(inputs) == 6 else 1}>({made})"
  if name.startswith("ld_"):
    name = name if name == "ld_u8" else "ld"
    inputs = [*inputs, "1"][:2]
  elif name.startswith("st_") and not name.startswith("st_async") and len(inputs) < 6:
    name = "st"
  elif immediate:
    inputs = [f"({inputs.pop(0)})" if each.startswith("%") else each for each in immediate]
  if f" {name}(" not in HEADER.read_text():
    return f'emulated::Fail("{name} is not emulated")'
  return f"emulated::{name}({', '.join([*inputs, *outputs])})"


def without_asm(text):
  parts, at = [], 0
  for found in re.finditer(r"\basm\b(?:\s+volatile)?\s*\(", text):
    if found.start() < at:
      continue
    end = closing(text, found.end() - 1)
    parts += [text[at : found.start()], call(text[found.end() : end])]
    at = end + 1
  return "".join([*parts, text[at:]])


def with_shared_memory(text):
  text = re.sub(
    r"extern\s+__shared__\s+(?:__align__\(\d+\)\s+)?([\w ]+?)\s+(\w+)\[\];",
    r"\1* const \2 = (\1*)emulated::Mine().shared;", text,
  )  # fmt: skip

  def own(found):
    alignment, kind, names = found.groups()
    made = []
    for number, each in enumerate(divided(names, ",")):
      name, sizes = re.fullmatch(r"\s*(\w+)((?:\[.*\])*)\s*", each, re.DOTALL).groups()
      unique, sizes = found.start() * 8 + number, sizes.replace("[", "[(").replace("]", ")]")
      made.append(f"auto& {name} = emulated::Shared<{kind}{sizes}>({unique}, {alignment or 16});")
    return " ".join(made)

  return re.sub(r"__shared__\s+(?:__align__\((\d+)\)\s+)?([\w ]+?)\s+(\w+(?:\[[^;]*|,[^;]*)?);", own, text)


def compiled(source, entry):
  """A program for `run`."""
  name = hashlib.sha256((source + HEADER.read_text() + Path(__file__).read_text()).encode()).hexdigest()[:24]
  program = FOLDER / name
  if program.exists():
    return program
  FOLDER.mkdir(parents=True, exist_ok=True)
  expanded = subprocess.run([COMPILER, *TO_PREPROCESS, "-"], input=source, capture_output=True, text=True, check=True)
  text = with_shared_memory(without_asm(expanded.stdout))
  cluster = re.search(r"__cluster_dims__\((\d+)", text)
  arguments, switch = re.search(rf"\b{entry}\(\s*const (?:__grid_constant__ )?(\w+) \w+(,)?", text).groups()
  with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
    path = Path(folder) / f"{entry}.cc"
    launch = f"{cluster[1] if cluster else 1}, [] {{ {entry}(given{', 0' if switch else ''}); }}"
    path.write_text(f"""#include "{HEADER}"
{text}
static {arguments} given;
int main() {{ return emulated::Main(&given, sizeof given, {launch}); }}
""")
    ran = subprocess.run([COMPILER, *TO_COMPILE, path, "-o", path.with_suffix("")], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[:4000]
    path.with_suffix("").rename(program)
  return program


def run(kernel, inputs, outputs):
  """The outputs of a kernel of print_kernels.cc, given arrays of their shapes, which hold what was there before."""
  arrays = [*inputs, *outputs]
  launch, words, maps = (
    kernel.numbers[:3],
    kernel.numbers[4 : 4 + kernel.numbers[3]],
    kernel.numbers[4 + kernel.numbers[3] :],
  )
  numbers = [len(arrays), *launch, len(words), *(each.nbytes for each in arrays), *words, *maps]
  head = np.array([number % 2**64 for number in numbers], np.uint64)
  ran = subprocess.run(
    [compiled(kernel.source, kernel.entry)], input=b"".join(each.tobytes() for each in [head, *arrays]),
    capture_output=True,
  )  # fmt: skip
  assert ran.returncode == 0, f"{kernel.engine} ends with {ran.returncode}: {ran.stderr.decode()[:400]}"
  found, at = [], sum(each.nbytes for each in inputs)
  for each in outputs:
    found.append(np.frombuffer(ran.stdout, each.dtype, each.size, at).reshape(each.shape))
    at += each.nbytes
  return found
