"""Convolutions on tensor cores get their channels last, and with them all between them that can have that.

    y = FusedConv(x, w)     becomes     t = Transpose(x); u = FusedConv<layout = "NHWC">(t, v); y = Transpose(u)

and no Transpose stays between operators that work in either order. Which of these have channels last is decided at
once for each region of the graph, the operators that a convolution is connected to through them: where the order
changes, a tensor is transposed, and the cheapest division of the region (graph/min_cut.py) moves the fewest bytes. The
convolutions have channels last; the inputs and outputs of the graph, and operators that know channels first only, do
not. Transposes that the model has count as what they are: one of them may be what a region needs. A region
all of whose convolutions have an engine with channels first (conv/planes.py) stays as it is.

Weights are transposed here. After this pass no convolution is left for it to change.
"""

import onnx_graphsurgeon as gs

from ...graph import DOMAIN, Scope, label, labelled, scopes
from ..base import Change, NearMiss, PassResult
from ..conv.allow_tf32 import has_tensor_cores
from ..conv.fused import conv_dtype, is_channels_last, is_fused_conv
from ..conv.planes import is_plane
from .conv_grad import gradient_dtype
from .cut import Region, cheapest
from .plan import Layouts, Plan, is_perm, to_first, to_last
from .rules import rule_of

IMAGE_CHANNELS = 4  # at most: to put an image's colours in another order costs nothing in either layout
SLOW = (
  "in float32 its groups, spatial dimensions that are not two, or shuffle are slow with channels last on a CPU; "
  "optimize it for a GPU (--provider cuda) to have them so"
)


class ChannelsLast:
  """The pass; see the module."""

  name = "channels-last"
  summary = "convolutions on tensor cores (float16, bfloat16, TF32), and what is between them, have channels last"

  def __init__(self, always: bool = False, on_gpu: bool = False) -> None:
    """`always`: in every dtype. `on_gpu`: what is slow with channels last on a CPU, too."""
    self._always = always
    self._even_slow = always or on_gpu

  def __call__(self, graph: gs.Graph, limit: int | None = None) -> PassResult:
    """Changes the regions of the graph and its bodies, at most `limit` of them."""
    changes: list[Change] = []
    misses: list[NearMiss] = []
    for scope in scopes(graph):
      while limit is None or len(changes) < limit:
        regions, missed = self._regions(scope)
        if not regions:
          misses += missed
          break
        changes.append(self._change(scope, regions[0]))
      misses += self._ends(scope)
    return PassResult(tuple(changes), tuple(misses))

  def _wants(self, scope: Scope, node: gs.Node) -> bool:
    """Whether the node is a convolution, or one's gradients, that shall have channels last and has not."""
    dtype = conv_dtype(scope, node) if is_fused_conv(scope, node) else gradient_dtype(scope, node)
    if dtype is None or is_channels_last(node):
      return False
    return has_tensor_cores(node, dtype) or self._always

  def _regions(self, scope: Scope) -> tuple[list[Region], list[NearMiss]]:
    """The regions with a convolution that shall have channels last, in order of their first operator."""
    nodes = {place: node for place, node in enumerate(scope.slots) if node is not None}
    seeds = [place for place, node in nodes.items() if self._wants(scope, node)]
    if not seeds:
      return [], []
    plans = {place: plan for place, node in nodes.items() if (plan := rule_of(scope, node)) is not None}
    misses = [
      NearMiss(self.name, label(nodes[place]), "the rank or kernel of its weights, or of an operand, is unknown")
      for place in seeds
      if place not in plans
    ]
    parent = {place: place for place in plans}

    def find(place: int) -> int:
      while parent[place] != place:
        parent[place] = parent[parent[place]]
        place = parent[place]
      return place

    for place, plan in plans.items():
      for tensor in (nodes[place].inputs[index] for index in plan.reads):
        for other in _sharing(scope, tensor, plans):
          parent[find(other)] = find(place)
    found: dict[int, Region] = {}
    wanted = {find(place) for place in seeds if place in plans}
    for place, plan in plans.items():
      if find(place) in wanted:
        found.setdefault(find(place), Region()).plans[place] = plan
    for place in seeds:
      if place in plans:
        found[find(place)].seeds.append(place)
    regions = []
    for region in found.values():
      if not self._always and all(is_plane(scope, nodes[place]) for place in region.seeds):
        continue
      slow = next((nodes[place] for place in region.plans if _is_slow_on_a_cpu(scope, nodes[place])), None)
      if slow is None or self._even_slow or any(_asks_for_tensor_cores(scope, nodes[at]) for at in region.seeds):
        regions.append(region)
      else:
        misses.append(NearMiss(self.name, label(slow), SLOW))
    return regions, misses

  def _ends(self, scope: Scope) -> list[NearMiss]:
    """Operators beside ours that do not work with channels last, so that a Transpose stays between the two."""
    found = []
    for node in [each for each in scope.slots if each is not None and is_perm(scope, each, to_first)]:
      maker, readers = scope.producer(node.inputs[0]), scope.consumers(node.outputs[0])
      if maker is not None and maker.domain == DOMAIN and maker.attrs.get("layout") == "NHWC" and readers:
        reason = f"it has no form with channels last, so {label(maker)} has a Transpose after it"
        found.append(NearMiss(self.name, label(readers[0]), reason))
    return found

  def _change(self, scope: Scope, region: Region) -> Change:
    chosen = [(scope.slots[place], region.plans[place]) for place in cheapest(scope, region)]
    convolutions = [scope.slots[place] for place in region.seeds]
    labels = labelled(*(node for node in convolutions if node is not None))
    layouts = Layouts(scope)
    transposes: dict[int, gs.Node] = {}  # Transposes beside the region, some of which nothing needs any more
    for node, plan in chosen:
      assert node is not None
      for index in plan.reads:
        maker = scope.producer(node.inputs[index])
        if maker is not None and is_perm(scope, maker, to_first):
          transposes[id(maker)] = maker
        node.inputs[index] = layouts.last(node.inputs[index], node)
      old = [node.outputs[index] for index in plan.makes]
      plan.edit(layouts, node)
      for index, tensor in zip(plan.makes, old, strict=True):
        node.outputs[index] = layouts.made(tensor)
        for reader in [each for each in scope.consumers(tensor) if is_perm(scope, each, to_last)]:
          _skip(scope, reader, node.outputs[index])
    for maker in transposes.values():
      if not maker.outputs[0].outputs and not scope.is_output(maker.outputs[0]):
        scope.remove(maker)
    layouts.finish()
    return Change(self.name, labels, labels[0])


