"""The pipeline: one table whose lines give each pass, its stage and the reason for its place."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Flag, auto

import onnx_graphsurgeon as gs

from ..errors import UsageError, near_names
from ..model.inline import NAME as INLINE_FUNCTIONS
from ..passes.attention.attention_cache import ATTENTION_CACHE
from ..passes.attention.attention_rotary import ATTENTION_ROTARY
from ..passes.attention.attention_views import ATTENTION_VIEWS
from ..passes.attention.fuse_attention import ATTENTION_EXACT, ATTENTION_FLOAT32, FUSE_ATTENTION
from ..passes.attention.merge_products import MERGE_PRODUCTS
from ..passes.attention.rotated_rows import ROTATED_ROWS
from ..passes.attention.scaled_masks import SCALED_MASKS
from ..passes.attention.scaled_queries import SCALED_QUERIES
from ..passes.base import Pass, PassResult
from ..passes.conv.allow_tf32 import ALLOW_TF32, FORBID_TF32
from ..passes.conv.batch_norm_pointwise import BATCH_NORM_POINTWISE
from ..passes.conv.conv_epilogue import CONV_EPILOGUE
from ..passes.conv.fold_batch_norm import FOLD_BATCH_NORM
from ..passes.conv.fold_pad import FOLD_PAD
from ..passes.conv.fuse_conv import FUSE_CONV
from ..passes.conv.fuse_conv_grad import FUSE_CONV_GRAD
from ..passes.conv.gemm_to_conv import GEMM_TO_CONV
from ..passes.conv.matmul_to_conv import MATMUL_TO_CONV
from ..passes.conv.merge_depthwise import MERGE_DEPTHWISE, MERGE_DEPTHWISE_ON_GPU
from ..passes.conv.turn_conv_transpose import TURN_CONV_TRANSPOSE
from ..passes.conv.vector_conv_transpose import VECTOR_CONV_TRANSPOSE
from ..passes.layout.channel_shuffle import CHANNEL_SHUFFLE
from ..passes.layout.channels_last import CHANNELS_LAST, CHANNELS_LAST_ALWAYS, CHANNELS_LAST_ON_GPU
from ..passes.layout.early_transpose import EARLY_TRANSPOSE
from ..passes.layout.fuse_resize import FUSE_RESIZE
from ..passes.layout.fuse_transpose import FUSE_TRANSPOSE
from ..passes.layout.image_input import IMAGE_INPUT
from ..passes.layout.image_output import IMAGE_OUTPUT
from ..passes.layout.norm_order import NORM_ORDER
from ..passes.layout.padded_order import PADDED_ORDER
from ..passes.layout.pool_precision import POOL_PRECISION
from ..passes.layout.row_order import ROW_ORDER
from ..passes.layout.transpose_views import TRANSPOSE_VIEWS
from ..passes.layout.windows_last import WINDOWS_LAST
from ..passes.matmul.batch_first import BATCH_FIRST
from ..passes.matmul.channel_products import CHANNEL_PRODUCTS
from ..passes.matmul.fuse_lstm import FUSE_LSTM, LSTM_TO_TF32
from ..passes.matmul.gated_products import GATED_PRODUCTS
from ..passes.matmul.matmul_epilogue import MATMUL_EPILOGUE
from ..passes.matmul.matmul_norm import MATMUL_NORM, NORM_MATMUL
from ..passes.matmul.matmul_to_fused import MATMUL_FLOAT32, MATMUL_TO_FUSED
from ..passes.matmul.matmul_views import MATMUL_VIEWS
from ..passes.matmul.patches_to_matmul import PATCHES_TO_MATMUL
from ..passes.matmul.permuted_weights import PERMUTED_WEIGHTS
from ..passes.matmul.split_products import SPLIT_PRODUCTS
from ..passes.norm.fuse_group_norm import FUSE_GROUP_NORM, FUSE_GROUP_NORM_ON_GPU
from ..passes.norm.fuse_l2_norm import FUSE_L2_NORM
from ..passes.norm.fuse_layer_norm import FUSE_LAYER_NORM
from ..passes.norm.fuse_rms_norm import FUSE_RMS_NORM
from ..passes.norm.norm_epilogue import NORM_EPILOGUE
from ..passes.norm.norm_prologue import NORM_PROLOGUE
from ..passes.norm.normed_products import NORMED_PRODUCTS
from ..passes.pointwise.any_to_sum import ANY_TO_SUM
from ..passes.pointwise.fuse_pointwise import FUSE_POINTWISE
from ..passes.pointwise.fuse_sum_to import FUSE_SUM_TO
from ..passes.pointwise.lone_pointwise import LONE_POINTWISE
from ..passes.pointwise.pointwise_views import POINTWISE_VIEWS
from ..passes.pointwise.slow_sums import SLOW_SUMS
from ..passes.scatter.fuse_scatter import FUSE_SCATTER
from ..passes.scatter.masked_fill import MASKED_FILL
from ..passes.scatter.scatter_transpose import SCATTER_TRANSPOSE
from ..passes.scatter.update_slice import UPDATE_SLICE
from ..passes.simplify.cast_like import CAST_LIKE
from ..passes.simplify.col2im_to_gather import COL2IM_TO_GATHER, COL2IM_TO_GATHER_ON_GPU
from ..passes.simplify.common_subexpressions import COMMON_SUBEXPRESSIONS
from ..passes.simplify.dead_nodes import DEAD_NODES
from ..passes.simplify.discarded_elements import DISCARDED_ELEMENTS
from ..passes.simplify.early_gather import EARLY_GATHER
from ..passes.simplify.flat_pad import FLAT_PAD
from ..passes.simplify.fold_constants import FOLD_CONSTANTS
from ..passes.simplify.gather_views import GATHER_VIEWS
from ..passes.simplify.inline_if import INLINE_IF
from ..passes.simplify.late_expand import LATE_EXPAND
from ..passes.simplify.lone_split import LONE_SPLIT
from ..passes.simplify.narrow_concat import NARROW_CONCAT
from ..passes.simplify.nested_slices import NESTED_SLICES
from ..passes.simplify.outer_product import OUTER_PRODUCT
from ..passes.simplify.remove_identities import REMOVE_IDENTITIES
from ..passes.simplify.repeated_constants import REPEATED_CONSTANTS
from ..passes.simplify.shape_arithmetic import SHAPE_ARITHMETIC
from ..passes.simplify.sum_to_add import SUM_TO_ADD
from ..passes.simplify.uniform_conditions import UNIFORM_CONDITIONS
from ..precision.convert import ConvertPrecision
from ..precision.plan import Request


class Stage(Flag):
  """When a pass runs, besides its place in the order. What has no flag runs in every round.

  BEFORE_PRECISION: before a conversion of precision too, in the model's own dtypes. What these passes compute, they
  compute with all its bits, and what they fuse takes any dtype and accumulates in float32. The others see the
  converted model alone.

  QUIET_ROUND: only in a round in which nothing before it changes anything, because what it fuses is hidden from the
  other passes.

  TF32, EXACT: with `--precision tf32` alone, with `--precision fp32` alone. GPU: for models that a GPU runs,
  and by name; FLOAT32: with `--precision tf32`, too. ROUNDS: not with `--precision fp32`.
  """

  EVERY_ROUND = 0
  BEFORE_PRECISION = auto()
  QUIET_ROUND = auto()
  TF32 = auto()
  EXACT = auto()
  FLOAT32 = auto()
  ROUNDS = auto()
  GPU = auto()


@dataclass(frozen=True)
class Step:
  """A line of the table; itself a pass."""

  rewrite: Pass
  stage: Stage
  reason: str
  """Why it stands where it stands."""

  @property
  def name(self) -> str:
    """The pass's."""
    return self.rewrite.name

  @property
  def summary(self) -> str:
    """The pass's."""
    return self.rewrite.summary

  def __call__(self, graph: gs.Graph, limit: int | None = None) -> PassResult:
    """Runs the pass."""
    return self.rewrite(graph, limit)


