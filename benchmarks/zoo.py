"""A sweep over architectures of torchvision, timm and transformers: are optimized models right, plain and under graphs?

    python benchmarks/zoo.py --seconds 550                       # as many rows as there is time for
    python benchmarks/zoo.py --seconds 550 --missing             # those that the results lack at this commit
    python benchmarks/zoo.py --bad                               # those that are wrong or fail in the results
    python benchmarks/zoo.py --part 1/3 --workers 14             # a third of them
    python benchmarks/zoo.py --cases resnet18 --exporter dynamo  # those whose name has this in it
    python benchmarks/zoo.py --merge a/zoo.json.xz b/zoo.json.xz       # results of parts, without measuring
    python benchmarks/zoo.py --provider cpu --cases resnet18     # exports, optimizes and compares on the CPU

Every network of zoo_networks.py, in float16 and float32, exported by both of PyTorch's exporters, is a row; zoo_row.py
says what is checked in it. Processes share the GPU, each with a row at a time: what takes longest is exporting. One
that dies or takes too long is a row that says so. Rows are measured in an order in which a sweep that is cut short has
seen every network once before it sees one twice. They merge into zoo.json.xz with those of earlier runs.

Verdicts:

    right       errors are within zoo_row.py's rule, and all replays have the same bits as a run without a graph
    wrong       they are not
    fails       the original runs, the optimized model does not, or can't be captured where the original can
    not judged  the reference can't tell, or ONNX Runtime's original is as wrong
    no export   PyTorch's exporter failed
    not run     PyTorch or ONNX Runtime does not run it, or there was no time
    not there   the installed library has no such network

What is wrong or fails, and what ends its process, is measured a second time when all else is done, in a new process
that has the GPU nearly to itself; where that goes another way the table says how it went at first. What fails for want
of memory then, too, or has no time for it is no row: `--missing` tries it again.
"""

import contextlib
import math
import multiprocessing
import multiprocessing.connection
import os
import re
import signal
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import timing
import zoo_networks
from zoo_row import AGAIN, REPLAYS, Job, Setting, judge, measure

# Appended, so that an installed ortplugin comes before the source folder.
sys.path.append(str(Path(__file__).resolve().parent.parent))

KEYS = ("case", "precision", "exporter")
# What is measured first: every network by one exporter in one precision, the usual sizes before the small ones.
ORDER = [(e, p, s) for e in ("dynamo", "torchscript") for p in ("fp16", "fp32") for s in ("usual", "small")]
SHOWN = 2  # in the docs, of those that gain least and of those that gain most
RIGHT, BAD = "right", ("wrong", "fails")
DIED = "died"  # in a row: its process did
INTERNAL = ("stage", "failing", DIED)  # parts of a row while it is measured
DONE, LAST = "done", "last"  # what a worker says after a row: that it can go on, or not
SECOND_WORKERS = 2  # processes of a GPU in which rows are measured for the second time
SAID = 300  # characters of what a process that died said last
START_SECONDS = 120  # that a new process may take besides
MOST_MEMORY = 7 << 30  # bytes of a worker after a row, with which it goes on
OTHERS = ("error_torch", "error_ort", "error_tf32", "error_tf32_ort", "error_rounded")
REASONS = ("why", "first", "uncaptured", "ort_uncaptured")
LONGEST_REASON = 150  # characters of one in the table; what comes later differs by names and shapes

Row = dict[str, Any]
Measure = Callable[[Job, Setting, Callable[[Mapping[str, Any]], None]], None]


def jobs(names="", exporter="", precision="", size="", part="1/1"):
  """The rows to measure, in their order. `names`: parts of names, comma between them; `part`: 'NUMBER/PARTS'."""
  wanted = [each for each in names.split(",") if each]
  number, _, parts = part.partition("/")
  if not (number.isdecimal() and parts.isdecimal() and 1 <= int(number) <= int(parts)):
    raise SystemExit(f"'{part}' is not NUMBER/PARTS, such as 1/3")
  found = [
    Job(case.name, dtype, by)
    for by, dtype, kind in ORDER
    if exporter in ("", by) and precision in ("", dtype) and size in ("", kind)
    for case in zoo_networks.CASES.values()
    if case.size == kind and (not wanted or any(each in case.name for each in wanted))
  ]
  if not found:
    raise SystemExit(f"no network's name has one of '{names}' in it")
  return found[int(number) - 1 :: int(parts)]


