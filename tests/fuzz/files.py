"""Model files that were altered, through the command line: each is refused in one line or gives a valid model.

    python tests/fuzz/files.py --count 5000 --seed 0 --out failures/     (make fuzz-files)
    python tests/fuzz/files.py --seed 0 --only 1234 --out failures/      the case 1234 of seed 0 alone

Each case takes one of `models`, alters bytes of its file or fields of its messages, and runs `optimize-model` on it in
a child process whose memory and time are limited. A case fails where the child

- is killed, runs out of memory or time, or uses more than `RESIDENT` of memory;
- prints anything on stderr but one line of one of our own errors, or a character that a terminal obeys;
- says that it succeeded and wrote what `ortplugin.model.storage.load` refuses.

The seed and the number of a case determine it; what fails is written as <seed>-<number>-<model>.onnx with a .txt.
"""

import argparse
import faulthandler
import os
import random
import re
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

if __name__ == "__main__":
  os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # a process with threads can't fork safely
  sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[1])]

import onnx
import onnx.parser
from onnx_models import add_weights

ADDRESSES = 2 << 30  # bytes that a child may ask for beside what it starts with
RESIDENT = 1 << 30  # bytes that it may use
SECONDS = 30  # of processor time; it is killed after twice as many of the clock's

EXPORTED = """
    scatter_dynamo masked_torchscript_opset14 index_torchscript_opset17_dynamic cache_torchscript_opset17_dynamic
    assign_torchscript_opset14 rms_dynamo_fp16 rms_dynamo_opset23 efficientnet_torchscript_opset17_dynamic
    mobilenet_torchscript_opset17 bert_dynamo llama_dynamo_opset23 t5_dynamo gpt2_torchscript_opset18 vit_dynamo
    convnext_torchscript_opset18
"""

WRITTEN = {
  "bodies": """<ir_version: 8, opset_import: ["" : 17]>
        g (bool c, int64 n, float[2,3] x) => (float[2,3] y, float[K,2,3] all) <float[3] w = {1,2,3}> {
            a = Mul(x, w)
            b = If(c) <then_branch = t () => (float[2,3] p) { q = Neg(a)  p = Add(q, w) },
                        else_branch = e () => (float[2,3] r) { r = Exp(a) }>
            y, all = Loop(n, c, b) <body = l (int64 i, bool ci, float[2,3] s) => (bool co, float[2,3] o, float[2,3] v)
                { co = Identity(ci)  m = Tanh(s)  o = Add(m, a)  v = Relu(o) }> }""",
  "functions": """<ir_version: 9, opset_import: ["" : 18, "mine" : 1, "com.microsoft" : 1]>
        g (float[N,8] x) => (float[N,8] y) <float[8] s = {1,1,1,1,2,2,2,2}> {
            a = mine.Norm <eps=0.001>(x, s)  b = com.microsoft.Gelu(a)  y = mine.Norm(b, s) }
        <domain: "mine", opset_import: ["" : 18]> Norm <eps> (x, s) => (y) {
            two = Constant <value=float {2.0}>()  axes = Constant <value_ints=[-1]>()
            p = Pow(x, two)  m = ReduceMean(p, axes)  e = Constant <value_float : float = @eps> ()  v = Add(m, e)
            r = Sqrt(v)  d = Div(x, r)  y = Mul(d, s) }""",
  "old": """<ir_version: 3, opset_import: ["" : 9]>
        g (float[2,3,8,8] x, float[4,3,3,3] w) => (float[2,4,15,15] y) {
            a = Conv <kernel_shape=[3,3], pads=[1,1,1,1]>(x, w)  b = Relu(a)
            c = Upsample <mode="linear">(b, s)  d = Clip <min=0.0, max=6.0>(c)
            e = MaxPool <kernel_shape=[2,2], strides=[1,1]>(d)  y = Dropout(e) }""",
  "image": """<ir_version: 8, opset_import: ["" : 18]>
        g (float16[N,4,16,16] x, float16[8,4,3,3] w, float16[8,4,2,2] t, float16[8] b) => (float16[N,4,H,W] y) {
            a = Conv <strides=[2,2], auto_pad="SAME_UPPER">(x, w, b)  f = Relu(a)
            p = GlobalAveragePool(f)  q = Sigmoid(p)  s = Mul(f, q)
            u = ConvTranspose <strides=[2,2]>(s, t)  v = Resize <mode="linear">(u, , k)
            m, i = MaxPool <kernel_shape=[2,2]>(v)  h = AveragePool <kernel_shape=[3,3], ceil_mode=1>(m)
            sh = Shape(h)  st = Slice(sh, zero, two)  cc = Concat <axis=0>(st, minus)  r = Reshape(h, cc)
            y = Unsqueeze(r, minus) }""",
  "kinds": """<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3]>
        g (float[4,4] x, int64[2,2] i, float[2,4] u, string[N] words) => (float[4,4] y, int64[N] z, float[4] g1) {
            e = Where(mask, x, u1)  s = ScatterND(e, i1, u)  c = CumSum(s, axis)  t, k = TopK(c, one)
            q = Reshape(c, sixteen)  r = ReduceSum <keepdims=0>(q)  h = CastLike(r, x)
            l = OneHot(i, four, values)
            list = SequenceConstruct(x, c)  at = SequenceAt(list, axis)  d = Sub(at, h)
            y = Einsum <equation="ij,jk->ik"> (d, x)  z = ai.onnx.ml.LabelEncoder
                <keys_strings=["a", "b"], values_int64s=[1,2], default_int64=0>(words)
            n = Mul(d, c)  g1 = ReduceSum <keepdims=0>(n, ax) }""",
}

