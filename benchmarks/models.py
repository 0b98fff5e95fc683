"""Whole convolutional networks in float16: ONNX Runtime, PyTorch's compiler and ortplugin, in one run.

    python benchmarks/models.py                                  # all of them
    python benchmarks/models.py --models resnet50:8,dcgan:64     # some; their rows replace earlier ones

Every contender computes the same network, with the same weights rounded to float16, on the same image. The ONNX model
is PyTorch's export of the float16 module. Columns:

    default    ONNX Runtime as it comes: one synchronous Run with inputs and outputs on the GPU, by the host's clock
    nchw, nhwc ONNX Runtime with its CUDA graph, and with prefer_nhwc
    ours       the optimized model, with ONNX Runtime's CUDA graph
    tuned      the same, optimized with --tune
    compile    torch.compile in its default mode under a CUDA graph; contiguous and channels last
    COLUMN     with --against COLUMN=LIBRARY: the optimized model run by another build of the library

But for `default`, a time is the GPU's from the first to the last of many replays, divided by their number. Contenders
take turns. The error is the largest difference from the float32 network, over its output's largest magnitude.
"""

from __future__ import annotations

import copy
import gc
import json
import statistics
import sys
import tempfile
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import timing

# The package `models` lies beside this folder, and this file must not be taken for it. Appended, so that an installed
# ortplugin comes before the source folder.
HERE = Path(__file__).resolve().parent
sys.path[:] = [*(entry for entry in sys.path if Path(entry or ".").resolve() != HERE), str(HERE.parent)]

import ortplugin  # noqa: E402
from models import networks  # noqa: E402
from ortplugin.graph.messages import walk_nodes  # noqa: E402

CASES = ("resnet50:1", "resnet50:8", "resnet50:64", "densenet121:8", "efficientnet_b0:8", "mobilenet_v3_large:1",
         "convnext_tiny:8", "fcn_resnet50:4", "dcgan:64", "unet:8", "unet_up:8")  # fmt: skip
TITLES = {
    "resnet50": "ResNet-50", "densenet121": "DenseNet-121", "efficientnet_b0": "EfficientNet-B0",
    "mobilenet_v3_large": "MobileNet-v3 large", "convnext_tiny": "ConvNeXt-tiny", "fcn_resnet50": "FCN-ResNet50",
    "dcgan": "DCGAN generator", "unet": "U-Net 256 x 256", "unet_up": "U-Net with up-convolutions",
}  # fmt: skip
REPLAYS = 20
ROUNDS = 15
WAIT_CYCLES = 4_000_000  # two milliseconds, in which the host queues the replays

Replay = Callable[[], Any]


def parse_case(text: str) -> tuple[str, int]:
    """'resnet50:8' is ('resnet50', 8)."""
    name, _, batch = text.partition(":")
    if name not in networks.NETWORKS or not batch.isdecimal() or not int(batch):
        raise SystemExit(f"'{text}' is not NAME:BATCH with one of {', '.join(networks.NETWORKS)}")
    return name, int(batch)


# ------------------------------------------------------------------------------------------------------- contenders


def session_replay(
    model: bytes, image: Any, stream: Any, *, library: str | None, graph: bool = True, nhwc: bool = False
) -> tuple[Replay, Any]:
    """A function that runs the model on the stream without waiting for it, and the array that its output goes to.

    `library`: the path of the libortplugin.so to register.
    """
    import cupy
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if library is not None:
        options.register_custom_ops_library(library)
    gpu = cupy.cuda.Device().id
    provider = {"user_compute_stream": str(stream.ptr), "enable_cuda_graph": str(int(graph)),
                "prefer_nhwc": str(int(nhwc)), "device_id": str(gpu)}  # fmt: skip
    session = onnxruntime.InferenceSession(model, options, providers=[("CUDAExecutionProvider", provider)])
    (output,) = session.get_outputs()
    result = cupy.empty(output.shape, image.dtype)
    binding = session.io_binding()
    binding.bind_input(networks.INPUT, "cuda", gpu, image.dtype, image.shape, image.data.ptr)
    binding.bind_output(output.name, "cuda", gpu, result.dtype, result.shape, result.data.ptr)
    run_options = onnxruntime.RunOptions()
    run_options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    for _ in range(3):  # compiles, allocates, captures
        session.run_with_iobinding(binding)
        stream.synchronize()
    return lambda: session.run_with_iobinding(binding, run_options), result