EVERY_ROUND, BEFORE_PRECISION, QUIET_ROUND, TF32, EXACT, FLOAT32, ROUNDS, GPU = (
  Stage.EVERY_ROUND,
  Stage.BEFORE_PRECISION,
  Stage.QUIET_ROUND,
  Stage.TF32,
  Stage.EXACT,
  Stage.FLOAT32,
  Stage.ROUNDS,
  Stage.GPU,
)

# Each pass in its place. To add a rewrite, add a line.
TABLE: tuple[Step, ...] = (
  Step(CAST_LIKE, BEFORE_PRECISION, "before Casts are removed and folded"),
  Step(REMOVE_IDENTITIES, BEFORE_PRECISION, "early: exporters put empty operators between the nodes of patterns"),
  Step(SHAPE_ARITHMETIC, BEFORE_PRECISION, "before folding, which then removes what hangs on a known Shape"),
  Step(DISCARDED_ELEMENTS, BEFORE_PRECISION, "before folding, which leaves a Cast that is not defined"),
  Step(FOLD_CONSTANTS, BEFORE_PRECISION, "before patterns, which ask for constants: axes, exponents, epsilons"),
  Step(UNIFORM_CONDITIONS, BEFORE_PRECISION, "after folding, which finds masks that forbid nothing"),
  Step(GATHER_VIEWS, EVERY_ROUND, "after folding, which finds indices"),
  Step(LATE_EXPAND, EVERY_ROUND, "after conditions, some of which become an Expand; before masks are read"),
  Step(REPEATED_CONSTANTS, EVERY_ROUND, "after folding, which makes constants of what an exporter repeated"),
  Step(INLINE_IF, BEFORE_PRECISION, "after folding, which finds conditions; branches fold in the next round"),
  Step(COMMON_SUBEXPRESSIONS, BEFORE_PRECISION, "after folding: equal constants make equal nodes"),
  Step(SUM_TO_ADD, EVERY_ROUND, "before the passes that look for an Add"),
  Step(MERGE_DEPTHWISE, BEFORE_PRECISION, "before batch norms are folded: one behind all of them goes into one"),
  Step(FOLD_BATCH_NORM, BEFORE_PRECISION, "after folding, for constant factors; before epilogues are drawn in"),
  Step(FOLD_PAD, BEFORE_PRECISION, "after the batch norm before a Conv, which goes into it only without pads"),
  Step(CHANNEL_SHUFFLE, EVERY_ROUND, "before the layout is chosen, which knows a Gather's axis"),
  Step(FUSE_LAYER_NORM, BEFORE_PRECISION, "before RMS normalisation, whose pattern is a part of this one"),
  Step(FUSE_RMS_NORM, BEFORE_PRECISION, "after layer normalisation, of whose pattern its own is a part"),
  Step(FUSE_L2_NORM, EVERY_ROUND, "after Expands are gone; before what follows the norm is drawn in"),
  Step(FUSE_GROUP_NORM, BEFORE_PRECISION, "before the layout is chosen, which passes a norm of ours"),
  Step(NORM_EPILOGUE, EVERY_ROUND, "after the norms, into which it draws what follows them"),
  Step(EARLY_GATHER, EVERY_ROUND, "after the norms are ours, which it passes; before products are"),
  Step(MASKED_FILL, EVERY_ROUND, "before the scatters are ours: what becomes a Where needs no operator of ours"),
  Step(UPDATE_SLICE, EVERY_ROUND, "before the other scatters, whose indices shed what shows how long a slice is"),
  Step(FUSE_SCATTER, EVERY_ROUND, "after the slices, which are scatters too"),
  Step(SCATTER_TRANSPOSE, EVERY_ROUND, "after the slices and the scatters, since it knows our operators only"),
  Step(NESTED_SLICES, EVERY_ROUND, "after Transposes between the slices are gone"),
  Step(NARROW_CONCAT, EVERY_ROUND, "before the layout is chosen, which sees the Concats that run then"),
  Step(DEAD_NODES, BEFORE_PRECISION, "after what cuts nodes off"),
  Step(FUSE_LSTM, QUIET_ROUND | GPU, "once initial states and the shapes of views are constant"),
  Step(LSTM_TO_TF32, QUIET_ROUND | FLOAT32 | ROUNDS, "beside it"),
  Step(SCALED_QUERIES, EVERY_ROUND, "before attention, which has one factor for all heads"),
  Step(SCALED_MASKS, QUIET_ROUND, "once masks are constant; before attention, which scales before it masks"),
  Step(FUSE_ATTENTION, QUIET_ROUND, "once masks and the shapes of views are constant"),
  Step(ATTENTION_FLOAT32, QUIET_ROUND | FLOAT32, "beside it"),
  Step(ATTENTION_CACHE, EVERY_ROUND, "after attention, which reads it; before rotation, which its rows have had"),
  Step(ROTATED_ROWS, EVERY_ROUND, "after attention, whose Q and K it makes what attention-rotary knows"),
  Step(ATTENTION_ROTARY, EVERY_ROUND, "after attention, whose Q and K it knows, before what it lets read one tensor"),
  Step(MERGE_PRODUCTS, EVERY_ROUND, "after attention, which says how it reads the products"),
  Step(NORMED_PRODUCTS, EVERY_ROUND, "beside it"),
  Step(BATCH_NORM_POINTWISE, BEFORE_PRECISION | QUIET_ROUND, "of those that no weights have taken in"),
  Step(FUSE_CONV, BEFORE_PRECISION | QUIET_ROUND, "after all that looks for a Conv"),
  Step(ALLOW_TF32, TF32, "before the layout of what TF32 makes fast is chosen"),
  Step(FORBID_TF32, EXACT, "before the layout too"),
  Step(WINDOWS_LAST, EVERY_ROUND, "just before the layout is chosen, which takes one of its Transposes away"),
  Step(CHANNELS_LAST, EVERY_ROUND, "before the epilogues, which it lets read what else is NHWC"),
  Step(POOL_PRECISION, EVERY_ROUND, "of the pools that are NHWC then, before the Casts are drawn into others"),
  Step(FUSE_RESIZE, QUIET_ROUND, "of the Resizes that stayed NCHW"),
  Step(MATMUL_TO_CONV, EVERY_ROUND, "once convolutions are NHWC, which it needs beside it"),
  Step(GEMM_TO_CONV, EVERY_ROUND, "once convolutions are NHWC, which it needs beside it"),
  Step(IMAGE_INPUT, EVERY_ROUND, "after the layouts are decided, of which it takes a Transpose"),
  Step(CONV_EPILOGUE, EVERY_ROUND, "before what it draws in is fused on its own"),
  Step(VECTOR_CONV_TRANSPOSE, EVERY_ROUND, "with its epilogue, which the Reshape after it would keep away"),
  Step(TURN_CONV_TRANSPOSE, EVERY_ROUND, "with its epilogue, which decides; after what knows a better form of it"),
  Step(IMAGE_OUTPUT, QUIET_ROUND, "with its epilogue, which it ends"),
  Step(LONE_SPLIT, QUIET_ROUND, "after attention, which reads parts itself; before the Transposes around it"),
  Step(TRANSPOSE_VIEWS, QUIET_ROUND, "what is left of vectors after the layout is chosen"),
  Step(ATTENTION_VIEWS, QUIET_ROUND, "after the layout is chosen, which puts Transposes beside attention"),
  Step(COL2IM_TO_GATHER, QUIET_ROUND, "before the Pads of rows, one of which it makes"),
  Step(PADDED_ORDER, QUIET_ROUND, "of the Transposes around Pads that remain; it leaves the Pad of a row"),
  Step(FLAT_PAD, QUIET_ROUND, "after the layout is chosen, which knows a Pad's axes"),
  Step(ROW_ORDER, QUIET_ROUND, "after attention and layouts, which read the steps; before views of products"),
  Step(OUTER_PRODUCT, QUIET_ROUND, "after attention, whose products may have one column; before products are ours"),
  Step(MATMUL_TO_FUSED, QUIET_ROUND, "once all that looks for a MatMul or Gemm has had it, convolutions included"),
  Step(MATMUL_FLOAT32, QUIET_ROUND | FLOAT32, "beside it"),
  Step(PATCHES_TO_MATMUL, EVERY_ROUND, "once convolutions have their layout and epilogue"),
  Step(MATMUL_VIEWS, EVERY_ROUND, "before the epilogues, which views keep away"),
  Step(BATCH_FIRST, EVERY_ROUND, "before the epilogues, which Transposes keep away"),
  Step(MATMUL_EPILOGUE, EVERY_ROUND, "before norms and FusedPointwise take what it draws in"),
  Step(CHANNEL_PRODUCTS, EVERY_ROUND, "with the epilogues before the Transpose; what is behind it is drawn in then"),
  Step(SPLIT_PRODUCTS, EVERY_ROUND, "with the epilogue before the Split; what is behind it is drawn in then"),
  Step(PERMUTED_WEIGHTS, QUIET_ROUND, "of the Transposes that layouts leave; of what no view keeps away any more"),
  Step(EARLY_TRANSPOSE, QUIET_ROUND, "of the Transposes that neither layouts nor attention nor products take in"),
  Step(NORM_PROLOGUE, QUIET_ROUND, "after products and convolutions, whose result is the sum then, written once"),
  Step(FUSE_CONV_GRAD, EVERY_ROUND, "before sums and pointwise operators take what makes a gradient"),
  Step(ANY_TO_SUM, EVERY_ROUND, "before the sums that it makes are joined with what makes the summands"),
  Step(SLOW_SUMS, QUIET_ROUND | GPU, "once norms are ours; before sums are joined with what is around them"),
  Step(FUSE_SUM_TO, QUIET_ROUND, "before other pointwise operators take what makes the summands"),
  Step(POINTWISE_VIEWS, QUIET_ROUND, "before what it brings together is fused"),
  Step(FUSE_POINTWISE, QUIET_ROUND, "after all that take pointwise operators into others"),
  Step(LONE_POINTWISE, QUIET_ROUND, "last of these: what found no neighbour"),
  Step(NORM_ORDER, QUIET_ROUND | GPU, "after all that looks for norms or views; before Transposes are hidden"),
  Step(GATED_PRODUCTS, QUIET_ROUND | GPU, "after all that looks for products alone"),
  Step(NORM_MATMUL, QUIET_ROUND | GPU, "before a norm goes to the product in front of it: of few rows that gains less"),
  Step(MATMUL_NORM, QUIET_ROUND | GPU, "after all that looks for products or norms, orders of rows included"),
  Step(FUSE_TRANSPOSE, QUIET_ROUND | GPU, "last: it hides Transposes from all that look for them"),
)