_CONSTANTS = {
  "old": {"s": ([1.0, 1.0, 2.0, 2.0], "float32")},
  "image": {
    "k": ([1.0, 1.0, 1.5, 1.5], "float32"),
    "zero": ([0], "int64"),
    "two": ([2], "int64"),
    "minus": ([-1], "int64"),
  },
  "kinds": {
    "mask": ([[True], [False], [True], [True]], "bool"),
    "u1": ([1.0], "float32"),
    "i1": ([[0], [2]], "int64"),
    "axis": (0, "int64"),
    "one": ([1], "int64"),
    "sixteen": ([16], "int64"),
    "four": (4, "int64"),
    "values": ([0.0, 1.0], "float32"),
    "ax": ([0], "int64"),
  },
}


@cache
def models():
  import numpy as np
  from exported import DATA

  found = {name: (DATA / f"{name}.onnx").read_bytes() for name in EXPORTED.split()}
  for name, text in WRITTEN.items():
    model = onnx.parser.parse_model(text)
    for constant, (values, dtype) in _CONSTANTS.get(name, {}).items():
      add_weights(model, **{constant: np.array(values, dtype)})
    found[name] = model.SerializeToString()
  return found


# ---- altering

NUMBERS = [0, 1, -1, 2, 3, 5, 64, 1000, 2**15, 2**31 - 1, 2**31, 2**32, 2**40, 2**62, 2**63 - 1, -(2**31), -(2**63)]
FLOATS = [0.0, -0.0, 1.0, -1.0, 1e-45, 1e38, 3.5e38, float("inf"), float("-inf"), float("nan"), 0.5]
WORDS = """
    ai.onnx com.microsoft ortplugin Add Mul Cast Concat Gather Range Reshape Expand Tile Split Loop If Scan Identity
    LayerNormalization FusedConv FusedPointwise FusedLayerNorm axis perm pads value program to body
"""
STRINGS = ["", " ", "\x1b[2J", "a\nb", "x" * 300, "\x00", "\u202e", "größe", "/etc/passwd", "../../x", *WORDS.split()]


def altered(seed, number):
  """The case: the name of the model, the altered file, and options of the command."""
  rng = random.Random(f"{seed}/{number}")
  name = rng.choice(sorted(models()))
  data = models()[name]
  if rng.random() < 0.7:
    model = onnx.ModelProto.FromString(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 5))):
      _alter_message(model, rng)
    data = model.SerializePartialToString()
  if rng.random() < 0.35:
    data = _alter_bytes(data, rng)
  options = rng.choices(
    [[], ["--layout", "nhwc"], ["--precision", "fp16"], ["--restore"], ["--skip", "inline-functions"]], (12, 2, 2, 1, 1)
  )[0]
  return name, data, options


def _alter_bytes(data, rng):
  kind = rng.choice(("flip", "flip", "set", "cut", "drop", "repeat", "insert"))
  work = bytearray(data)
  at = rng.randrange(len(work) or 1)
  length = min(rng.choice((1, 2, 8, 64, 1000)), len(work) - at)
  if kind in ("flip", "set") and work:
    for _ in range(rng.choice((1, 1, 2, 8, 30))):
      place = rng.randrange(len(work))
      new = work[place] ^ 1 << rng.randrange(8) if kind == "flip" else rng.choice((0, 127, 128, 255))
      work[place] = new
  elif kind == "cut":
    del work[at:]
  elif kind == "drop":
    del work[at : at + length]
  elif kind == "repeat":
    work[at:at] = work[at : at + length]
  else:
    work[at:at] = rng.randbytes(length)
  return bytes(work)