def torch_replay(model: Any, image: Any, stream: Any, *, channels_last: bool) -> tuple[Replay, Any]:
    """A function that replays the compiled module's CUDA graph on the stream, and the tensor of its output."""
    import torch

    model = copy.deepcopy(model)  # another layout would move its parameters away from under an earlier graph
    if channels_last:
        model, image = model.to(memory_format=torch.channels_last), image.to(memory_format=torch.channels_last)
    else:
        model = model.to(memory_format=torch.contiguous_format)
    torch._dynamo.reset()
    compiled = torch.compile(model, dynamic=False)
    outer = torch.cuda.ExternalStream(stream.ptr)
    with torch.no_grad(), torch.cuda.stream(outer):
        for _ in range(3):
            compiled(image)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=outer):
            result = compiled(image)

    def replay(_kept: Any = (image, compiled)) -> None:
        with torch.cuda.stream(outer):
            graph.replay()

    return replay, result


def gpu_microseconds(replays: Mapping[str, Replay], stream: Any, rounds: int = ROUNDS) -> dict[str, float]:
    """The GPU's time of one replay of each contender: medians of rounds in which they take turns."""
    import cupy

    wait = cupy.RawKernel(timing._WAIT, "wait")
    start, end = cupy.cuda.Event(), cupy.cuda.Event()

    def once(replay: Replay) -> float:
        with stream:
            wait((1,), (1,), (np.int64(WAIT_CYCLES),))
            start.record()
            for _ in range(REPLAYS):
                replay()
            end.record()
            end.synchronize()
        return float(cupy.cuda.get_elapsed_time(start, end)) * 1e3 / REPLAYS

    times: dict[str, list[float]] = {name: [] for name in replays}
    for number in range(rounds + 2):
        for name, replay in replays.items():
            took = once(replay)
            if number >= 2:
                times[name].append(took)
    return {name: statistics.median(values) for name, values in times.items()}


def host_microseconds(replay: Replay, stream: Any) -> float:
    """The host's time of one run that is waited for."""
    took = []
    for _ in range(50):
        begun = time.perf_counter()
        replay()
        stream.synchronize()
        took.append((time.perf_counter() - begun) * 1e6)
    return statistics.median(took[10:])


# ----------------------------------------------------------------------------------------------------------- one row


def operators(model: onnx.ModelProto) -> dict[str, int]:
    """Nodes by type, those of other domains than the standard one with theirs."""
    return dict(Counter(f"{n.domain}::{n.op_type}".removeprefix("::") for n in walk_nodes(model)).most_common())


