"""The pipeline: load, fix input shapes, passes in order until nothing changes, annotate, check, verify, report."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import onnx_graphsurgeon as gs
from onnx import ModelProto, TensorProto

from ortplugin import verify as verification
from ortplugin.errors import ModelError, OrtPluginError, UsageError, VerificationError, near_names, one_line
from ortplugin.graph.disputed import settle
from ortplugin.graph.model import annotate, export_model, import_model, lighten, put_back
from ortplugin.inline import NAME as INLINE_FUNCTIONS
from ortplugin.inline import inline_functions
from ortplugin.input_shapes import Shapes, fix_input_shapes
from ortplugin.inputs import CANDIDATES, as_wanted, generate, load_inputs
from ortplugin.modelcheck import check_structure, check_tensors, contradiction, walk_nodes
from ortplugin.normalise import normalised
from ortplugin.passes.base import Change, NearMiss, Pass, PassResult
from ortplugin.passes.conv.allow_tf32 import ALLOW_TF32
from ortplugin.passes.conv.batch_norm_pointwise import BATCH_NORM_POINTWISE
from ortplugin.passes.conv.conv_epilogue import CONV_EPILOGUE
from ortplugin.passes.conv.fold_batch_norm import FOLD_BATCH_NORM
from ortplugin.passes.conv.fold_pad import FOLD_PAD
from ortplugin.passes.conv.fuse_conv import FUSE_CONV
from ortplugin.passes.conv.fuse_conv_grad import FUSE_CONV_GRAD
from ortplugin.passes.conv.gemm_to_conv import GEMM_TO_CONV
from ortplugin.passes.conv.matmul_to_conv import MATMUL_TO_CONV
from ortplugin.passes.conv.turn_conv_transpose import TURN_CONV_TRANSPOSE
from ortplugin.passes.conv.vector_conv_transpose import VECTOR_CONV_TRANSPOSE
from ortplugin.passes.layout.channel_shuffle import CHANNEL_SHUFFLE
from ortplugin.passes.layout.channels_last import CHANNELS_LAST, CHANNELS_LAST_ALWAYS
from ortplugin.passes.layout.fuse_resize import FUSE_RESIZE
from ortplugin.passes.layout.image_input import IMAGE_INPUT
from ortplugin.passes.layout.image_output import IMAGE_OUTPUT
from ortplugin.passes.layout.pool_precision import POOL_PRECISION
from ortplugin.passes.layout.transpose_views import TRANSPOSE_VIEWS
from ortplugin.passes.norm.fuse_layer_norm import FUSE_LAYER_NORM
from ortplugin.passes.norm.fuse_rms_norm import FUSE_RMS_NORM
from ortplugin.passes.norm.norm_epilogue import NORM_EPILOGUE
from ortplugin.passes.norm.norm_prologue import NORM_PROLOGUE
from ortplugin.passes.pointwise.fuse_pointwise import FUSE_POINTWISE
from ortplugin.passes.pointwise.fuse_sum_to import FUSE_SUM_TO
from ortplugin.passes.pointwise.lone_pointwise import LONE_POINTWISE
from ortplugin.passes.pointwise.pointwise_views import POINTWISE_VIEWS
from ortplugin.passes.scatter.fuse_scatter import FUSE_SCATTER
from ortplugin.passes.scatter.masked_fill import MASKED_FILL
from ortplugin.passes.scatter.scatter_transpose import SCATTER_TRANSPOSE
from ortplugin.passes.scatter.update_slice import UPDATE_SLICE
from ortplugin.passes.simplify.cast_like import CAST_LIKE
from ortplugin.passes.simplify.common_subexpressions import COMMON_SUBEXPRESSIONS
from ortplugin.passes.simplify.dead_nodes import DEAD_NODES
from ortplugin.passes.simplify.fold_constants import FOLD_CONSTANTS
from ortplugin.passes.simplify.inline_if import INLINE_IF
from ortplugin.passes.simplify.narrow_concat import NARROW_CONCAT
from ortplugin.passes.simplify.nested_slices import NESTED_SLICES
from ortplugin.passes.simplify.remove_identities import REMOVE_IDENTITIES
from ortplugin.passes.simplify.shape_arithmetic import SHAPE_ARITHMETIC
from ortplugin.passes.simplify.sum_to_add import SUM_TO_ADD
from ortplugin.precision import BFLOAT16, FLOAT16, Precision, resolve
from ortplugin.precision.convert import ConvertPrecision
from ortplugin.precision.plan import Request
from ortplugin.precision.ranges import measure
from ortplugin.report import CONVERSION, PLAIN, Dropped, ProviderVerification, Report, count_operators
from ortplugin.session import CUDA, available_providers, check_device, resolve_provider
from ortplugin.storage import PathLike, StoredModel, load
from ortplugin.tune import TunedNode
from ortplugin.tune import tune as tune_nodes
from ortplugin.upgrade import BFLOAT16_OPSET, opset, upgrade

# Each pass in its place, and why it stands there. To add a rewrite, add a line.
PIPELINE: tuple[Pass, ...] = (
    CAST_LIKE,  # before Casts are removed and folded
    REMOVE_IDENTITIES,  # early: exporters put Identity and empty Casts between the nodes that patterns look for
    SHAPE_ARITHMETIC,  # before folding, which then removes what hangs on a known Shape
    FOLD_CONSTANTS,  # patterns ask for constants: axes, exponents, epsilons computed by nodes become ones
    INLINE_IF,  # after folding, which finds the conditions; the branch's constants are folded in the next round
    COMMON_SUBEXPRESSIONS,  # after folding, since equal constants make equal nodes; TorchScript computes x - mean twice
    SUM_TO_ADD,  # before the passes that look for an Add
    FOLD_BATCH_NORM,  # after folding, which makes its factors constants; before what looks for a convolution's epilogue
    FOLD_PAD,  # after the normalisation before a Conv, which goes into it only where it pads nothing
    CHANNEL_SHUFFLE,  # before the layout of convolutions is chosen, which knows a Gather's axis
    FUSE_LAYER_NORM,  # before RMS normalisation, whose pattern is a part of this one
    FUSE_RMS_NORM,
    NORM_PROLOGUE,  # bias and residual adds: need a fused norm to be drawn into
    NORM_EPILOGUE,  # after the prologue, so that a sum it shares with the norm is an output already
    MASKED_FILL,  # before the scatters are ours: what becomes a Where needs no operator of ours
    UPDATE_SLICE,  # before the other scatters, whose indices shed what shows how long a slice is
    FUSE_SCATTER,
    SCATTER_TRANSPOSE,  # after both, since it knows our operators only
    NESTED_SLICES,  # after Transposes between the slices are gone
    NARROW_CONCAT,  # before the layout of convolutions is chosen, which sees the Concats that run then
    DEAD_NODES,  # sweeps up what the others cut off
    BATCH_NORM_POINTWISE,  # those that no weights have taken in, for epilogues and FusedPointwise; see LAST
    FUSE_CONV,  # once weights have taken in what they can, which these passes look for around a Conv; see LAST
    CHANNELS_LAST,  # before the epilogues, which it lets read what else has its channels last
    POOL_PRECISION,  # of what that made, before the Casts are drawn into others
    FUSE_RESIZE,  # of what that left with its channels first
    MATMUL_TO_CONV,  # needs convolutions with channels last beside it
    GEMM_TO_CONV,  # likewise
    IMAGE_INPUT,  # after the layouts are decided, of which it takes a Transpose
    CONV_EPILOGUE,  # before what it draws in is fused on its own
    VECTOR_CONV_TRANSPOSE,  # with its epilogue, which the Reshape after it would keep away
    TURN_CONV_TRANSPOSE,  # with its epilogue, which decides; after what knows a better form of it
    IMAGE_OUTPUT,  # likewise with its epilogue, which it ends; see LAST
    TRANSPOSE_VIEWS,  # what is left of vectors after the layout is chosen; see LAST
    FUSE_CONV_GRAD,  # before sums and pointwise operators take what makes a gradient
    FUSE_SUM_TO,  # before other pointwise operators take what makes the summands; see LAST
    POINTWISE_VIEWS,  # before what it brings together is fused; see LAST
    FUSE_POINTWISE,  # see LAST: it takes whatever pointwise operators the others left
    LONE_POINTWISE,  # last, and see LAST: what found no neighbour
)

# These wait for a round in which nothing before them changes anything: what they fuse is hidden from the other passes.
LAST = (
    BATCH_NORM_POINTWISE,
    FUSE_CONV,
    FUSE_RESIZE,
    IMAGE_OUTPUT,
    TRANSPOSE_VIEWS,
    FUSE_SUM_TO,
    POINTWISE_VIEWS,
    FUSE_POINTWISE,
    LONE_POINTWISE,
)

# What else can be left out by name, and what it does.
BESIDES = {
    INLINE_FUNCTIONS: "calls of local functions become the functions' bodies, before all passes",
    ALLOW_TF32.name: f"{ALLOW_TF32.summary}, with --precision tf32",
}

LAYOUTS = ("auto", "nchw", "nhwc")

# These run before a conversion of precision, in the model's own: what they compute, they compute with all its bits, and
# what they fuse takes any dtype and accumulates in float32. The other passes see the converted model.
BEFORE_PRECISION = (
    CAST_LIKE,
    REMOVE_IDENTITIES,
    SHAPE_ARITHMETIC,
    FOLD_CONSTANTS,
    INLINE_IF,
    COMMON_SUBEXPRESSIONS,
    FOLD_BATCH_NORM,
    FOLD_PAD,
    FUSE_LAYER_NORM,
    FUSE_RMS_NORM,
    DEAD_NODES,
    BATCH_NORM_POINTWISE,
    FUSE_CONV,
)

# A pass is idempotent, but may open the way for an earlier one. Models need two to four rounds; a Swin from TorchScript
# needs eight: what it knows of each stage's shapes comes from the stage before. An Encodec with two stages needs
# thirty. However deep a model is, each such round leaves fewer nodes, so only the other rounds count: they alone could
# go on for ever. A limit on all of them would stop halfway, and optimizing again would change what it left.
MAX_ROUNDS = 16

Progress = Callable[[str], None]


def select_passes(
    only: Iterable[str] | None = None, skip: Iterable[str] | None = None, layout: str = "auto"
) -> tuple[Pass, ...]:
    """The passes of PIPELINE that `only` names (None: all) and `skip` does not. UsageError on an unknown name.

    `skip` may name what stands in BESIDES, too, which is for `optimize` to leave out.

    `layout`: of convolutions, one of LAYOUTS: "auto" has the channels last where that is faster, in float16, bfloat16
    and TF32; "nchw" leaves out the pass that does it, "nhwc" does it in every dtype.
    """
    if layout not in LAYOUTS:
        raise UsageError(f"there is no layout {layout!r}; it is one of {', '.join(LAYOUTS)}")
    known = [step.name for step in PIPELINE]
    chosen = None if only is None else list(only)
    left_out = list(skip or ())
    for name in [*(chosen or ()), *(name for name in left_out if name not in BESIDES)]:
        if name not in known:
            raise UsageError(f"there is no pass '{name}'{near_names(name, known)} (--list-passes shows them)")
    left_out += [CHANNELS_LAST.name] * (layout == "nchw")
    steps = [CHANNELS_LAST_ALWAYS if step is CHANNELS_LAST and layout == "nhwc" else step for step in PIPELINE]
    return tuple(step for step in steps if (chosen is None or step.name in chosen) and step.name not in left_out)


def make_stages(
    passes: Sequence[Pass], request: Request, io: bool, skip: Iterable[str] = ()
) -> tuple[tuple[Pass, ...], ...]:
    """What runs one after the other: passes before a conversion, the conversion, all passes; for TF32 one stage."""
    if not request.target.sources:
        if ALLOW_TF32.name in skip:
            return (tuple(passes),)
        at = passes.index(FUSE_CONV) + 1 if FUSE_CONV in passes else len(passes)
        return ((*passes[:at], ALLOW_TF32, *passes[at:]),)  # before the layout of what TF32 makes fast is chosen
    before = tuple(step for step in passes if step in BEFORE_PRECISION and request.target.narrows)
    return (before, (ConvertPrecision(request, io),), tuple(passes))


def _peaks(
    target: Precision,
    original: ModelProto,
    start: ModelProto,
    inputs: Mapping[str, object] | PathLike | None,
    tell: Progress,
) -> Mapping[str, float]:
    """The largest magnitude of each value on the user's inputs, where that matters."""
    if inputs is None or target.dtype != FLOAT16:
        return {}
    tell("measuring the range of activations")
    return measure(start, load_inputs(inputs, original).feeds)


