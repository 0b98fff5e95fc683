"""What to try next, from the report's data alone."""

from collections import Counter
from collections.abc import Iterator
from typing import Any


def advise(data: dict[str, Any]) -> Iterator[tuple[str, str]]:
  """(option, why): what the command could be told."""
  if data["guilty"] is not None:
    yield "--drop-guilty", f"The rewrite '{data['guilty']['rewrite']}' changes outputs; this leaves it out."
  misses = [miss for miss in data["near_misses"] if miss["rewrite"] != "precision"]
  unknown = [miss for miss in misses if "--input-shape" in miss["reason"] or "unknown" in miss["reason"]]
  if unknown:
    yield "--input-shape NAME:SIZE,...", f"{_missed(unknown)}."
  others = [miss for miss in misses if miss not in unknown]
  for rewrite, _ in Counter(miss["rewrite"] for miss in others).most_common(1):
    yield "change the model", f"{rewrite}: {_missed([miss for miss in others if miss['rewrite'] == rewrite])}."
  floats = (data["memory"]["before"] or {"dtypes": {}})["dtypes"].get("float32")
  if data["precision"] is None and data["action"] != "restore" and floats:
    what = f"{size(floats)} of weights are float32; on a GPU, attention and matrix products are fused in 16 bits."
    yield "--precision fp16", f"{what} --precision tf32 keeps float32 and lets products round."
  yield from _checks(data, [result for result in data["verification"] if not result["skipped"]])
  line = (data["profile"] or {}).get("original") or {"taken_share": 0, "operators": []}
  if data["action"] == "profile" and line["taken_share"]:
    yield "-o OUT", f"{line['taken_share']:.0%} of the time lies in nodes that would be fused."
  for each in line["operators"]:
    if each["share"] - each["taken_share"] > 0.1:
      share = f"{each['share'] - each['taken_share']:.0%} of the original's time on this CPU"
      yield "--explain", f"{share} is in {each['operator']} that was left to ONNX Runtime."


def _checks(data: dict[str, Any], results: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
  if data["action"] == "optimize" and data["changes"] and not results:
    yield "--verify", "Outputs of original and result were not compared."
  for time in (time for result in results for time in result["timings"] if time["loses"]):
    times = f"{time['original_ms']:.3g} ms became {time['optimized_ms']:.3g} ms"
    yield "--keep-faster", f"The result is slower: {times}. This takes back what makes it so."
  if results and all(case["name"].startswith("generated") for result in results for case in result["inputs"]):
    yield "--inputs data.npz", "Outputs were compared on generated inputs only."
  if any(result["provider"].startswith("CUDA") for result in results):
    if not data["tuning"]:
      yield "--tune", "Times each fused node on this GPU and keeps what is fastest."
  elif results:
    yield "--provider cuda", "Times are of a CPU; the library's kernels are made for NVIDIA GPUs."


def _missed(misses: list[dict[str, str]]) -> str:
  return f"{len(misses)} not rewritten, such as {misses[0]['node']}: {misses[0]['reason']}"


def size(count: int) -> str:
  """'1.5 MB'."""
  value, units = float(count), ["bytes", "kB", "MB", "GB"]
  while value >= 1000 and len(units) > 1:
    value, units = value / 1000, units[1:]
  return f"{count} bytes" if units[0] == "bytes" else f"{value:.1f} {units[0]}"
