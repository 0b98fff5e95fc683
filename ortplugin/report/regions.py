"""The regions of a graph that rewrites took: which original nodes became which node, over all rewrites of one place."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from ortplugin.ops import OPERATORS
from ortplugin.passes.base import Change

FUSED, REPLACED, REMOVED = "fused", "replaced", "removed"
_OURS = tuple(f"({operator.name})" for operator in OPERATORS)


@dataclass
class Region:
    """Original nodes and what stands there now.

    Attributes:
        result: the label of that node; "" where nothing is left.
        nodes: labels of the original nodes, in the order in which rewrites took them.
        rewrites: how often each rewrite changed the region.
    """

    result: str
    nodes: list[str] = field(default_factory=list)
    rewrites: dict[str, int] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """FUSED into an operator of ours, REPLACED by another of standard ONNX, or REMOVED."""
        return FUSED if is_ours(self.result) else REPLACED if self.result else REMOVED

    def take(self, other: Region) -> None:
        """Makes the other region a part of this one."""
        self.nodes += [node for node in other.nodes if node not in self.nodes]
        for name, count in other.rewrites.items():
            self.rewrites[name] = self.rewrites.get(name, 0) + count


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
        region = Region(change.result, rewrites={change.rewrite: 1})
        for label in dict.fromkeys((*change.nodes, change.result)):
            if label != change.result and (label in after or last[label] > index):
                if label in standing:
                    standing[label].take(Region("", rewrites={change.rewrite: 1}))
            elif label in standing:
                region.take(standing.pop(label))
            elif label in before and label not in region.nodes:
                region.nodes.append(label)
        if change.result:
            standing[change.result] = region
        else:
            removed.append(region)
    return [region for region in (*standing.values(), *removed) if region.nodes]
