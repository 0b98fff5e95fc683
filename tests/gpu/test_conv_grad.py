"""ConvGrad in ONNX Runtime on a GPU: equal to its reference in every form, dtype and layout, at odd addresses, with
shapes that change, the same bits in every run and under CUDA graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conv_grad_cases import BARE, CASES, GEOMETRIES, RELU, Case, Geometry, by_name, check
from layer_norm_cases import typed
from onnx import helper
from threads import in_threads

import ortplugin
from gpu.device import at_offset, host, make, python, run, same_bits
from ortplugin.ops.conv_grad import OPERATOR

cupy = pytest.importorskip("cupy")

LARGE_CASES = tuple(
    Case(f"large: {name}, {'transposed, ' if transposed else ''}{layout}, {dtype}", geometry, typed(RELU, dtype),
         transposed=transposed, layout=layout, attributes=attributes)
    for name, geometry in {
        "3x3": Geometry(8, 64, (28, 28), 64, (3, 3), pads=(1, 1, 1, 1)),
        "stride 2": Geometry(8, 64, (28, 28), 128, (3, 3), strides=(2, 2), pads=(1, 1, 1, 1), rest=(1, 1)),
        "1x1": Geometry(4, 256, (14, 14), 64, (1, 1)),
        "few channels": Geometry(100, 1, (28, 28), 16, (3, 3), pads=(1, 1, 1, 1)),
    }.items()
    for transposed in (False, True)
    for layout, dtype, attributes in (
        ("NHWC", "float16", {}), ("NHWC", "float16", {"weight_dtype": "float"}), ("NHWC", "bfloat16", {}),
        ("NCHW", "float", {}), ("NCHW", "float16", {}),
    )
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_equals_the_reference(library: Path, case: Case) -> None:
    check(case, run(make(case.model()), case))


@pytest.mark.parametrize("case", LARGE_CASES, ids=lambda case: f"{case.name} {case.attributes}")
def test_large_tensors(library: Path, case: Case) -> None:
    check(case, run(make(case.model()), case))


CHOSEN = (
    "large: 3x3, NHWC, float16",
    "large: stride 2, NCHW, float",
    "large: few channels, NCHW, float",
    "large: 3x3, transposed, NHWC, float16",
    "strided with a rest, NCHW, float",
    "depthwise, NHWC, float16",
    "weights in float, float16",
)
chosen = {case.name: case for case in LARGE_CASES if not case.attributes} | by_name


@pytest.mark.parametrize("name", CHOSEN)
def test_runs_are_bit_identical(library: Path, name: str) -> None:
    case = chosen[name]
    session = make(case.model())
    first = run(session, case)
    for _ in range(30):
        assert same_bits(run(session, case), first)
    assert same_bits(run(make(case.model()), case), first)


@pytest.mark.parametrize("name", CHOSEN)
def test_a_cuda_graph_gives_the_same_bits(library: Path, name: str) -> None:
    case = chosen[name]
    plain, graph = make(case.model()), ortplugin.session(case.model(), ["cuda"], cuda_graph=True)
    rng = np.random.default_rng(0)
    for _ in range(3):  # captured once, then replayed on other values
        feeds = {key: rng.permuted(array.reshape(-1)).reshape(array.shape) for key, array in case.feeds().items()}
        wanted = host(ortplugin.run(plain, feeds))
        check(case, wanted, list(feeds.values()))
        assert same_bits(host(ortplugin.run(graph, feeds)), wanted)


@pytest.mark.parametrize("name", CHOSEN)
def test_tensors_may_start_anywhere(library: Path, name: str) -> None:
    case = chosen[name]
    session, arrays = make(case.model()), case.inputs()
    blank = [np.zeros_like(array) for array in OPERATOR.reference(case.node(), arrays)]
    for inner, outer in ((1, 0), (0, 1), (3, 2)):
        inputs = [at_offset(array, inner) for array in arrays]
        outputs = [at_offset(array, outer) for array in blank]
        binding = session.io_binding()
        for key, array in zip(case.names, inputs, strict=True):
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            binding.bind_input(key, "cuda", 0, kind, list(array.shape), array.data.ptr)
        for key, array in zip(case.outputs(), outputs, strict=True):
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            binding.bind_output(key, "cuda", 0, kind, list(array.shape), array.data.ptr)
        cupy.cuda.get_current_stream().synchronize()
        session.run_with_iobinding(binding)
        check(case, [cupy.asnumpy(array) for array in outputs])


@pytest.mark.parametrize("transposed", [False, True])
def test_shapes_may_change_from_run_to_run(library: Path, transposed: bool) -> None:
    some = GEOMETRIES["strided with a rest"]
    text = typed(RELU, "float")
    first = Case("first", some, text, transposed=transposed)
    session = make(first.model([("n", "c", "h", "w"), ("m", "k", 3, 2), (None,) * 4, (None,) * 4]))
    for batch, size in ((2, (8, 11)), (1, (5, 4)), (0, (8, 11)), (3, (12, 30)), (2, (8, 11))):
        geometry = Geometry(batch, 4, size, 2, (3, 2), some.strides, pads=some.pads, rest=some.rest)
        case = Case(f"{batch} of {size}", geometry, text, transposed=transposed)
        check(case, run(session, case))


def test_many_threads_run_one_session(library: Path) -> None:
    some = GEOMETRIES["3x3"]
    text = typed(BARE, "float")
    session = make(Case("first", some, text).model([None] * 3))

    def work(number: int) -> None:
        geometry = Geometry(2 + number % 3, some.channels, some.size, some.filters, some.kernel, pads=some.pads)
        case = Case(f"thread {number}", geometry, text)
        for _ in range(10):
            check(case, run(session, case))

    in_threads(6, work)


NEW_SHAPE_IN_CAPTURE = """
import cupy, numpy
from onnx import helper
from gpu.device import make
from gpu.test_conv_grad import *
from ortplugin.session import onnxruntime
stream = cupy.cuda.Stream(non_blocking=True)
def of(batch):
    return Case(f"captured {batch}", Geometry(batch, 3, (7, 9), 4, (3, 3), pads=(1, 1, 1, 1)), typed(RELU, "float"))