def _skip(scope: Scope, transpose: gs.Node, last: gs.Tensor) -> None:
  """Lets what reads a Transpose to channels last read what has them last already."""
  if scope.is_output(transpose.outputs[0]):
    transpose.op, transpose.attrs = "Identity", {}
    transpose.inputs[0] = last
    return
  scope.substitute(transpose.outputs[0], last)
  scope.remove(transpose)


def _sharing(scope: Scope, tensor: gs.Tensor, plans: dict[int, Plan]) -> list[int]:
  """The places of the operators that make or read the tensor with channels last, if they have them last."""
  found = []
  for node in (scope.producer(tensor), *scope.consumers(tensor)):
    place = -1 if node is None else scope.position[id(node)]
    if node is None or place not in plans:
      continue
    plan = plans[place]
    if any(node.outputs[i] is tensor for i in plan.makes) or any(node.inputs[i] is tensor for i in plan.reads):
      found.append(place)
  return found


def _is_slow_on_a_cpu(scope: Scope, node: gs.Node) -> bool:
  """Whether it is a float32 convolution that is up to 2.5 times as slow with channels last there (ShuffleNet), or a
  shuffle of channels (channel_shuffle.py), which is 20 times as slow: a Gather of single numbers, not of images."""
  if scope.op(node) == "Gather" and node.attrs.get("axis") == 1:
    shape = scope.shape(node.inputs[0])
    return shape is not None and len(shape) == 4 and isinstance(shape[1], int) and shape[1] > IMAGE_CHANNELS
  if not is_fused_conv(scope, node) or conv_dtype(scope, node) != "float":
    return False
  weights = scope.shape(node.inputs[1])
  groups = int(node.attrs.get("group", 1))
  return weights is None or len(weights) != 4 or (groups > 1 and weights[1] != 1)


def _asks_for_tensor_cores(scope: Scope, node: gs.Node) -> bool:
  """Whether the model has it run on a GPU's tensor cores, not just the session's default."""
  return bool(node.attrs.get("allow_tf32")) or (is_fused_conv(scope, node) and conv_dtype(scope, node) != "float")


CHANNELS_LAST = ChannelsLast()
CHANNELS_LAST_ON_GPU = ChannelsLast(on_gpu=True)
CHANNELS_LAST_ALWAYS = ChannelsLast(always=True)