def run_stages(
    model: ModelProto, stages: Sequence[Sequence[Pass]], limit: int | None = None, progress: Progress | None = None
) -> tuple[ModelProto, list[Change], list[NearMiss]]:
    """`run_passes` of each stage on what the one before made. Near misses are those of conversions and the last.

    Where a pass fails on a model that contradicts itself, the error says that, and no defect of ours.
    """
    changes: list[Change] = []
    misses: list[NearMiss] = []
    result, weights = lighten(model)
    for number, stage in enumerate(stages):
        left = None if limit is None else limit - len(changes)
        try:
            result, made, missed = run_passes(result, stage, left, progress, weights)
        except PassError as error:
            wrong = contradiction(model)
            if wrong:
                raise ModelError(f"it is not valid ONNX, so that the pass '{error.step}' fails: {wrong}") from error
            raise
        changes += made
        if number == len(stages) - 1 or any(isinstance(step, ConvertPrecision) for step in stage):
            misses += missed
    put_back(result, weights)
    return result, changes, list(dict.fromkeys(misses))


def run_passes(
    model: ModelProto,
    passes: Sequence[Pass],
    limit: int | None = None,
    progress: Progress | None = None,
    weights: Mapping[str, TensorProto] | None = None,
) -> tuple[ModelProto, list[Change], list[NearMiss]]:
    """`model` after `passes`, with the changes in order and the near misses that remain.

    Passes run in rounds until one changes nothing, or until MAX_ROUNDS of them have left no fewer nodes. Each round
    imports what the one before exported, so the last round is what a second call would do first: optimizing an
    optimized model changes nothing, by construction.

    Args:
        model: not changed.
        passes: in order.
        limit: stop after so many changes; the first `limit` ones are the same for every limit.
        progress: told the name of each pass as it starts.
        weights: the data that initializers of `model` lack; the result lacks them, too.
    """
    changes: list[Change] = []
    misses: list[NearMiss] = []
    result = model
    size, rounds = _size(result), 0
    while rounds < MAX_ROUNDS:
        graph = import_model(result, weights)
        annotate(graph)
        settle(graph)
        found = len(changes)
        misses = []
        for step in passes:
            left = None if limit is None else limit - len(changes)
            if left == 0:
                break
            if step in LAST and len(changes) > found:
                continue
            if progress is not None:
                progress(step.name)
            outcome = _run_pass(step, graph, left, changes)
            changes += outcome.changes
            misses += outcome.near_misses
        if len(changes) == found:
            break
        annotate(graph)
        settle(graph)
        result = export_model(graph, result)
        before, size = size, _size(result)
        rounds += size >= before
    if result is model:  # nothing to do is nothing changed, to the byte
        result = ModelProto()
        result.CopyFrom(model)
    return result, changes, list(dict.fromkeys(misses))