session = make(of(2).model([None] * 4), user_compute_stream=str(stream.ptr))
options = onnxruntime().RunOptions()
options.add_run_config_entry("disable_synchronize_execution_providers", "1")
def prepare(batch):
    case = of(batch)
    inputs = [cupy.asarray(each) for each in case.inputs()]
    outputs = [cupy.zeros(each.shape, each.dtype) for each in OPERATOR.reference(case.node(), case.inputs())]
    binding = session.io_binding()
    for key, array in zip(case.names, inputs):
        binding.bind_input(key, "cuda", 0, array.dtype, list(array.shape), array.data.ptr)
    for key, array in zip(case.outputs(), outputs):
        binding.bind_output(key, "cuda", 0, array.dtype, list(array.shape), array.data.ptr)
    return case, outputs, binding, inputs
first, later = prepare(2), prepare(5)
session.run_with_iobinding(first[2], options)
cupy.cuda.Device().synchronize()
message = "accepted"
stream.begin_capture()
try:
    session.run_with_iobinding(later[2], options)
except Exception as error:
    message = str(error)
try:
    stream.end_capture()
except cupy.cuda.runtime.CUDARuntimeError:
    pass  # the capture was given up
print(message)
for case, outputs, binding, kept in (first, later):
    session.run_with_iobinding(binding, options)
    stream.synchronize()
    check(case, [cupy.asnumpy(each) for each in outputs])
print("runs")
"""


def test_new_shapes_under_capture_are_refused(library: Path) -> None:
    done = python(NEW_SHAPE_IN_CAPTURE)
    assert done.returncode == 0, done.stderr
    assert "for the first time while a CUDA graph is captured" in done.stdout
    assert "node 'gradient'" in done.stdout
    assert done.stdout.endswith("runs\n")


def test_a_wrong_run_leaves_the_session_whole(library: Path) -> None:
    case = Case("dynamic", GEOMETRIES["3x3"], typed(BARE, "float"))
    session = make(case.model([None] * 3))
    feeds: dict[str, Any] = case.feeds()
    check(case, run(session, case))
    with pytest.raises(Exception, match="X and S have different batches"):
        ortplugin.run(session, {**feeds, "X": np.zeros((5, 3, 7, 9), np.float32)})
    check(case, run(session, case))
