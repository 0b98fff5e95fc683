"""The order of the passes and the stage of each, as models have been optimized with them: a move shows here."""

import pytest

from ortplugin.errors import UsageError
from ortplugin.optimizer import PIPELINE, Stage, Step, make_stages, options as options_module, select_passes
from ortplugin.optimizer.options import Options
from ortplugin.optimizer.pipeline import CHANNELS_LAST_ALWAYS, CHANNELS_LAST_ON_GPU, TABLE, stage_of
from ortplugin.precision import resolve
from ortplugin.precision.plan import Request

_ORDER = """
    cast-like remove-identities shape-arithmetic discarded-elements fold-constants uniform-conditions gather-views
    late-expand repeated-constants inline-if common-subexpressions sum-to-add merge-depthwise fold-batch-norm fold-pad
    channel-shuffle fuse-layer-norm fuse-rms-norm fuse-l2-norm fuse-group-norm norm-epilogue early-gather masked-fill
    update-slice fuse-scatter scatter-transpose nested-slices narrow-concat dead-nodes fuse-lstm lstm-to-tf32
    scaled-queries scaled-masks fuse-attention
    attention-float32 attention-cache rotated-rows attention-rotary merge-products normed-products
    batch-norm-pointwise fuse-conv
    windows-last channels-last pool-precision fuse-resize matmul-to-conv gemm-to-conv image-input conv-epilogue
    vector-conv-transpose turn-conv-transpose image-output lone-split transpose-views attention-views
    col2im-to-gather padded-order flat-pad row-order outer-product matmul-to-fused matmul-float32 patches-to-matmul
    matmul-views
    batch-first
    matmul-epilogue channel-products split-products permuted-weights early-transpose norm-prologue fuse-conv-grad
    any-to-sum slow-sums fuse-sum-to
    pointwise-views fuse-pointwise lone-pointwise norm-order
    gated-products norm-matmul matmul-norm fuse-transpose
"""
ORDER = _ORDER.split()
_BEFORE_PRECISION = """
    cast-like remove-identities shape-arithmetic discarded-elements fold-constants uniform-conditions inline-if
    common-subexpressions merge-depthwise fold-batch-norm fold-pad fuse-layer-norm fuse-rms-norm fuse-group-norm
    dead-nodes batch-norm-pointwise fuse-conv
"""
BEFORE_PRECISION = _BEFORE_PRECISION.split()
_QUIET_ROUND = """
    fuse-lstm lstm-to-tf32 scaled-masks fuse-attention attention-float32 batch-norm-pointwise fuse-conv fuse-resize
    image-output lone-split transpose-views attention-views col2im-to-gather padded-order flat-pad row-order
    outer-product matmul-to-fused matmul-float32 permuted-weights
    early-transpose norm-prologue slow-sums fuse-sum-to pointwise-views fuse-pointwise lone-pointwise norm-order
    gated-products norm-matmul matmul-norm fuse-transpose
"""
QUIET_ROUND = _QUIET_ROUND.split()


def names(steps):
  return [step.name for step in steps]


def request(precision):
  return Request(resolve(precision), frozenset(), {}, frozenset(ORDER))


def test_the_order_and_the_stages():
  assert names(PIPELINE) == names(select_passes(gpu=True)) == ORDER
  assert names(step for step in PIPELINE if Stage.BEFORE_PRECISION in stage_of(step)) == BEFORE_PRECISION
  assert names(step for step in PIPELINE if Stage.QUIET_ROUND in stage_of(step)) == QUIET_ROUND


def test_each_line_gives_its_reason():
  for step in TABLE:
    assert isinstance(step, Step)
    assert step.reason
    assert step.summary == step.rewrite.summary


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_some_passes_run_before_a_conversion(precision):
  before, conversion, after = make_stages(select_passes(gpu=True), request(precision), io=False)
  assert (names(before), names(conversion), names(after)) == (BEFORE_PRECISION, ["precision"], ORDER)
  before, _, after = make_stages(select_passes(skip=["fuse-conv"]), request(precision), io=False)
  assert names(before) == [name for name in BEFORE_PRECISION if name != "fuse-conv"]
  assert "fuse-conv" not in names(after)