def _size(model: ModelProto) -> int:
    return sum(1 for _ in walk_nodes(model))


def _run_pass(step: Pass, graph: gs.Graph, limit: int | None, before: Sequence[Change]) -> PassResult:
    try:
        return step(graph, limit)
    except OrtPluginError:
        raise
    except Exception as error:
        raise PassError(step.name, [change.rewrite for change in before], error) from error


class PassError(Exception):
    """A pass failed: a defect of this package, not of the model."""

    def __init__(self, name: str, before: Sequence[str], error: Exception) -> None:
        self.step = name
        ran = ", ".join(dict.fromkeys(before)) or "none"
        super().__init__(f"the pass '{name}' failed after rewrites by {ran}: {error}; --skip {name} leaves it out")


def optimize(
    model_or_path: ModelProto | PathLike | StoredModel,
    *,
    only: Iterable[str] | None = None,
    skip: Iterable[str] | None = None,
    layout: str = "auto",
    input_shapes: Shapes | None = None,
    verify: bool = False,
    drop_guilty: bool = False,
    tune: bool = False,
    providers: Sequence[str] | None = None,
    device_id: int = 0,
    inputs: Mapping[str, object] | PathLike | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    limit: int | None = None,
    precision: str | None = None,
    precision_io: bool = False,
    precision_skip: Iterable[str] | None = None,
    progress: Progress | None = None,
) -> tuple[ModelProto, Report]:
    """The model with fused operators in it, and what was done.

    Args:
        model_or_path: a model (not changed), the path of one, or one that `ortplugin.storage.load` has read.
        only: names of the passes to run; None runs all. `ortplugin.optimizer.PIPELINE` lists them.
        skip: names of passes to leave out.
        layout: of convolutions: "auto" (channels last in float16, bfloat16, TF32), "nchw" or "nhwc" (in every dtype).
        input_shapes: input name to shape, to fix dynamic dimensions before the passes run.
        verify: run original and optimized in ONNX Runtime and compare.
        drop_guilty: where outputs differ then, leave out the pass that is to blame and do everything again, tuning
            too, until they agree. `report.dropped` names what was left out. Conversions of precision are not.
        tune: time each fused node on this machine and keep what is fastest (`ortplugin.tune`).
        providers: execution providers to verify on; None takes the CPU, and CUDA where it is present. `tune` measures
            on the first one; None takes CUDA.
        device_id: the number of the GPU, in this process, to verify and tune on.
        inputs: arrays by input name, or the path of an .npz file, to verify on besides generated ones. `tune` measures
            on them; without them on generated ones. `precision` keeps operators in float32 whose values on them are too
            large.
        rtol: relative tolerance of the verification; None takes the dtype's own.
        atol: absolute tolerance of the verification; None takes the dtype's own, scaled by the output's magnitude.
        limit: the most changes to make; None makes all.
        precision: "fp16", "bf16", "fp32" or "tf32": what floating operators compute in (`ortplugin.precision`). The
            verification allows for that dtype's rounding.
        precision_io: the dtypes of inputs and outputs change too.
        precision_skip: names and types of operators that keep their dtype.
        progress: called with a few words at each step.

    Raises:
        UsageError: an argument is wrong. ModelError: the model is invalid.
        VerificationError: outputs differ; `report` on the error holds the report with the guilty change.
    """
    if drop_guilty and not verify:
        raise UsageError("drop_guilty is about the verification; it needs verify=True")
    chosen = None if only is None else list(only)
    left_out, kept = list(skip or ()), list(precision_skip or ())
    dropped: list[Dropped] = []
    while True:
        try:
            model, report = _optimize(
                model_or_path,
                only=chosen,
                skip=left_out,
                layout=layout,
                input_shapes=input_shapes,
                verify=verify,
                tune=tune,
                providers=providers,
                device_id=device_id,
                inputs=inputs,
                rtol=rtol,
                atol=atol,
                limit=limit,
                precision=precision,
                precision_io=precision_io,
                precision_skip=kept,
                tell=progress or (lambda _: None),
            )
        except VerificationError as error:
            if error.report is None:
                raise
            error.report.dropped = dropped
            guilty = error.report.guilty
            if not drop_guilty or guilty is None or guilty.rewrite in (CONVERSION, *left_out):
                raise
            reason = str(error).rpartition("; ")[0]  # without the remedy, which is taken here
            dropped.append(Dropped(guilty.rewrite, guilty.nodes, reason))
            left_out.append(guilty.rewrite)
        else:
            report.dropped = dropped
            return model, report


