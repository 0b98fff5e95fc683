"""The regions of a graph that rewrites took: which original nodes became which node, over all rewrites of one place."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from ..ops import OPERATORS
from ..passes.base import Change

_OURS = tuple(f"({operator.name})" for operator in OPERATORS)


@dataclass
class Region:
  """Labels of original nodes, in the order in which rewrites took them, and how often each rewrite changed them."""

  result: str  # the label of the node that stands there now; "" where nothing is left
  nodes: list[str] = field(default_factory=list)
  rewrites: Counter[str] = field(default_factory=Counter)

  @property
  def kind(self) -> str:
    """Fused into an operator of ours, replaced by another of standard ONNX, or removed."""
    return "fused" if is_ours(self.result) else "replaced" if self.result else "removed"


def is_ours(label: str) -> bool:
  """Whether the label is of an operator of the library."""
  return label.endswith(_OURS)


def find_regions(changes: Sequence[Change], before: Collection[str], after: Collection[str]) -> list[Region]:
  """The regions, in the order of their last change.

  A node that a change names stays where a later change names it or the result has it, as where a layout changes.

  Args:
      changes: all, in the order in which they were made.
      before: labels of the original's nodes; what rewrites made and took again is no part of a region.
      after: labels of the result's nodes.
  """
  last = {label: index for index, change in enumerate(changes) for label in change.nodes}
  standing: dict[str, Region] = {}
  removed: list[Region] = []
  for index, change in enumerate(changes):
    region = Region(change.result, rewrites=Counter([change.rewrite]))
    for label in dict.fromkeys((*change.nodes, change.result)):
      if label != change.result and (label in after or last[label] > index):
        if label in standing:
          standing[label].rewrites[change.rewrite] += 1
      elif label in standing:
        other = standing.pop(label)
        region.nodes += [node for node in other.nodes if node not in region.nodes]
        region.rewrites += other.rewrites
      elif label in before and label not in region.nodes:
        region.nodes.append(label)
    if change.result:
      standing[change.result] = region
    else:
      removed.append(region)
  return [region for region in (*standing.values(), *removed) if region.nodes]