@dataclass(frozen=True)
class _Field:
  owner: Any
  descriptor: Any

  @property
  def is_repeated(self):
    value = getattr(self.owner, self.descriptor.name)
    return hasattr(value, "append") or hasattr(value, "extend")


def _messages(message):
  yield message
  for descriptor, value in message.ListFields():
    if descriptor.message_type is None:
      continue
    for each in value if hasattr(value, "extend") else [value]:
      yield from _messages(each)


def _alter_message(model, rng):
  """Changes one field of one message: any kind of message as likely as another, then any of that kind."""
  kinds = {}
  for message in _messages(model):
    kinds.setdefault(message.DESCRIPTOR.name, []).append(message)
  kind = rng.choice(sorted(kinds))
  owner = rng.choice(kinds[kind])
  present = [descriptor for descriptor, _ in owner.ListFields()]
  every = list(owner.DESCRIPTOR.fields)
  field = _Field(owner, rng.choice(present if present and rng.random() < 0.8 else every))
  if field.is_repeated:
    _alter_repeated(field, kinds, rng)
  elif field.descriptor.message_type is not None:
    target = getattr(owner, field.descriptor.name)
    others = kinds.get(field.descriptor.message_type.name)
    if others and rng.random() < 0.7:
      _copy(rng.choice(others), target)
    else:
      owner.ClearField(field.descriptor.name)
  elif rng.random() < 0.15:
    owner.ClearField(field.descriptor.name)
  else:
    _assign(owner, field.descriptor, _value(getattr(owner, field.descriptor.name), kinds, rng))


def _alter_repeated(field, kinds, rng):
  values = getattr(field.owner, field.descriptor.name)
  action = rng.choice(("change", "change", "remove", "repeat", "swap", "clear", "add"))
  is_message = field.descriptor.message_type is not None
  if not values or action == "add":
    if is_message:
      others = kinds.get(field.descriptor.message_type.name)
      copy = type(rng.choice(others))() if others else None
      if copy is not None:
        copy.CopyFrom(rng.choice(others or []))
        values.append(copy)
    else:
      _append(values, _value(None, kinds, rng), field.descriptor)
    return
  at = rng.randrange(len(values))
  if action == "clear":
    del values[:]
  elif action == "remove":
    del values[at]
  elif action == "repeat":
    values.append(values[at])
  elif action == "swap":
    items = [type(each).FromString(each.SerializePartialToString()) if is_message else each for each in values]
    other = rng.randrange(len(items))
    items[at], items[other] = items[other], items[at]
    del values[:]
    values.extend(items)
  elif is_message:
    others = kinds.get(field.descriptor.message_type.name)
    if others:
      _copy(rng.choice(others), values[at])
  else:
    changed = _value(values[at], kinds, rng)
    rest = list(values)
    del values[at:]
    _append(values, changed, field.descriptor)
    values.extend(rest[at + 1 :])


def _copy(source, target):
  """A message may be copied into one that it contains: a copy of it is taken first."""
  target.CopyFrom(type(source).FromString(source.SerializePartialToString()))


def _value(old, kinds, rng):
  if isinstance(old, bool | int):
    return rng.choice([*NUMBERS, int(old) + 1, int(old) - 1, int(old) * 2])
  if isinstance(old, float):
    return rng.choice([*FLOATS, old * 2])
  if isinstance(old, bytes):
    return _alter_bytes(old, rng) if old else rng.randbytes(rng.choice((0, 1, 4, 100)))
  if isinstance(old, str):
    nodes = kinds.get("NodeProto", [])
    names = [name for node in nodes for name in (*node.input, *node.output)] or [""]
    return rng.choice([rng.choice(STRINGS), rng.choice(names), rng.choice(names), old + "x"])
  return rng.choice([*NUMBERS, *FLOATS, *STRINGS])


def _assign(owner, descriptor, value):
  for candidate in _candidates(value):
    try:
      setattr(owner, descriptor.name, candidate)
      return
    except (TypeError, ValueError, OverflowError):
      continue


def _append(values, value, descriptor):
  for candidate in _candidates(value):
    try:
      values.append(candidate)
      return
    except (TypeError, ValueError, OverflowError):
      continue


def _candidates(value):
  """The value in the types that a field may have; protobuf takes one of them."""
  number = value if isinstance(value, int) else 1
  return [value, number & 0x7FFFFFFF, float(number), str(value), str(value).encode()]


# ---- running


@dataclass(frozen=True)
class Outcome:
  """What one case gave. `failure` is "" where that is what a user may get."""

  kind: str  # "refused", "optimized" or "failed"
  failure: str
  seconds: float
  resident: int  # bytes, beyond what the process had used that it was forked from


