"""A report as text: tables for a terminal."""

from typing import Any

from rich.console import Console
from rich.markup import escape as _escape_markup
from rich.table import Table

from .errors import printable
from .report import GRAPH, PLAIN, ProviderVerification, Report, Timing

_SLOWEST = 15  # nodes that a profile shows


def escape(text: str) -> str:
  """Text of the model or of an error: neither rich nor the terminal takes any of it for an instruction."""
  return _escape_markup(printable(text))


def print_report(report: Report, console: Console, explain: bool = False) -> None:
  """Prints operators before and after, rewrites, near misses (if `explain`), errors and times."""
  profiled = report.action == "profile"
  if profiled:
    _print_profile(report, console)
  else:
    console.print(_operators(report))
  if report.rewrites:
    table = Table(title="Rewrites that would apply" if profiled else "Rewrites", title_justify="left")
    table.add_column("rewrite")
    table.add_column("times", justify="right")
    for name, count in report.rewrites.items():
      table.add_row(escape(name), str(count))
    console.print(table)
  if report.precision is not None and report.precision != "tf32":  # which shows among the rewrites
    console.print(_precision(report))
  if explain:
    _print_near_misses(report, console)
  if report.tuning:
    console.print(_tuning(report))
  if report.opset is not None:
    console.print(f"Upgraded from opset {report.opset[0]} to {report.opset[1]}.")
  if report.functions:
    names = ", ".join(f"{escape(name)} ({count})" for name, count in report.functions.items())
    console.print(f"Local functions whose calls became their bodies: {names}.")
  for dropped in report.dropped:
    console.print(f"[bold yellow]Left out the pass '{escape(dropped.rewrite)}':[/] {escape(dropped.reason)}")
  for taken in report.taken_back:
    times = "; ".join(_timed(taken.provider, timing) for timing in taken.timings)
    names = ", ".join(f"'{escape(name)}'" for name in taken.rewrites)
    console.print(f"[bold yellow]Took back what made it slower, the passes {names}:[/] with them, {times}")
  for result in report.verification:
    _print_verification(result, console)
  if report.action == "restore":
    if not report.changes:
      console.print("[bold yellow]Nothing to restore: no operator of ortplugin; the model is as it was.[/]")
  elif profiled:
    pass  # it has said so
  elif report.taken_back and not report.changes and not report.tuned:
    console.print("[bold yellow]The original stays: no rewrite of it was as fast as it is; 0 rewrites.[/]")
  elif not report.changes and not report.tuned:
    console.print("[bold yellow]Nothing to rewrite: 0 rewrites; the model is as it was.[/]")
  elif not report.fused and not report.tuned:
    console.print("[bold yellow]Nothing was fused; the graph was only simplified.[/]")
  nearly = len(report.near_misses) - len(report.kept)
  if not report.fused and not explain and nearly:
    console.print(f"{nearly} places were nearly rewritten; --explain says why they were not.")
  steps = ", ".join(f"{step} {seconds:.2f} s" for step, seconds in report.seconds.items())
  console.print(f"[dim]{steps}[/]")


def _print_profile(report: Report, console: Console) -> None:
  """Where the time goes, by operator and by node, and which of it lies in nodes that would be fused."""
  profile = report.to_dict()["profile"]
  line = profile["original"]
  table = Table(title=f"Time per operator on this CPU, inputs {escape(profile['inputs'])}", title_justify="left")
  slowest = Table(title="Slowest nodes", title_justify="left")
  for header in ("operator", "nodes", "ms", "share", "we could take"):
    table.add_column(header, justify="left" if header == "operator" else "right")
  for header in ("node", "operator", "ms", "share", "taken by"):
    slowest.add_column(header, justify="right" if header in ("ms", "share") else "left")
  for row in line["operators"]:
    taken = f"{row['taken_share']:.1%}" if row["taken_share"] else ""
    table.add_row(_operator(row), str(row["count"]), f"{row['ms']:.3f}", f"{row['share']:.1%}", taken)
  for row in line["nodes"][:_SLOWEST]:
    times = f"{row['ms']:.3f}", f"{row['share']:.1%}"
    slowest.add_row(escape(row["node"]), _operator(row), *times, escape(row["taken_by"] or ""))
  console.print(table)
  console.print(slowest)
  share = f"{line['taken_share']:.0%} of the time of its nodes lies in those that ortplugin would take"
  console.print(f"A run takes {line['run_ms']:.3f} ms, the median of {line['runs']}; {share}.")


def _operator(row: dict[str, Any]) -> str:
  return escape(row["operator"].removeprefix("ai.onnx::"))