def _optimize(
    model_or_path: ModelProto | PathLike | StoredModel,
    *,
    only: Iterable[str] | None,
    skip: Sequence[str],
    layout: str,
    input_shapes: Shapes | None,
    verify: bool,
    tune: bool,
    providers: Sequence[str] | None,
    device_id: int,
    inputs: Mapping[str, object] | PathLike | None,
    rtol: float | None,
    atol: float | None,
    limit: int | None,
    precision: str | None,
    precision_io: bool,
    precision_skip: Sequence[str],
    tell: Progress,
) -> tuple[ModelProto, Report]:
    """`optimize` once."""
    passes = select_passes(only, skip, layout)
    target = None if precision is None else resolve(precision)
    if target is None and (precision_io or precision_skip):
        raise UsageError("precision_io and precision_skip are about a conversion; say to which precision")
    if target is not None and not target.sources and (precision_io or precision_skip):
        raise UsageError("the precision 'tf32' changes no dtype, so precision_io and precision_skip do not go with it")
    if limit is not None and limit < 0:
        raise UsageError(f"the limit {limit} is negative; give the number of changes to make")
    report = Report()
    with _timed(report, "load"):
        tell("loading")
        original, path = _original(model_or_path)
    report.input = None if path is None else str(path)
    report.before = count_operators(original)
    with _timed(report, "passes"):
        inlined, functions, misses = (original, {}, []) if INLINE_FUNCTIONS in skip else inline_functions(original)
        start = upgraded = upgrade(inlined)
        if target is not None and target.dtype == BFLOAT16:
            start = upgraded = upgrade(inlined, BFLOAT16_OPSET, "which bfloat16 needs")
        if input_shapes:
            start = ModelProto()
            start.CopyFrom(upgraded)
            fix_input_shapes(start, input_shapes)
        stages: tuple[tuple[Pass, ...], ...] = (tuple(passes),)
        if target is not None:
            report.precision = target.name
            peaks = _peaks(target, original, start, inputs, tell)
            request = Request(target, frozenset(precision_skip), peaks, frozenset(step.name for step in passes))
            stages = make_stages(passes, request, precision_io, skip)
        optimized, report.changes, report.near_misses = run_stages(start, stages, limit, tell)
        report.near_misses = [*misses, *report.near_misses]
        if report.changes or input_shapes:
            report.functions = functions
            report.opset = None if upgraded is inlined else (opset(inlined), opset(upgraded))
        elif upgraded is not original:  # nothing to do is nothing changed
            optimized = ModelProto()
            optimized.CopyFrom(original)
    with _timed(report, "check"):
        tell("checking the result")
        check_result(optimized)
    untuned = optimized
    if tune:
        with _timed(report, "tune"):
            optimized, report.tuning = _tune(original, optimized, providers, device_id, inputs, input_shapes, tell)
            check_result(optimized)
    report.after = count_operators(optimized)
    if verify and (report.changes or input_shapes or report.tuned):
        with _timed(report, "verify"):
            _verify(
                original, path, start, untuned, optimized, stages, report, providers, device_id, inputs, input_shapes,
                rtol, atol, tell,
            )  # fmt: skip
    return optimized, report


