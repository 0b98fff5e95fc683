"""optimize-model: the command line of the optimizer."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from .errors import OrtPluginError, UsageError, VerificationError, one_line, printable
from .version import __version__

if TYPE_CHECKING:
  from .model.storage import StoredModel
  from .report import Report

PROGRAM = "optimize-model"
_PIPE_WIDTH = 160  # columns of a table that goes to a file or pipe


def _names(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...] | None:
  """'--only a,b --only c' is ('a', 'b', 'c'); None if the option is not given."""
  names = tuple(name.strip() for value in values for name in value.split(",") if name.strip())
  return names if values else None


def _shapes(
  context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, tuple[int, ...]] | None:
  """'--input-shape name:1,128' is {'name': (1, 128)}; 'name:' is a scalar's. Names may hold colons."""
  shapes: dict[str, tuple[int, ...]] = {}
  for value in values:
    name, colon, sizes = value.rpartition(":")
    parts = [part.strip() for part in sizes.split(",")] if sizes.strip() else []
    if not colon or not name or not all(part.isascii() and part.isdecimal() and len(part) < 20 for part in parts):
      raise UsageError(f"--input-shape {value[:200]!r} is not NAME:SIZE,SIZE,..., such as input_ids:1,128")
    if name in shapes:
      raise UsageError(f"--input-shape gives two shapes for '{name}'")
    shapes[name] = tuple(int(part) for part in parts)
  return shapes or None