def stage_of(step: Pass) -> Stage:
  """The stage of a line; of a pass that is in no line every round."""
  return step.stage if isinstance(step, Step) else EVERY_ROUND


# What runs by default, and what `only` and `skip` choose from.
PIPELINE: tuple[Pass, ...] = tuple(step for step in TABLE if not stage_of(step) & (TF32 | EXACT))

# What else can be left out by name, and what it does.
BESIDES = {
  INLINE_FUNCTIONS: "calls of local functions become the functions' bodies, before all passes",
  ALLOW_TF32.name: f"{ALLOW_TF32.summary}, with --precision tf32",
  FORBID_TF32.name: f"{FORBID_TF32.summary}, with --precision fp32",
}
LAYOUTS = ("auto", "nchw", "nhwc")


def select_passes(
  only: Iterable[str] | None = None,
  skip: Iterable[str] | None = None,
  layout: str = "auto",
  tf32: bool | None = None,
  gpu: bool = False,
) -> tuple[Pass, ...]:
  """The passes of PIPELINE that `only` names (None: all) and `skip` does not. UsageError on an unknown name.

  `skip` may name what stands in BESIDES, too.

  `layout`: of convolutions, one of LAYOUTS: "auto" has them NHWC (channels last) where that is faster, in float16,
  bfloat16 and float32, of which no groups where TF32 is forbidden, with `gpu` also what is slow so on a CPU; "nchw"
  leaves out the pass that does it, "nhwc" does it in every dtype. `gpu` also has group norms fused, and depthwise
  convolutions merged, that are slower so on a CPU.

  `tf32`: with the passes that allow TF32 (True) or forbid it (False), whatever `only` names.
  """
  if layout not in LAYOUTS:
    raise UsageError(f"there is no layout {layout!r}; it is one of {', '.join(LAYOUTS)}")
  known = [step.name for step in TABLE if not stage_of(step) & (TF32 | EXACT)]
  chosen = None if only is None else list(only)
  left_out = list(skip or ())
  for name in [*(chosen or ()), *(name for name in left_out if name not in BESIDES)]:
    if name not in known:
      raise UsageError(f"there is no pass '{name}'{near_names(name, known)} (--list-passes shows them)")
  left_out += [CHANNELS_LAST.name, WINDOWS_LAST.name] if layout == "nchw" else []

  def runs(step: Pass) -> bool:
    stage = stage_of(step)
    is_named = chosen is not None and step.name in chosen
    fits = (
      (ROUNDS not in stage or tf32 is not False)
      and (FLOAT32 not in stage or gpu or tf32 is True or is_named)
      and (GPU not in stage or gpu or is_named)
    )
    is_chosen = (chosen is None or is_named) and fits
    wanted = tf32 is (TF32 in stage) if stage & (TF32 | EXACT) else is_chosen
    return wanted and step.name not in left_out

  return tuple(_for(step, layout, gpu, tf32) for step in TABLE if runs(step))