def _tune(
    original: ModelProto,
    optimized: ModelProto,
    providers: Sequence[str] | None,
    device_id: int,
    inputs: Mapping[str, object] | PathLike | None,
    input_shapes: Shapes | None,
    tell: Progress,
) -> tuple[ModelProto, list[TunedNode]]:
    if providers is None and available_providers()[0] != CUDA:
        raise UsageError(
            "tuning measures on an NVIDIA GPU, and ONNX Runtime finds none here; tune where the model will run, "
            "or choose the provider 'cpu' to tune for the CPU"
        )
    provider = CUDA if providers is None else resolve_provider(providers[0])
    check_device(device_id, [provider])
    if inputs is not None:
        feeds = as_wanted(load_inputs(inputs, original).feeds, optimized)
        return tune_nodes(optimized, feeds, provider, tell, device_id)
    problem: Exception | None = None
    for sizes in CANDIDATES:
        try:
            feeds = as_wanted(generate(original, sizes, input_shapes).feeds, optimized)
            return tune_nodes(optimized, feeds, provider, tell, device_id)
        except OrtPluginError:
            raise
        except Exception as error:  # ONNX Runtime's own classes have no common base
            problem = problem or error
    raise VerificationError(
        f"the model does not run on generated inputs, so it can't be tuned: {one_line(problem or '')}; "
        "give its inputs with --inputs data.npz or their shapes with --input-shape"
    ) from problem