# ---- workers


def work(connection, setting, log, function):
  """A worker: measures the jobs that come through the connection, until None does."""
  output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
  for stream in (1, 2):  # exporters talk
    os.dup2(output, stream)
  if setting.on_gpu:
    os.environ["CUDA_VISIBLE_DEVICES"] = str(setting.gpu)  # read when CUDA is first used
  with contextlib.suppress(ImportError):
    import torch

    torch.set_num_threads(1 if setting.on_gpu else 2)
  while (job := connection.recv()) is not None:
    os.ftruncate(output, 0)
    connection.send({"stage": "start"})
    told = {}

    def tell(values, told=told):
      told.update(values)
      connection.send(values)

    function(job, setting, tell)
    connection.send(DONE if usable(setting) and not failed(told) else LAST)


def failed(row):
  """Whether a session failed while the row was measured: a capture that ends so may leave CUDA in any state."""
  return bool({"uncaptured", "ort_uncaptured"} & row.keys()) or verdict(row) in ("fails", AGAIN)


def usable(setting):
  """Whether this process can go on: the GPU works, and its memory is not too much. Frees what it holds there."""
  if int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") > MOST_MEMORY:
    return False
  if not setting.on_gpu:
    return True
  import torch

  try:
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
  except RuntimeError:
    return False
  return True


@dataclass
class Worker:
  """A process and the row that it measures, if any."""

  setting: Setting
  function: Measure
  log: Path
  process: Any = None
  connection: Any = None
  job: Job | None = None
  row: Row = field(default_factory=dict)
  begun: float = 0.0
  again: bool = False  # whether the last row is worth a second measurement

  def start(self, job):
    """Gives the job to the process, a new one if there is none."""
    if self.process is None or not self.process.is_alive():
      self.close()
      context = multiprocessing.get_context("spawn")
      self.connection, theirs = context.Pipe()
      given = (theirs, self.setting, str(self.log), self.function)
      self.process = context.Process(target=work, args=given, daemon=True)
      self.process.start()
      theirs.close()
    self.job, self.begun = job, time.monotonic()
    self.row = {"case": job.case, "precision": job.precision, "exporter": job.exporter}
    with contextlib.suppress(OSError):  # a process that has just died is found out in `poll`
      self.connection.send(job)

  def poll(self, limit):
    """The row, if it is done, its process has died, or it has taken longer than `limit` seconds."""
    try:
      while self.connection.poll():
        part = self.connection.recv()
        if part in (DONE, LAST):
          if part == LAST:
            self.kill()
          return self._end("")
        if "stage" not in self.row:  # a new process has imported what it needs
          self.begun = time.monotonic()
        self.row.update(part)
    except (EOFError, OSError):
      self.process.join(5)
      problem = f"died in '{self.row.get('stage', 'start')}': {_exit(self.process.exitcode)}"
      said = self.log.read_text(errors="replace").strip().rpartition("\n")[2] if self.log.exists() else ""
      self.row[DIED] = True
      return self._end(f"{problem}; {said[-SAID:]}" if said else problem)
    if time.monotonic() - self.begun > limit + (0 if "stage" in self.row else START_SECONDS):
      self.kill()
      return self._end(f"'{self.row.get('stage', 'start')}' was not done after {limit:.0f} s")
    return None

  def _end(self, problem):
    if problem:
      if not (found := self.row.get("failing", "not run")):
        found, reason = judge(self.row)
        problem = "; ".join(filter(None, (reason, problem)))
      self.row |= {"verdict": found, "why": problem}
    row = {key: value for key, value in self.row.items() if key not in INTERNAL}
    row["seconds"] = round(time.monotonic() - self.begun)
    self.again = bool(self.row.get(DIED)) or verdict(row) in (*BAD, AGAIN)
    self.job, self.row = None, {}
    return row

  def kill(self):
    """Ends the process at once."""
    if self.process is not None and self.process.is_alive():
      self.process.kill()
      self.process.join()

  def close(self):
    """Ends the process, and the connection with it."""
    self.kill()
    if self.connection is not None:
      self.connection.close()
    self.process = self.connection = None


def _exit(code):
  if code is not None and code < 0:
    with contextlib.suppress(ValueError):
      return signal.Signals(-code).name
  return f"exit code {code}"


