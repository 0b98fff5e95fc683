"""Nodes whose outputs nothing reads are removed, and what only they needed with them."""

import onnx_graphsurgeon as gs

from ...graph import Scope, label
from ..driver import Applied, Outcome, RulePass
from .determinism import is_random

# Operators of other domains may do more than compute their outputs.
DOMAINS = ("com.microsoft", "ortplugin")


def remove_dead(scope: Scope, node: gs.Node) -> Outcome:
  """Removes the node if it is dead, and every node that thereby becomes so."""
  if not is_dead(scope, node):
    return None
  labels: list[str] = []
  waiting = [node]
  while waiting:
    dead = waiting.pop()
    if id(dead) not in scope.position:
      continue
    producers = [scope.producer(tensor) for tensor in dead.inputs]
    labels.append(label(dead))
    scope.remove(dead)
    waiting.extend(each for each in producers if each is not None and is_dead(scope, each))
  return Applied(tuple(labels), None)


def is_dead(scope: Scope, node: gs.Node) -> bool:
  """Whether nothing reads the node's outputs and it has no other effect."""
  op = scope.op(node)
  if not op or ("::" in op and op.split("::")[0] not in DOMAINS) or is_random(node):
    return False
  return bool(node.outputs) and not any(t.outputs or scope.is_output(t) for t in node.outputs if not t.is_empty())


DEAD_NODES = RulePass("dead-nodes", "nodes whose outputs nothing reads are removed", remove_dead)