def check_result(model: ModelProto) -> None:
    """Checks what the passes made; an error here is a defect of this package."""
    try:
        check_tensors(model)
        check_structure(model)
    except ModelError as error:
        raise RuntimeError(f"the rewritten model is invalid, which is a defect of ortplugin: {error}") from error


def _original(model_or_path: ModelProto | PathLike | StoredModel) -> tuple[ModelProto, Path | None]:
    if isinstance(model_or_path, StoredModel):
        return model_or_path.proto, model_or_path.path
    if isinstance(model_or_path, ModelProto):
        check_tensors(model_or_path)
        model = normalised(model_or_path)
        check_structure(model)
        return model, None
    if not isinstance(model_or_path, (str, os.PathLike)):
        raise UsageError(f"optimize takes an onnx.ModelProto or a path, not {type(model_or_path).__name__}")
    stored = load(model_or_path)
    return stored.proto, stored.path


@contextmanager
def _timed(report: Report, step: str) -> Iterator[None]:
    start = time.perf_counter()
    try:
        yield
    finally:
        report.seconds[step] = time.perf_counter() - start


def _verify(
    original: ModelProto,
    path: Path | None,
    start: ModelProto,
    untuned: ModelProto,
    optimized: ModelProto,
    stages: Sequence[Sequence[Pass]],
    report: Report,
    providers: Sequence[str] | None,
    device_id: int,
    inputs: Mapping[str, object] | PathLike | None,
    input_shapes: Shapes | None,
    rtol: float | None,
    atol: float | None,
    tell: Progress,
) -> None:
    """Compares and, when outputs differ, finds the guilty change; raises VerificationError then."""
    with closing(
        verification.Verifier(
            original,
            path=path,
            providers=providers,
            device_id=device_id,
            inputs=inputs,
            input_shapes=input_shapes,
            tolerance=verification.Tolerance(rtol, atol, report.precision),
            progress=tell,
        )
    ) as verifier:
        report.verification = verifier.verify(optimized)
        if report.passed:
            return
        failed = next(result for result in report.verification if not result.passed)
        if untuned is not optimized and verifier.agrees(untuned, failed.provider):
            error = VerificationError(_verdict(failed, None, "from the tuning on"))
            error.report = report
            raise error

        def passes_with(limit: int) -> bool:
            tell(f"looking for the guilty rewrite, with {limit} of {len(report.changes)} changes")
            candidate, _, _ = run_stages(start, stages, limit)
            return verifier.agrees(candidate, failed.provider)

        guilty = find_guilty(len(report.changes), passes_with)
        if guilty is not None:
            report.guilty = report.changes[guilty - 1]
        elif report.functions and report.opset is None:  # an upgrade may be to blame, too, and knows no functions
            report.guilty = Change(INLINE_FUNCTIONS, tuple(report.functions), "")
        otherwise, remedy = "even without a rewrite", ""
        if report.opset is not None:
            old, new = report.opset
            otherwise = f"from the upgrade of opset {old} to {new} on"
            remedy = f"; export the model again with opset {new} or later"
        error = VerificationError(_verdict(failed, report.guilty, otherwise, remedy))
        error.report = report
        raise error