def measure(
    case: str, *, compiled: bool, tune: bool, profile: Path | None, against: Mapping[str, str]
) -> dict[str, Any]:
    """All contenders of one model: microseconds and errors. `against`: column to the path of another libortplugin.so,
    which runs the same optimized model."""
    import cupy
    import torch

    name, batch = parse_case(case)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    half = networks.module(name, "cuda").half()
    tensor = torch.randn(batch, *networks.NETWORKS[name].shape, device="cuda").half()
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        path = Path(folder) / "model.onnx"
        networks.export(half, tensor, path)
        original = onnx.load(path)
        eager = half(tensor)
        expected = half.float()(tensor.float())
        half = half.half()
    model = original.SerializeToString()
    begun = time.perf_counter()
    optimized, report = ortplugin.optimize(original)
    seconds = {"optimize": time.perf_counter() - begun}
    variants = {"ours": optimized}
    image = cupy.from_dlpack(tensor.contiguous())
    if tune:
        begun = time.perf_counter()
        feeds = {networks.INPUT: cupy.asnumpy(image)}
        variants["tuned"], _ = ortplugin.optimize(original, tune=True, providers=["cuda"], inputs=feeds)
        seconds["tune"] = time.perf_counter() - begun

    stream = cupy.cuda.Stream(non_blocking=True)
    replays: dict[str, Replay] = {}
    results: dict[str, Any] = {"torch": eager}
    makers: dict[str, Callable[[], tuple[Replay, Any]]] = {
        "nchw": lambda: session_replay(model, image, stream, library=None),
        "nhwc": lambda: session_replay(model, image, stream, library=None, nhwc=True),
    }
    libraries = {**dict.fromkeys(variants, ortplugin.library_path()), **against}
    for key, library in libraries.items():
        serialized = variants.get(key, optimized).SerializeToString()
        makers[key] = lambda serialized=serialized, library=library: session_replay(
            serialized, image, stream, library=library
        )
    if compiled:
        makers["compile"] = lambda: torch_replay(half, tensor, stream, channels_last=False)
        makers["compile_last"] = lambda: torch_replay(half, tensor, stream, channels_last=True)
    failures: dict[str, str] = {}
    for key, make in makers.items():
        begun = time.perf_counter()
        try:
            replays[key], results[key] = make()
        except Exception as error:  # one that does not run must not hide the others
            failures[key] = f"{type(error).__name__}: {error}"[:500]
            print(f"  {key}: {failures[key]}", flush=True)
            continue
        seconds[key] = time.perf_counter() - begun
    default, _ = session_replay(model, image, stream, library=None, graph=False)
    times = {"default": host_microseconds(default, stream), **gpu_microseconds(replays, stream)}
    stream.synchronize()
    scale = float(expected.abs().max())
    errors = {
        key: float((torch.as_tensor(value, device="cuda").float() - expected).abs().max()) / scale
        for key, value in results.items()
    }
    del replays, default, results  # their sessions' memory
    gc.collect()
    graphs = {}
    (output,) = original.graph.output
    feeds, wanted = {networks.INPUT: cupy.asnumpy(image)}, {output.name: expected.cpu().numpy()}
    for key, variant in variants.items():
        graphs[key] = timing.replayed_outputs(variant.SerializeToString(), feeds, wanted, plugin=True)
        problem = graphs[key].get("refused") or graphs[key]["wrong"]
        if problem:
            failures[f"{key}, replayed"] = problem
            print(f"  {key}, replayed: {problem}", flush=True)
    if profile is not None:
        write_profile(variants[list(variants)[-1]].SerializeToString(), image, profile / f"{name}_{batch}.json")
    return {
        "case": case,
        "microseconds": {key: round(value, 1) for key, value in times.items()},
        "errors": errors,
        "graphs": graphs,
        "operators": operators(optimized),
        "rewrites": report.rewrites,
        "seconds": {key: round(value, 1) for key, value in seconds.items()},
        "failures": failures,
    }


def write_profile(model: bytes, image: Any, path: Path) -> None:
    """What each node of the optimized model costs: kernel times of the CUDA graph's kernels, by CUPTI through PyTorch.

    Kernels of one run without a graph, in order, with the GPU's microseconds of each (the median of several runs).
    """
    import cupy
    from torch.profiler import ProfilerActivity, profile

    stream = cupy.cuda.Stream(non_blocking=True)
    replay, _ = session_replay(model, image, stream, library=ortplugin.library_path(), graph=False)
    runs = 5
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        for _ in range(runs):
            replay()
            stream.synchronize()
    kernels = sorted(
        (event for event in recorded.events() if event.device_type.name == "CUDA"), key=lambda e: e.time_range.start
    )
    count = len(kernels) // runs
    rows = []
    for index in range(count):
        same = [kernels[index + count * number] for number in range(runs)]
        rows.append(
            {"kernel": same[0].name, "us": round(statistics.median(e.time_range.elapsed_us() for e in same), 2)}
        )
    total = sum(row["us"] for row in rows)
    nodes = [
        {
            "name": n.name,
            "op": n.op_type,
            "output": n.output[0],
            "program": _text(n, "program"),
            "layout": _text(n, "layout"),
        }
        for n in onnx.load_from_string(model).graph.node
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"kernels": rows, "sum": round(total, 1), "nodes": nodes}, indent=0) + "\n")