def _precision(report: Report) -> str:
  """How many operators were converted, and which types of them were not."""
  kept: dict[str, int] = {}
  for miss in report.kept:
    kind = miss.node.rpartition("(")[2].rstrip(")")
    kept[kind] = kept.get(kind, 0) + 1
  text = f"Precision {report.precision}: {report.converted} converted"
  if kept:
    kinds = ", ".join(f"{count} {escape(kind)}" for kind, count in kept.items())
    text += f", {len(report.kept)} kept their dtype ({kinds}); --explain says why"
  return text + "."


def _operators(report: Report) -> Table:
  table = Table(title="Operators", title_justify="left")
  table.add_column("operator")
  for header in ("before", "after", "change"):
    table.add_column(header, justify="right")
  for name in sorted({*report.before, *report.after}):
    before, after = report.before.get(name, 0), report.after.get(name, 0)
    style = "" if before == after else "green" if name.startswith("ortplugin::") or after < before else "yellow"
    table.add_row(
      escape(name.removeprefix("ai.onnx::")),
      str(before),
      str(after),
      f"{after - before:+d}" if before != after else "",
      style=style,
    )
  before, after = sum(report.before.values()), sum(report.after.values())
  table.add_section()
  table.add_row("all", str(before), str(after), f"{after - before:+d}" if before != after else "", style="bold")
  return table


def _tuning(report: Report) -> Table:
  """Nodes that were tuned, alike ones in one row."""
  table = Table("node", "as the passes made it", "chosen", "tried", title="Tuning, microseconds", title_justify="left")
  rows: dict[tuple[str, str, str], list[str]] = {}
  for tuned in report.tuning:
    tried = ", ".join(
      f"{name} {'wrong' if name in tuned.wrong else 'not measurable' if time is None else f'{time:.1f}'}"
      for name, time in tuned.microseconds.items()
      if name
    )
    before = tuned.microseconds.get("")
    row = ("not measurable" if before is None else f"{before:.1f}", tuned.choice or "unchanged", tried)
    rows.setdefault(row, []).append(tuned.node)
  for row, nodes in rows.items():
    more = f" and {len(nodes) - 1} alike" if len(nodes) > 1 else ""
    table.add_row(escape(nodes[0]) + more, *(escape(text) for text in row))
  return table


def _print_near_misses(report: Report, console: Console) -> None:
  if not report.near_misses:
    console.print("No near misses: nothing resembled a rewrite without being rewritten.")
    return
  table = Table("rewrite", "node", "why it was not rewritten", title="Near misses", title_justify="left")
  for miss in report.near_misses:
    table.add_row(escape(miss.rewrite), escape(miss.node), escape(miss.reason))
  console.print(table)


def _print_verification(result: ProviderVerification, console: Console) -> None:
  provider = result.provider.removesuffix("ExecutionProvider")
  if result.skipped:
    console.print(f"[yellow]{escape(provider)}: not compared, {escape(result.skipped)}[/]")
    return
  table = Table(title=f"Original against optimized on {escape(provider)}", title_justify="left")
  has_graphs = any(comparison.mode != PLAIN for comparison in result.inputs)
  for header in ("inputs", *(["run"] if has_graphs else []), "output"):
    table.add_column(header)
  for header in ("largest error", "largest relative error"):
    table.add_column(header, justify="right")
  table.add_column("")
  for comparison in result.inputs:
    for output in comparison.outputs:
      verdict = "[green]agrees[/]" if output.passed else "[bold red]differs[/]"
      table.add_row(
        escape(comparison.name),
        *([escape(comparison.mode)] if has_graphs else []),
        escape(output.name),
        _number(output.max_abs_error),
        _number(output.max_rel_error),
        verdict + (f": {escape(output.message)}" if output.message else ""),
      )
  console.print(table)
  if result.replays:
    console.print(f"{escape(provider)}: {result.replays} replays of CUDA graphs were compared")
  if result.graph_skipped:
    console.print(f"[yellow]{escape(provider)}: CUDA graphs were not compared, {escape(result.graph_skipped)}[/]")
  for note in result.notes:
    console.print(f"[bold yellow]{escape(provider)}: {escape(note)}[/]")
  for timing in result.timings:
    line = _timed(result.provider, timing)
    console.print(f"[yellow]{line}[/]" if timing.loses else line)


def _timed(provider: str, timing: Timing) -> str:
  """'CUDA, in a CUDA graph: original 2.000 ms, ...'."""
  mode = ", in a CUDA graph" if timing.mode == GRAPH else ""
  return f"{escape(provider.removesuffix('ExecutionProvider'))}{mode}: {timing}"


def _number(value: float | None) -> str:
  return "" if value is None else f"{value:.2e}"