def _verdict(failed: ProviderVerification, guilty: Change | None, otherwise: str, remedy: str = "") -> str:
    """One line that says which output differs, where, by how much, and which rewrite is to blame, or `otherwise`."""
    case, output = next(
        (comparison, output) for comparison in failed.inputs for output in comparison.outputs if not output.passed
    )
    how = "" if case.mode == PLAIN else f", replays of a CUDA {case.mode}"
    place = f"{failed.provider.removesuffix('ExecutionProvider')}, {case.name}{how}"
    what = f"output '{output.name}' differs ({place})" if output.name else f"the check failed ({place})"
    if guilty is None:
        return f"{what} {otherwise}: {one_line(output.message, 250)}{remedy}"
    nodes = ", ".join(guilty.nodes[:3]) + (f" and {len(guilty.nodes) - 3} more" if len(guilty.nodes) > 3 else "")
    return (
        f"{what} from the rewrite '{guilty.rewrite}' of {one_line(nodes, 200)} on: {one_line(output.message, 250)}; "
        f"{_remedy(guilty)}"
    )


def _remedy(guilty: Change) -> str:
    if guilty.rewrite != CONVERSION:
        return f"--skip {guilty.rewrite} leaves it out"
    name = guilty.nodes[0].split(" ")[0].strip("'")
    return f"--precision-skip {name} leaves it in its dtype, --inputs data.npz finds what does not fit"


def find_guilty(count: int, passes_with: Callable[[int], bool]) -> int | None:
    """The number (from 1) of the change that makes the comparison fail, given that it fails with all `count`.

    Bisection over the number of changes made: it keeps one number that passes and one that fails until they are
    neighbours. None when the comparison fails with no change at all.
    """
    if not passes_with(0):
        return None
    good, bad = 0, count
    while bad - good > 1:
        middle = (good + bad) // 2
        if passes_with(middle):
            good = middle
        else:
            bad = middle
    return bad