def test_a_conversion_to_more_bits_comes_first():
  before, conversion, after = make_stages(select_passes(gpu=True), request("fp32"), io=False)
  assert (names(before), names(conversion), names(after)) == ([], ["precision"], ORDER)


def test_tf32_is_allowed_once_there_are_convolutions_and_before_their_layout_is_chosen():
  at = ORDER.index("fuse-conv") + 1
  (stage,) = make_stages(select_passes(tf32=True, gpu=True), request("tf32"), io=False)
  assert names(stage) == [*ORDER[:at], "allow-tf32", *ORDER[at:]]
  (stage,) = make_stages(select_passes(skip=["allow-tf32"], tf32=True, gpu=True), request("tf32"), io=False)
  assert names(stage) == ORDER
  assert names(select_passes(only=["fuse-conv"], tf32=True)) == ["fuse-conv", "allow-tf32"]
  exact = [*ORDER[:at], "forbid-tf32", *ORDER[at:]]
  assert names(select_passes(tf32=False, gpu=True)) == [each for each in exact if each != "lstm-to-tf32"]
  assert names(select_passes(only=["fuse-conv"])) == ["fuse-conv"]


def test_the_layout_is_that_of_one_pass():
  assert names(select_passes(layout="nchw", gpu=True)) == [
    each for each in ORDER if each not in ("windows-last", "channels-last")
  ]
  always = select_passes(layout="nhwc", gpu=True)
  assert names(always) == ORDER
  (step,) = [step for step in always if step.name == "channels-last"]
  assert isinstance(step, Step)
  assert step.rewrite is CHANNELS_LAST_ALWAYS
  on_gpu = next(step for step in select_passes(gpu=True) if step.name == "channels-last")
  assert isinstance(on_gpu, Step)
  assert on_gpu.rewrite is CHANNELS_LAST_ON_GPU
  changed = {a.name for a, b in zip(always, PIPELINE, strict=True) if a != b}
  assert changed == {"channels-last", "col2im-to-gather", "fuse-group-norm", "merge-depthwise"}
  on_gpu_alone = {
    "attention-float32",
    "matmul-float32",
    "lstm-to-tf32",
    "fuse-lstm",
    "fuse-transpose",
    "gated-products",
    "matmul-norm",
    "norm-matmul",
    "norm-order",
    "slow-sums",
  }
  assert {*ORDER} - {*names(select_passes())} == on_gpu_alone
  assert {*names(select_passes(only=on_gpu_alone))} == on_gpu_alone


@pytest.mark.parametrize("gpus", [0, 2])
def test_the_gpu_that_is_named_or_there(gpus, patch):
  patch(options_module, "gpu_count", lambda: gpus)
  given = (None, ("CUDAExecutionProvider",), ("cpu", "cuda"), ("cpu",))
  assert [Options(providers=each).is_for_gpu() for each in given] == [gpus > 0, True, True, False]
  assert [Options(providers=each).is_for_gpu(narrow=True) for each in given] == [True, True, True, False]


@pytest.mark.parametrize(
  "options, words",
  [
    (Options(drop_guilty=True), "verify=True"),
    (Options(keep_faster=True), "keep_faster goes by"),
    (Options(precision_io=True), "say to which precision"),
    (Options(precision_skip=("Add",)), "say to which precision"),
    (Options(precision="tf32", precision_io=True), "changes no dtype"),
    (Options(limit=-1), "negative"),
  ],
)
def test_options_that_contradict_each_other(options, words):
  with pytest.raises(UsageError, match=words):
    options.check()
  Options().check()
  Options(keep_faster=False).check()
  Options(drop_guilty=True, keep_faster=True, verify=True, precision="fp16", precision_io=True, limit=0).check()