@dataclass(frozen=True)
class _Arguments:
  """What the command line says, an attribute for each argument and option of `command`."""

  model: str | None
  output: str | None
  verify: bool
  drop_guilty: bool
  keep_faster: bool | None
  tune: bool
  providers: tuple[str, ...] | None
  device: int | None
  input_shapes: dict[str, tuple[int, ...]] | None
  precision: str | None
  precision_io: bool
  precision_skip: tuple[str, ...] | None
  inputs: str | None
  rtol: float | None
  atol: float | None
  only: tuple[str, ...] | None
  skip: tuple[str, ...] | None
  layout: str
  list_passes: bool
  explain: bool
  dry_run: bool
  report_path: str | None
  profile: bool
  restore: bool
  debug: bool

  def check(self) -> None:
    """UsageError where options are missing or contradict each other."""
    if self.model is None:
      raise UsageError(f"no model is given: {PROGRAM} IN -o OUT")
    if self.profile:
      self._check_profile()
    if self.output is None and not self.dry_run and not self.profile:
      raise UsageError("no output is given; name it with -o OUT, or use --dry-run")
    if self.restore and (self.only or self.skip or self.input_shapes or self.tune or self.layout != "auto"):
      raise UsageError(
        "--restore runs no passes, so --only, --skip, --layout, --tune and --input-shape do not go with it"
      )
    if self.drop_guilty and (self.restore or not self.verify):
      raise UsageError("--drop-guilty is about the verification of passes, which --restore and --no-verify leave out")
    if self.keep_faster and (self.restore or not self.verify):
      raise UsageError("--keep-faster goes by the times of the verification, which --restore and --no-verify leave out")
    if self.restore and self.precision:
      raise UsageError("--restore converts nothing, so --precision does not go with it")
    if self.precision is None and (self.precision_io or self.precision_skip):
      raise UsageError("--precision-io and --precision-skip are about a conversion; add --precision fp16, say")
    for option, value in (
      ("--provider", self.providers),
      ("--device", self.device),
      ("--inputs", self.inputs),
      ("--rtol", self.rtol),
      ("--atol", self.atol),
    ):
      needed = (
        option == "--provider"  # which also says what will run the model
        or (self.profile and option == "--inputs")
        or (self.tune and option in ("--provider", "--device", "--inputs"))
        or (self.precision is not None and option == "--inputs")
      )
      if value is not None and not needed and (self.profile or not self.verify):
        left_out = "--profile" if self.profile else "--no-verify"
        raise UsageError(f"{option} is about the verification, which {left_out} leaves out")

  def keeps_faster(self) -> bool:
    """Whether what is slower is taken back: as said, else where the result is verified and a GPU runs it."""
    if self.keep_faster is not None:
      return self.keep_faster
    from .optimizer.options import Options

    return self.verify and Options(providers=self.providers).is_for_gpu()

  def _check_profile(self) -> None:
    """UsageError for what does not go with --profile."""
    if self.output is not None:
      raise UsageError("--profile writes no model, so -o does not go with it; --report OUT.html keeps what it shows")
    for option, given in (
      ("--restore", self.restore),
      ("--tune", self.tune),
      ("--drop-guilty", self.drop_guilty),
      ("--keep-faster", self.keep_faster),
    ):
      if given:
        raise UsageError(f"--profile changes no model, so {option} does not go with it")
    if any(name.lower() not in ("cpu", "cpuexecutionprovider") for name in self.providers or ()):
      raise UsageError(
        "--profile measures on the CPU alone: ONNX Runtime's profile holds the launches of a GPU's kernels, "
        "not the kernels; leave --provider out"
      )


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("model", required=False, metavar="IN")
@click.option("-o", "--output", metavar="OUT", help="Where the result goes. Replaced in one step, never IN itself.")
@click.option(
  "--verify/--no-verify", default=True, help="Run original and result in ONNX Runtime and compare (default)."
)
@click.option(
  "--drop-guilty",
  is_flag=True,
  help="Where outputs differ, leave out the pass that is to blame, say so and try again, instead of failing.",
)
@click.option(
  "--keep-faster/--no-keep-faster",
  default=None,
  help="Take back passes that make the verified result slower than the original here (default where a GPU runs it).",
)
@click.option("--tune", is_flag=True, help="Time each fused node on this machine's GPU and keep what is fastest.")
@click.option(
  "--provider",
  "providers",
  multiple=True,
  callback=_names,
  metavar="NAME",
  help="Optimize for, verify on (and tune on the first): cpu, cuda.",
)
@click.option(
  "--device",
  type=click.IntRange(min=0),
  metavar="N",
  help="The GPU to verify (and tune) on, by its number; the first by default.",
)
@click.option(
  "--input-shape", "input_shapes", multiple=True, callback=_shapes, metavar="NAME:1,128", help="Fix an input's shape."
)
@click.option(
  "--precision",
  type=click.Choice(["fp16", "bf16", "fp32", "tf32"]),
  help="Convert what floating operators compute in; what would overflow stays.",
)
@click.option("--precision-io", is_flag=True, help="Convert inputs and outputs too.")
@click.option(
  "--precision-skip", multiple=True, callback=_names, metavar="NODE|TYPE,...", help="Operators that keep their dtype."
)
@click.option("--inputs", metavar="DATA.npz", help="Verify (and tune) on these inputs besides generated ones.")
@click.option("--rtol", type=click.FloatRange(min=0), help="Relative tolerance; the dtype's own by default.")
@click.option("--atol", type=click.FloatRange(min=0), help="Absolute tolerance; the dtype's own, scaled, by default.")
@click.option("--only", multiple=True, callback=_names, metavar="PASS,...", help="Run these passes only.")
@click.option("--skip", multiple=True, callback=_names, metavar="PASS,...", help="Leave these passes out.")
@click.option(
  "--layout",
  default="auto",
  metavar="auto|nchw|nhwc",
  help="Of convolutions: channels last where that is faster (auto), never, or always.",
)
@click.option("--list-passes", is_flag=True, help="Show the passes in their order and stop.")
@click.option("--explain", is_flag=True, help="Show what was nearly rewritten, and why it was not.")
@click.option("--dry-run", is_flag=True, help="Do everything but write OUT.")
@click.option("--report", "report_path", metavar="OUT.html|OUT.json", help="Write the report as one page, or as JSON.")
@click.option(
  "--profile", is_flag=True, help="Rewrite nothing: show where IN spends time here, and which of it could be fused."
)
@click.option("--restore", is_flag=True, help="Go back: replace ortplugin's operators by standard ONNX.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.version_option(__version__, prog_name=PROGRAM)
def command(**given: Any) -> None:
  """Makes the ONNX model IN faster inside ONNX Runtime and writes it to OUT.

  Operators are fused into those of the library that `ortplugin.register` makes known to a session. The result is
  compared with the original before it is written; if outputs differ, nothing is written and the guilty rewrite is
  named, or, with --drop-guilty, its pass is left out. Passes that make it slower on a GPU
  are left out, too, if need be all. The exit status is 0 on success, 1 on an error, 2 on a mistake in the command.
  """
  arguments = _Arguments(**given)
  if arguments.list_passes:
    _print_passes(_console(sys.stdout))
    return
  arguments.check()
  _run(arguments)


def _run(arguments: _Arguments) -> None:
  from .progress import shown_progress

  assert arguments.model is not None
  with shown_progress() as progress:
    report, failure = _work(arguments, arguments.model, progress)
  from .render import print_report

  out = _console(sys.stdout)
  print_report(report, out, arguments.explain)
  if failure is not None:
    raise failure
  if arguments.profile:
    out.print("Profiled; no model was written.")
  elif report.output is not None:
    out.print(f"Wrote {printable(report.output)}", markup=False)
  else:
    out.print("Dry run: nothing was written.")


def _work(
  arguments: _Arguments, model: str, progress: Callable[[str], None]
) -> tuple[Report, VerificationError | None]:
  """Reads, makes, and writes what is to be written; the report, and the error of a verification that failed."""
  from .model.storage import check_output, load, save_model, write_text

  output, report_path = arguments.output, arguments.report_path
  for path in (output, report_path):
    if path is not None:
      check_output(path, [Path(model)])
  if output is not None and report_path is not None and os.path.realpath(output) == os.path.realpath(report_path):
    raise UsageError("--output and --report name the same file")
  progress(f"loading {model}")
  start = time.perf_counter()
  stored = load(model)
  loaded = time.perf_counter() - start
  for path in (output, report_path):
    if path is not None:
      check_output(path, stored.files)
  failure: VerificationError | None = None
  try:
    make = _profile if arguments.profile else _restore if arguments.restore else _optimize
    result, report = make(stored, arguments, progress)
  except VerificationError as error:
    if error.report is None:
      raise
    failure, report = error, error.report
  report.seconds["load"] = loaded
  if failure is None and output is not None and not arguments.dry_run:
    progress(f"writing {output}")
    start = time.perf_counter()
    save_model(result, output, protect=stored.files, external=True if stored.data_files else None)
    report.seconds["write"] = time.perf_counter() - start
    report.output = output
  if report_path is not None:
    progress(f"writing {report_path}")
    write_text(_written(report, report_path), report_path, protect=stored.files)
  return report, failure


def _optimize(stored: StoredModel, arguments: _Arguments, progress: Callable[[str], None]) -> tuple[Any, Report]:
  from .optimizer import optimize

  return optimize(
    stored,
    only=arguments.only,
    skip=arguments.skip,
    layout=arguments.layout,
    input_shapes=arguments.input_shapes,
    verify=arguments.verify,
    drop_guilty=arguments.drop_guilty,
    keep_faster=arguments.keeps_faster(),
    tune=arguments.tune,
    profile=arguments.report_path is not None,
    providers=arguments.providers,
    device_id=arguments.device or 0,
    inputs=arguments.inputs,
    rtol=arguments.rtol,
    atol=arguments.atol,
    precision=arguments.precision,
    precision_io=arguments.precision_io,
    precision_skip=arguments.precision_skip,
    progress=progress,
  )


def _profile(stored: StoredModel, arguments: _Arguments, progress: Callable[[str], None]) -> tuple[Any, Report]:
  """The model as it is, with a report of where it spends its time and of what would be rewritten."""
  from .check.verify import Verifier

  _, report = _optimize(stored, replace(arguments, verify=False), progress)
  report.action = "profile"
  with closing(
      Verifier(stored.proto, path=stored.path, providers=["cpu"], inputs=arguments.inputs,
               input_shapes=arguments.input_shapes, progress=progress)
  ) as verifier:  # fmt: skip
    report.profile = verifier.profile()
  if report.profile.skipped:
    raise VerificationError(report.profile.skipped)
  return stored.proto, report


def _written(report: Report, path: str) -> str:
  """The report as the name of its file says."""
  return report.to_html() if path.lower().endswith((".html", ".htm")) else report.to_json()


def _restore(stored: StoredModel, arguments: _Arguments, progress: Callable[[str], None]) -> tuple[Any, Report]:
  """The model in standard ONNX, with a report whose changes are the nodes replaced."""
  from .check.verify import Tolerance, Verifier
  from .graph.domains import DOMAIN
  from .graph.messages import walk_nodes
  from .model.restore import restore
  from .passes.base import Change
  from .report import Report, count_operators, node_labels, weigh

  progress("restoring")
  start = time.perf_counter()
  result = restore(stored.proto)
  report = Report("restore", str(stored.path), before=count_operators(stored.proto), after=count_operators(result))
  report.labels_before, report.labels_after = node_labels(stored.proto), node_labels(result)
  report.weights_before, report.weights_after = weigh(stored.proto), weigh(result)
  fused = [node for node in walk_nodes(stored.proto) if node.domain == DOMAIN]
  report.changes = [Change("restore", (f"{node.name} ({node.op_type})",), "") for node in fused]
  report.seconds["restore"] = time.perf_counter() - start
  if arguments.verify and fused:
    start = time.perf_counter()
    with closing(
      Verifier(
        stored.proto,
        path=stored.path,
        providers=arguments.providers,
        device_id=arguments.device or 0,
        inputs=arguments.inputs,
        tolerance=Tolerance(arguments.rtol, arguments.atol),
        progress=progress,
      )
    ) as verifier:
      report.verification = verifier.verify(result)
    report.seconds["verify"] = time.perf_counter() - start
    if not report.passed:
      error = VerificationError("the restored model's outputs differ from the optimized one's; nothing was written")
      error.report = report
      raise error
  return result, report


def _print_passes(out: Console) -> None:
  from rich.table import Table

  from .optimizer import BESIDES, PIPELINE

  table = Table("pass", "what it does", title="Passes, in order", title_justify="left")
  for step in PIPELINE:
    table.add_row(step.name, step.summary)
  for name, summary in BESIDES.items():
    table.add_row(name, f"{summary}; can be skipped only")
  out.print(table)


def _console(stream: Any) -> Console:
  return Console(file=stream, highlight=False, width=None if stream.isatty() else _PIPE_WIDTH, soft_wrap=False)


def main(arguments: Sequence[str] | None = None) -> int:
  """Runs the command; returns its exit status: 0, 1 for an error, 2 for a mistaken command, 130 if interrupted."""
  arguments = list(sys.argv[1:] if arguments is None else arguments)
  debug = "--debug" in arguments
  try:
    command.main(args=arguments, prog_name=PROGRAM, standalone_mode=False)
    sys.stdout.flush()
    return 0
  except click.exceptions.Exit as stop:  # --help and --version
    return int(stop.exit_code)
  except (click.Abort, KeyboardInterrupt):
    return _fail("interrupted; nothing was written", 130, debug)
  except click.ClickException as error:
    return _fail(f"{one_line(error.format_message())} ({PROGRAM} --help shows the options)", 2, debug)
  except UsageError as error:
    return _fail(one_line(error), 2, debug)
  except OrtPluginError as error:
    return _fail(one_line(error), 1, debug)
  except BrokenPipeError:  # the reader of our output went away
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1
  except MemoryError:
    return _fail("this machine has not enough memory for the model; nothing was written", 1, debug)
  except Exception as error:  # the last resort: a defect, shown in one line like the rest
    kind = "" if type(error).__name__ == "PassError" else f" ({type(error).__name__})"
    return _fail(f"internal error{kind}: {one_line(error)}; --debug shows where, please report it", 1, debug)


def _fail(message: str, status: int, debug: bool) -> int:
  if debug:
    for line in traceback.format_exc().splitlines():
      print(printable(line), file=sys.stderr)
  print(f"{PROGRAM}: {message}", file=sys.stderr)
  return status


if __name__ == "__main__":
  sys.exit(main())
