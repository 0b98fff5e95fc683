"""What to try next, from the report's data alone."""

from __future__ import annotations

from collections import Counter
from typing import Any

_LARGE = 0.1  # share of the time that is worth a line
_SLOWER = 1.05  # times the original's time that are no noise


def advise(data: dict[str, Any]) -> list[dict[str, str]]:
    """[{"option", "why"}]: what the command could be told, the most useful first."""
    found = [*_failed(data), *_near_misses(data), *_precision(data), *_checks(data), *_time(data)]
    return [{"option": option, "why": why} for option, why in found]


def _failed(data: dict[str, Any]) -> list[tuple[str, str]]:
    guilty = data["guilty"]
    if guilty is None:
        return []
    return [("--drop-guilty", f"The rewrite '{guilty['rewrite']}' changes outputs; this leaves it out and goes on.")]


def _near_misses(data: dict[str, Any]) -> list[tuple[str, str]]:
    found = []
    misses = [miss for miss in data["near_misses"] if miss["rewrite"] != "precision"]
    unknown = [miss for miss in misses if "--input-shape" in miss["reason"] or "unknown" in miss["reason"]]
    if unknown:
        why = f"{_places(len(unknown))} not rewritten for want of a shape, such as {unknown[0]['node']}"
        found.append(("--input-shape NAME:SIZE,...", f"{why}: {unknown[0]['reason']}."))
    for rewrite, count in Counter(miss["rewrite"] for miss in misses if miss not in unknown).most_common(1):
        first = next(miss for miss in misses if miss["rewrite"] == rewrite and miss not in unknown)
        why = f"{_places(count)} not rewritten by '{rewrite}', such as {first['node']}: {first['reason']}."
        found.append(("change the model", why))
    return found


def _precision(data: dict[str, Any]) -> list[tuple[str, str]]:
    weights = data["memory"]["before"]
    floats = 0 if weights is None else weights["dtypes"].get("float32", 0)
    if data["action"] == "restore" or data["precision"] is not None or not floats:
        return []
    why = (
        f"{size(floats)} of weights are float32. On a GPU attention and matrix products are fused in fp16 "
        "and bf16; what would overflow stays. --precision tf32 keeps float32 and lets products round."
    )
    return [("--precision fp16", why)]


def _checks(data: dict[str, Any]) -> list[tuple[str, str]]:
    found = []
    results = [result for result in data["verification"] if not result["skipped"]]
    if data["action"] == "optimize" and data["changes"] and not results:
        found.append(("--verify", "Outputs of original and result were not compared."))
    if results and all(case["name"].startswith("generated") for result in results for case in result["inputs"]):
        found.append(("--inputs data.npz", "Outputs were compared on generated inputs only; add some of yours."))
    on_gpu = any(result["provider"].startswith("CUDA") for result in results)
    if results and not on_gpu:
        found.append(("--provider cuda", "Times are of a CPU; the library's kernels are made for NVIDIA GPUs."))
    if on_gpu and not data["tuning"]:
        found.append(("--tune", "Times each fused node on this GPU and keeps what is fastest."))
    return found


def _time(data: dict[str, Any]) -> list[tuple[str, str]]:
    timeline = (data["profile"] or {}).get("original")
    found = []
    for each in data["verification"]:
        if each["original_ms"] and each["optimized_ms"] and each["optimized_ms"] > _SLOWER * each["original_ms"]:
            what = f"{each['original_ms']:.3g} ms became {each['optimized_ms']:.3g} ms on {each['provider']}"
            found.append(("keep the original", f"The result is slower here: {what}. --skip PASS leaves a rewrite out."))
    if data["action"] == "profile" and timeline is not None and timeline["taken_share"]:
        found.append(("-o OUT", f"{timeline['taken_share']:.0%} of the time lies in nodes that would be fused."))
    left = [each for each in timeline["operators"] if each["share"] - each["taken_share"] > _LARGE] if timeline else []
    for each in left[:3]:
        why = f"{each['share'] - each['taken_share']:.0%} of the original's time on this CPU is in {each['operator']} "
        found.append(("--explain", why + "nodes that were left to ONNX Runtime; this says what nearly fitted."))
    return found


def size(count: int) -> str:
    """'1.5 MB'."""
    value, units = float(count), ["bytes", "kB", "MB", "GB"]
    while value >= 1000 and len(units) > 1:
        value, units = value / 1000, units[1:]
    return f"{count} bytes" if units[0] == "bytes" else f"{value:.1f} {units[0]}"


def _places(count: int) -> str:
    return f"{count} place was" if count == 1 else f"{count} places were"