def _for(step: Pass, layout: str, gpu: bool, tf32: bool | None) -> Pass:
  """The step in the form for this layout, this kind of machine and TF32."""
  last = CHANNELS_LAST_ALWAYS if layout == "nhwc" else CHANNELS_LAST_ON_GPU if gpu else CHANNELS_LAST
  forms: dict[str, Pass] = {
    CHANNELS_LAST.name: last,
    ATTENTION_FLOAT32.name: ATTENTION_EXACT if tf32 is False else ATTENTION_FLOAT32,
    FUSE_GROUP_NORM.name: FUSE_GROUP_NORM_ON_GPU if gpu else FUSE_GROUP_NORM,
    COL2IM_TO_GATHER.name: COL2IM_TO_GATHER_ON_GPU if gpu else COL2IM_TO_GATHER,
    MERGE_DEPTHWISE.name: MERGE_DEPTHWISE_ON_GPU if gpu else MERGE_DEPTHWISE,
  }
  return replace(step, rewrite=forms[step.name]) if isinstance(step, Step) and step.name in forms else step


def make_stages(passes: Sequence[Pass], request: Request, io: bool) -> tuple[tuple[Pass, ...], ...]:
  """What runs one after the other: passes before a conversion, the conversion, all passes; for TF32 one stage."""
  if not request.target.sources:
    return (tuple(passes),)
  before = tuple(step for step in passes if BEFORE_PRECISION in stage_of(step) and request.target.narrows)
  return (before, (ConvertPrecision(request, io),), tuple(passes))