def run_case(data, options, folder):
  """Runs the command on the file in a child; the model's file and its output stay in `folder`."""
  source, target, errors = folder / "in.onnx", folder / "out.onnx", folder / "errors.txt"
  source.write_bytes(data)
  target.unlink(missing_ok=True)
  # What this process holds now is where the child's peak begins, and not this one's own peak, which may be far above.
  inherited = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
  begun = time.perf_counter()
  pid = os.fork()
  if pid == 0:
    _child(source, target, errors, options)
  signal.signal(signal.SIGALRM, lambda *_: os.kill(pid, signal.SIGKILL))
  signal.alarm(2 * SECONDS)
  try:
    _, status, usage = os.wait4(pid, 0)
  finally:
    signal.alarm(0)
  seconds, resident = time.perf_counter() - begun, max((usage.ru_maxrss << 10) - inherited, 0)
  failure = _failure(status, errors.read_bytes().decode(errors="replace"), resident)
  kind = "failed" if failure else "optimized" if os.waitstatus_to_exitcode(status) == 0 else "refused"
  return Outcome(kind, failure, seconds, resident)


_REFUSAL = re.compile(r"optimize-model: [^\n]+\n")
_INVALID = 77  # the child's exit status where the output can't be read back


def _failure(status, text, resident):
  code = os.waitstatus_to_exitcode(status)
  if code < 0:
    return f"killed by {signal.Signals(-code).name}: {text[-2000:]}"
  if code == _INVALID:
    return f"the output is invalid: {text[-2000:]}"
  if resident > RESIDENT:
    return f"it used {resident >> 20} MiB"
  if code == 0:
    return f"on stderr: {text[-2000:]}" if text else ""
  if code not in (1, 2) or not _REFUSAL.fullmatch(text):
    return f"exit status {code}: {text[-2000:]}"
  if not all(each.isprintable() or each == "\n" for each in text):
    return f"control characters: {text!r}"
  if "internal error" in text or "enough memory" in text:
    return text.strip()
  return ""


def _child(source, target, errors, options):
  """Does it and exits: never returns."""
  code = 70
  faulthandler.disable()
  try:
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.stderr, sys.stdout = open(2, "w", closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    addresses = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (addresses + ADDRESSES,) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    from ortplugin.cli import main
    from ortplugin.model.storage import load

    code = main([str(source), "-o", str(target), "--no-verify", *options])
    if code == 0:
      try:
        load(target)
      except Exception as error:
        print(error, file=sys.stderr)
        code = _INVALID
    sys.stderr.flush()
  finally:
    os._exit(code)


def run(seed, numbers, out=None, tell=lambda _: None):
  """Runs the cases; returns (name of the model, outcome) by number. What fails is written to `out`."""
  found = {}
  with tempfile.TemporaryDirectory(prefix="ortplugin-fuzz-") as folder:
    for number in numbers:
      name, data, options = altered(seed, number)
      outcome = run_case(data, options, Path(folder))
      found[number] = name, outcome
      if len(found) % 100 == 0:
        print(f"{len(found)} of {len(numbers)}", file=sys.stderr, flush=True)
      if not outcome.failure:
        continue
      tell(f"{number} {name} {' '.join(options)}: {outcome.failure[:300]}")
      if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        stem = out / f"{seed}-{number}-{name}"
        stem.with_suffix(".onnx").write_bytes(data)
        stem.with_suffix(".txt").write_text(f"optimize-model {' '.join(options)}\n{outcome.failure}\n")
  return found


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--count", type=int, default=5000)
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--start", type=int, default=0, help="the first case")
  parser.add_argument("--only", type=int, help="this case alone")
  parser.add_argument("--out", type=Path, help="the folder that failures are written to")
  arguments = parser.parse_args()
  numbers = range(arguments.start, arguments.start + arguments.count)
  if arguments.only is not None:
    numbers = range(arguments.only, arguments.only + 1)
  found = run(arguments.seed, numbers, arguments.out, lambda text: print(text, flush=True))
  outcomes = [outcome for _, outcome in found.values()]
  slowest = max(outcomes, key=lambda each: each.seconds)
  largest = max(outcomes, key=lambda each: each.resident)
  print(dict(Counter(each.kind for each in outcomes)), f"of seed {arguments.seed}")
  print(f"slowest {slowest.seconds:.1f} s, largest {largest.resident >> 20} MiB")
  return 1 if any(each.failure for each in outcomes) else 0


if __name__ == "__main__":
  sys.exit(main())