def _text(node: onnx.NodeProto, name: str) -> str:
    return next((attribute.s.decode() for attribute in node.attribute if attribute.name == name), "")


# -------------------------------------------------------------------------------------------------------- the record


def best(times: Mapping[str, float], *columns: str) -> float | None:
    """The smallest of these columns that were measured."""
    return min((times[column] for column in columns if column in times), default=None)


def table(record: Mapping[str, Any]) -> str:
    """The record as a Markdown table."""
    is_tuned = any("tuned" in row["microseconds"] for row in record["rows"])
    lines = [
        "| model | ORT default | ORT best | torch.compile | **ortplugin** | "
        + ("tuned | " if is_tuned else "")
        + "times ORT best | times compile | error, plain | error, graph | replays that differ | error of PyTorch |",
        "|---|" + "---:|" * (11 if is_tuned else 10),
    ]
    for row in record["rows"]:
        times, errors = row["microseconds"], row["errors"]
        name, batch = parse_case(row["case"])
        ort, torch = best(times, "nchw", "nhwc"), best(times, "compile", "compile_last")
        ours = best(times, "ours", "tuned")

        def cell(value: float | None) -> str:
            return "" if value is None else f"{value:.0f}"

        def ratio(value: float | None, ours: float | None = ours) -> str:
            return "" if value is None or ours is None else f"{value / ours:.2f}"

        cells = [cell(times.get("default")), cell(ort), cell(torch), cell(times.get("ours")),
                 *([cell(times.get("tuned"))] if is_tuned else []),
                 ratio(ort), ratio(torch), *replay_cells(row["graphs"]["ours"]), f"{errors['torch']:.1e}"]  # fmt: skip
        lines.append(f"| {TITLES[name]}, batch {batch} | " + " | ".join(cells) + " |")
    titles = [f"{TITLES[name]}, batch {batch}" for name, batch in (parse_case(row["case"]) for row in record["rows"])]
    note = timing.older(record["rows"], titles)
    lines += ["", timing.footer("models", "Microseconds", record["environment"], note)]
    return "\n".join(lines)


def replay_cells(graph: Mapping[str, Any]) -> list[str]:
    """The errors of a plain run and of the worst replay, and how many replays differ from others of their input."""
    if "refused" in graph:
        return ["", "", "not captured"]
    return [f"{graph['error_plain']:.1e}", f"{graph['error']:.1e}", f"{graph['differed']} of {graph['replays']}"]


def measure_all(args: Namespace, record: dict[str, Any]) -> Iterator[str]:
    cases = [case for case in args.models.split(",") if case]
    for case in cases:
        parse_case(case)
    against = dict(each.split("=", 1) for each in args.against)
    rows: list[Mapping[str, Any]] = []
    for case in cases:
        begun = time.perf_counter()
        row = measure(case, compiled=not args.no_compile, tune=args.tune, profile=args.profile, against=against)
        rows.append(row)
        known = timing.merged(rows, args.out / "models.json", record["environment"], "case")
        record["rows"] = sorted(known, key=lambda row: CASES.index(row["case"]) if row["case"] in CASES else len(CASES))
        errors = f"error {row['errors'].get('ours', float('nan')):.1e}, torch {row['errors']['torch']:.1e}"
        yield f"{case} ({time.perf_counter() - begun:.0f} s): {timing.shown(row)}; {errors}"


if __name__ == "__main__":
    options = {
        "--models": {"default": ",".join(CASES), "help": "NAME:BATCH,..."},
        "--no-compile": {"action": "store_true", "help": "leave torch.compile out"},
        "--tune": {"action": "store_true", "help": "also optimize with --tune"},
        "--against": {
            "action": "append",
            "default": [],
            "metavar": "COLUMN=LIBRARY",
            "help": "another libortplugin.so, which runs the same optimized model, beside this one",
        },
        "--profile": {"type": Path, "help": "a folder for the kernels of each optimized model"},
    }
    timing.run("models", __doc__, measure_all, table, options)