def sweep(todo, setting, *, workers, limit, seconds, gpus=1, function=measure):
  """The rows, as they are done, those that are measured again last. After `seconds` what is not done is left out, and
  what waits to be measured again.

  Args:
      todo: what to measure, in this order.
      setting: how; the GPU and the folder of its locks are this function's.
      workers: processes at a time.
      limit: seconds for a row, after which its process is ended.
      seconds: for all.
      gpus: how many the processes are spread over.
      function: what a process calls for a row.
  """
  os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the workers
  end = time.monotonic() + seconds
  waiting, second = deque(todo), deque[Row]()  # what comes first, and the rows to measure again
  with tempfile.TemporaryDirectory(prefix="zoo-") as folder:
    crew = []
    for number in range(min(workers, len(todo))):
      gpu = number % gpus
      locks = Path(folder) / f"gpu{gpu}"
      locks.mkdir(exist_ok=True)
      own = replace(setting, gpu=gpu, locks=locks if setting.on_gpu else None)
      crew.append(Worker(own, function, Path(folder) / f"{number}.log"))
    firsts = {}
    try:
      while time.monotonic() < end:
        idle = [worker for worker in crew if worker.job is None]
        while idle and waiting:
          idle.pop(0).start(waiting.popleft())
        for worker in idle:  # a GPU has room for fewer now: what is measured again has it nearly to itself
          if second and sum(each.job is not None for each in crew) < SECOND_WORKERS * gpus:
            worker.kill()
            first = second.popleft()
            job = job_of(first)
            firsts[job] = first
            worker.start(job)
        busy = [worker for worker in crew if worker.job is not None]
        if not busy:
          break
        multiprocessing.connection.wait([worker.connection for worker in busy], timeout=1)
        for worker in busy:
          if (row := worker.poll(limit)) is None:
            continue
          if (job := job_of(row)) in firsts:
            yield row | first_try(firsts[job], row)
          elif worker.again:
            second.append(row)
          else:
            yield row
    finally:
      for worker in crew:
        worker.close()


def job_of(row):
  """The job of which this is the row."""
  return Job(row["case"], row["precision"], row["exporter"])


def first_try(first, row):
  """What a row keeps of its first measurement: its reason, where the second went another way."""
  same = verdict(first) == verdict(row) or verdict(first) == AGAIN
  return {} if same else {"first": f"{verdict(first)}: {first.get('why', '')}"}


# ---- the record


def compact(row):
  """The row with times of four digits, other numbers of two and the beginning of reasons, without how long it took
  and that it is right."""

  def short(key, value):
    if isinstance(value, float):
      return float(f"{value:.4g}" if key.startswith("us") else f"{value:.2g}")
    return value[: LONGEST_REASON + 1] if key in REASONS else value  # one more, so that the table says it is cut

  return {
    key: short(key, value) for key, value in row.items() if key != "seconds" and (key, value) != ("verdict", RIGHT)
  }


def verdict(row):
  """A row's verdict; a right one's is left out of the record."""
  return str(row.get("verdict", RIGHT))


def in_order(rows):
  """The rows of networks that are still in the list, in its order."""
  places = {name: number for number, name in enumerate(zoo_networks.CASES)}
  shown = {(row["case"], row["precision"]) for row in rows if row["exporter"] == "dynamo" and "error" in row}

  def slim(row):
    """Without the errors of others where the table shows those of the same network by the other exporter."""
    if row["exporter"] == "dynamo" or verdict(row) != RIGHT or (row["case"], row["precision"]) not in shown:
      return row
    return {key: value for key, value in row.items() if key not in OTHERS}

  kept = [slim(row) for row in rows if row["case"] in places]
  return sorted(kept, key=lambda row: (places[row["case"]], row["exporter"], row["precision"]))


def line(row):
  """A row, to print when it is done."""
  errors = ", ".join(
    f"{name} {row[key]:.1e}"
    for name, key in (
      ("ours", "error"),
      ("ORT", "error_ort"),
      ("torch", "error_torch"),
      ("ours TF32", "error_tf32"),
      ("ORT TF32", "error_tf32_ort"),
      ("rounded", "error_rounded"),
    )
    if key in row
  )
  parts = [
    row.get("why", ""),
    f"{row['before']} to {row['after']} nodes" if "after" in row else "",
    errors,
    f"{row['us']:.0f} us, ORT {row['us_ort']:.0f}" if "us" in row and "us_ort" in row else "",
  ]
  took = f" ({row['seconds']} s)" if "seconds" in row else ""
  what = f"{row['case']}, {row['precision']}, {row['exporter']}{took}: {verdict(row)}"
  return "; ".join(filter(None, (what, *parts)))


