"""The contract of a pass: it sees a graph, changes it in place and returns what it changed.

A pass prints nothing and keeps no state. It makes at most `limit` changes (None: as many as there are) in an order that
depends on the model alone, so that the optimizer can find a guilty rewrite by bisection over the number of changes. It
enters the bodies of If, Loop and Scan. It is idempotent: called again on its own output it changes nothing.
"""

from dataclasses import dataclass
from typing import Protocol

import onnx_graphsurgeon as gs


@dataclass(frozen=True)
class Change:
  """One rewrite that was applied."""

  rewrite: str  # the pass's name, e.g. "fuse-layer-norm"
  nodes: tuple[str, ...]  # labels of the nodes it replaced: 'name (OpType)'
  result: str  # label of the node that stands there now, "" if none


@dataclass(frozen=True)
class NearMiss:
  """A place where a rewrite almost fired."""

  rewrite: str  # the pass's name
  node: str  # label of the node where the match failed
  reason: str  # with the value that failed, e.g. "the axes [1] are not the trailing ones"


@dataclass(frozen=True)
class PassResult:
  """What one call of a pass did."""

  changes: tuple[Change, ...]
  near_misses: tuple[NearMiss, ...] = ()


class Pass(Protocol):
  """Anything callable on a graph with a name and a summary."""

  @property
  def name(self) -> str:
    """In kebab-case: what --only, --skip and --list-passes use."""

  @property
  def summary(self) -> str:
    """One line for --list-passes."""

  def __call__(self, graph: gs.Graph, limit: int | None = None) -> PassResult:
    """Changes `graph` in place, at most `limit` times."""