# ---- the table


def table(record, most=None, name="zoo"):
  """One line for each network, wrong ones first, and below it what was not measured and why.

  `most`: of the right ones, so many that gain least, and most, in each precision, and so many names for a reason.
  `name`: the record's.
  """
  cases = {}
  for row in in_order(record["rows"]):
    cases.setdefault(row["case"], []).append(row)
  measured = {name: rows for name, rows in cases.items() if any("error" in row for row in rows)}
  lines = [
    "| network | nodes | fp16: PyTorch | ORT | ours | fp32: ORT | ours | differed | fp16, µs: ORT | torch.compile "
    "| ours | fp32, µs: ORT | torch.compile | ours | TorchScript |",
    "|---|---:|" + "---:|" * 13,
  ]
  bad = [name for name, rows in measured.items() if any(verdict(row) in BAD for row in rows)]
  right = [name for name in measured if name not in bad]
  shown = right if most is None else _least_and_most(measured, right, most)
  lines += [_case_line(case, measured[case], bold=case in bad) for case in (*bad, *shown)]
  verdicts = Counter(verdict(row) for rows in cases.values() for row in rows)
  total = ", ".join(f"{count} {each}" for each, count in verdicts.most_common())
  gains = _gains(row for rows in measured.values() for row in rows)
  lines += ["", f"{sum(verdicts.values())} rows of {len(cases)} networks: {total}.{gains}"]
  if len(shown) < len(right):
    lines[-1] += (
      f" Of those that are right, the {most} that gain least and the {most} that gain most in each precision "
      f"are shown; `python benchmarks/zoo.py --from benchmarks/results/{name}.json.xz` prints all, and every reason."
    )
  problems = _problems(cases, None if most is None else max(1, most // 3))
  if problems:
    lines += ["", "Not right, or not measured, and why:", "", *problems]
  unit = "Times: the GPU's for a run, microseconds"
  return timing.page(lines, "zoo", record["environment"], _older(cases), unit)


def _case_line(name, rows, *, bold):
  by_key = {(row["exporter"], row["precision"]): row for row in rows}

  def row_of(precision):
    """The row of the dynamo exporter, or the other's where that has none."""
    both = [by_key.get((exporter, precision), {}) for exporter in ("dynamo", "torchscript")]
    return next((row for row in both if "error" in row), {})

  half, single = row_of("fp16"), row_of("fp32")
  any_row = half or single
  replays = sum(REPLAYS for row in rows if "differed" in row)
  differed = sum(row.get("differed", 0) for row in rows)
  script = [by_key.get(("torchscript", precision), {}) for precision in ("fp16", "fp32")]
  nodes = next((f"{row['before']} → {row['after']}" for row in script if "after" in row), "")
  ratios = ", ".join(f"{row['us_ort'] / row['us']:.2f}" for row in script if "us" in row and "us_ort" in row)
  cells = [
    f"{any_row['before']} → {any_row['after']}",
    *(_scientific(half.get(key)) for key in ("error_torch", "error_ort", "error")),
    *(_scientific(single.get(key)) for key in ("error_ort", "error")),
    f"{differed} / {replays}" if replays else "",
    *(_time(row, key) for row in (half, single) for key in ("us_ort", "us_compile", "us")),
    "; ".join(filter(None, (nodes, f"{ratios} times ORT" if ratios else ""))),
  ]
  emphasis = "**" if bold else ""
  return f"| {emphasis}{name}{emphasis} | " + " | ".join(cells) + " |"


def _scientific(value):
  return "" if value is None else f"{value:.1e}"


def _time(row, key):
  """A time; with a star where it is not that of a CUDA graph."""
  if key not in row:
    return ""
  best = min(row[key], row.get("us_nhwc", row[key])) if key == "us_ort" else row[key]
  why = {"us_ort": "ort_uncaptured", "us": "uncaptured"}.get(key, "")
  return f"{best:.0f}" + "*" * (why in row)


def _least_and_most(cases, names, most):
  """Those of the names that gain least and most in any precision, in their order."""
  found = set()
  for precision in ("fp16", "fp32"):
    gains = {
      name: gain
      for name in names
      for row in cases[name]
      if (row["precision"], row["exporter"]) == (precision, "dynamo") and (gain := _gain(row)) is not None
    }
    order = sorted(gains, key=lambda name: gains[name])
    found |= {*order[:most], *order[-most:]}
  return [name for name in names if name in found]


def _gain(row):
  """ONNX Runtime's time over ours, where both have CUDA graphs."""
  if not {"us", "us_ort"} <= row.keys() or {"uncaptured", "ort_uncaptured"} & row.keys():
    return None
  return float(min(row["us_ort"], row.get("us_nhwc", row["us_ort"])) / row["us"])


def _gains(rows):
  """The geometric means of what is gained."""
  ratios = {}
  for row in rows:
    if (gain := _gain(row)) is not None:
      ratios.setdefault(("ONNX Runtime's", row["precision"]), []).append(gain)
    if "us_compile" in row and "us" in row:
      ratios.setdefault(("torch.compile's", row["precision"]), []).append(row["us_compile"] / row["us"])
  if not ratios:
    return ""
  texts = [
    f"{whose} in {name} {math.exp(sum(map(math.log, values)) / len(values)):.2f} (slowest {min(values):.2f})"
    for (whose, name), values in sorted(ratios.items())
  ]
  return f" Time over ours, geometric means: {', '.join(texts)}. *: without a CUDA graph."


def _problems(cases, most=None):
  """What is not right or was not captured, by reason: the same reason once, wrong ones first and bold.

  `most`: so many networks of a reason, whatever its numbers are, and none of those that were not measured, but all of
  those that are wrong.
  """
  places = {}
  for name, rows in cases.items():
    reasons = {}
    for row in rows:
      which = f"{row['precision']} {row['exporter']}"
      if verdict(row) != RIGHT:
        reasons.setdefault((verdict(row), row.get("why", "")), []).append(which)
      elif row.get("why"):
        reasons.setdefault(("right, but", row["why"]), []).append(which)
      if "first" in row:
        reasons.setdefault(("measured again, because", row["first"]), []).append(which)
      if "error_exported" in row and verdict(row) == RIGHT:
        why = "compared with the exported model in float32; the export's own error is too large for its yardstick"
        reasons.setdefault(("right, but", why), []).append(which)
      if "sessions" in row:
        reasons.setdefault(("right, but", "sessions without a graph differ in bits"), []).append(which)
      for key, what in (("uncaptured", "not captured"), ("ort_uncaptured", "ORT's original not captured")):
        if key in row:
          reasons.setdefault((what, row[key]), []).append(which)
    for (what, why), which in reasons.items():
      if most is not None and what not in BAD:
        why = re.sub(r"\d+ of \d+ replays", "replays", re.sub(r" is [\d.]+$", " is large", why))
      reason = (what, why if len(why) <= LONGEST_REASON else why[:LONGEST_REASON] + "...")
      text = name if len(which) == len(rows) else f"{name} ({', '.join(which)})"
      places.setdefault(reason, []).append(text)
  order = [*BAD, "not captured", "not judged", "right, but"]
  order += ["measured again, because", "no export", "not run", "not there"]
  sort = sorted(places, key=lambda reason: order.index(reason[0]) if reason[0] in order else len(order))
  lines = []
  for what, why in sort:
    if most is not None and what not in (*BAD, "not captured", "not judged", "right, but"):
      continue
    emphasis = "**" if what in BAD else ""
    names = places[what, why]
    if most is not None and what not in BAD and len(names) > most:
      names = [*names[:most], f"and {len(names) - most} more"]
    lines.append(f"- {emphasis}{what}{emphasis}: {_escaped(why)}: {', '.join(names)}")
  return lines


def _escaped(text):
  """The text as Markdown shows it unchanged."""
  return f"`{text.replace('`', chr(39))}`" if text else "no reason"


def _older(cases):
  commits = Counter(row["commit"] for rows in cases.values() for row in rows if "commit" in row)
  return "".join(f"; {count} rows at commit {commit[:12]}" for commit, count in commits.items())


# ---- the program


def measure_all(args, record):
  """Measures what the arguments say; after each row the record is whole."""
  setting = Setting(args.provider, nhwc=args.nhwc, compiled=args.compile)
  todo = jobs(args.cases, args.exporter, args.precision, args.size, args.part)
  earlier = args.earlier or args.out / "zoo.json.xz"
  if args.provider == "cuda":  # another GPU or version ends the program here, and not when all is measured
    todo = chosen(todo, timing.merged([], earlier, record["environment"], *KEYS), missing=args.missing, bad=args.bad)
  rows = []
  begun = time.monotonic()
  for row in sweep(todo, setting, workers=args.workers, limit=args.limit, seconds=args.seconds, gpus=args.gpus):
    told = f"[{len(rows) + 1} of {len(todo)}, {time.monotonic() - begun:.0f} s] {line(row)}"
    if verdict(row) == AGAIN:
      yield told
      continue
    rows.append(compact(row))
    if args.provider == "cuda":
      record["rows"] = in_order(timing.merged(rows, earlier, record["environment"], *KEYS))
    else:
      record["rows"] = in_order(rows)
    yield told


def chosen(todo, known, *, missing, bad):
  """The jobs whose row is wrong or fails, if `bad`; if `missing`, those that the known rows lack at this commit.

  Those that they lack at every commit come first, and what was not right before what was.
  """
  there = {tuple(row[key] for key in KEYS): row for row in known}
  found = []
  for job in todo:
    row = there.get((job.case, job.precision, job.exporter))
    is_bad = row is not None and verdict(row) in BAD
    is_missing = row is None or "commit" in row
    if (not missing and not bad) or (missing and is_missing) or (bad and is_bad):
      found.append((0 if row is None or not missing else 1 if verdict(row) != RIGHT else 2, job))
  return [job for _, job in sorted(found, key=lambda each: each[0])]


def merge(paths):
  """One record of several: a row of a later file replaces an earlier file's."""
  record = timing.read(paths[0])
  for path in paths[1:]:
    with tempfile.TemporaryDirectory() as folder:
      so_far = timing.write("zoo", record, Path(folder))
      record = timing.read(path)
      record["rows"] = timing.merged(record["rows"], so_far, record["environment"], *KEYS)
  record["rows"] = in_order(record["rows"])
  return record


def main():
  options = {
    "--cases": {"default": "", "help": "parts of names, comma between them"},
    "--exporter": {"default": "", "choices": ("", "dynamo", "torchscript")},
    "--precision": {"default": "", "choices": ("", "fp16", "fp32")},
    "--size": {"default": "", "choices": ("", "small", "usual")},
    "--part": {"default": "1/1", "help": "NUMBER/PARTS of the rows"},
    "--missing": {"action": "store_true", "help": "only what the earlier results lack at this commit"},
    "--bad": {"action": "store_true", "help": "only what is wrong or fails in the earlier results"},
    "--earlier": {"type": Path, "help": "earlier results, into which the rows merge; zoo.json.xz of --out"},
    "--merge": {"type": Path, "nargs": "+", "help": "merge these results instead of measuring"},
    "--provider": {"default": "cuda", "choices": ("cuda", "cpu"), "help": "cpu: no graphs, no times, no record"},
    "--workers": {"type": int, "default": max(1, (os.cpu_count() or 2) - 2), "help": "processes"},
    "--gpus": {"type": int, "default": 1, "help": "GPUs of this machine that the processes are spread over"},
    "--seconds": {"type": float, "default": 3600.0, "help": "for all"},
    "--limit": {"type": float, "default": 150.0, "help": "seconds for a row"},
    "--nhwc": {"action": "store_true", "help": "also time ONNX Runtime with prefer_nhwc"},
    "--compile": {"action": "store_true", "help": "also time torch.compile"},
  }
  args = timing.arguments(__doc__, options)
  if args.merge:
    timing.write("zoo", merge(args.merge), args.out)
    args.source = args.out / "zoo.json.xz"
  if args.provider == "cpu":
    record = {"rows": []}
    for text in measure_all(args, record):
      print(text, flush=True)
    counts = Counter(verdict(row) for row in record["rows"])
    print(", ".join(f"{count} {each}" for each, count in counts.most_common()))
    return
  record = timing.measured("zoo", measure_all, args)
  print(table(record))
  print(*(line(row) for row in record["rows"] if verdict(row) in BAD), sep="\n")
  if args.readme:
    name = args.source.name.partition(".")[0] if args.source else "zoo"
    timing.fill_readme(name, table(record, SHOWN, name))


if __name__ == "__main__":
  signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # ends the workers, too
  main()
