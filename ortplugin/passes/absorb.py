"""How an operator of ours draws in what is pointwise beside it, whatever its core is.

    s = Add(x, r); n = FusedLayerNorm(s); y = Relu(n)      becomes      y = FusedLayerNorm(x, r)

A Core says what an operator is and which neighbours it takes. Reading it, trying its neighbours one after another,
keeping the graph free of cycles, composing the programs and replacing the nodes are the same for all. Convolutions and
matrix products look further ahead than one neighbour: Gelu written out reads a value twice, and only whole leaves one
value again. `chain_of` walks on from what they make, `drawn` reads what it meets, and they say where it may end.
"""

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
import onnx_graphsurgeon as gs

from ..graph import DOMAIN, NotPointwiseError, Scope, label, show
from ..program import FLOATING, MAX_PARAMETERS, MAX_STATEMENTS, Program, ProgramError, fresh_name
from .driver import Applied, Missed, Outcome, replaced
from .members import Member, compose, member_of, read_fused

FAR = 64  # operators that a chain looks at, at most, for a place where it may end
DTYPES = (*FLOATING, "bool")  # of what an epilogue reads and makes

Chain = tuple[list[Member], list[gs.Tensor], list[Missed]]
"""Its members in order, the values that they make for others, and why there is no more."""


class Core:
  """An operator whose program stands around, before or behind something that is not pointwise, its core.

  It is a rule (driver.py): joins a node of the operator with the first of its neighbours that may be part of it.

  operators: its names in our domain. called: what reasons call it.
  statements: the core's operators in the program. None: the core stands outside. Its value is the program's first
      parameter, or with `prologue` the first result is what it reads; a tensor without a name stands for either.
  prologue: whether it takes what is before the core.
  cycle: the reason where '{tensor}', which the later of two, {late}, reads, depends on {early}, which {kept} needs.
  """

  operators: tuple[str, ...] = ()
  called = ""
  statements: tuple[str, ...] = ()
  prologue = True
  cycle = "'{tensor}', which the one reads, depends on the other, {early}"

  def own(self, node: gs.Node) -> tuple[int, int]:
    """How many inputs and outputs of a node come before those of its program."""
    return 0, 0

  def read(self, scope: Scope, node: gs.Node) -> Member | None:
    """The node as a program; None for another operator, and for an invalid node."""
    if node.op not in self.operators or scope.op(node) != f"{DOMAIN}::{node.op}":
      return None
    first_input, first_output = self.own(node)
    if len(node.inputs) < max(1, first_input) or len(node.outputs) < first_output:
      return None
    inputs, outputs = list(node.inputs[first_input:]), list(node.outputs[first_output:])
    if not self.statements:
      dtype = node.inputs[0].dtype
      value = gs.Variable("", None if dtype is None else np.dtype(dtype))
      (outputs if self.prologue else inputs).insert(0, value)
    try:
      member = read_fused(node, inputs, outputs)
    except ProgramError:
      return None  # the runtime names the fault
    cores = member.program.cores
    known = all(each.op in self.statements for each in cores) and bool(cores) == bool(self.statements)
    return member if known else None

  def neighbours(self, scope: Scope, first: Member) -> Iterable[gs.Node]:
    """Who is tried, in order: who makes what the program reads."""
    return [maker for tensor in first.inputs if (maker := scope.producer(tensor)) is not None]

  def member(self, scope: Scope, first: Member, node: gs.Node) -> Member | None:
    """A neighbour as a program that keeps the value's shape; None if it has no business here.

    Raises NotPointwiseError or ProgramError where it is a near miss.
    """
    return member_of(scope, node)

  def results(self, scope: Scope, first: Member, other: Member) -> list[gs.Tensor]:
    """What the two give out as one: what reads the core's values in place of the first that nobody else reads."""
    if scope.position[id(first.node)] < scope.position[id(other.node)]:
      made = [t if scope.used_beyond(t, [other.node]) else other.outputs[0] for t in first.outputs]
      found = [*made, *other.outputs]
    else:
      nodes = [first.node, other.node]
      found = [*first.outputs, *(tensor for tensor in other.outputs if scope.used_beyond(tensor, nodes))]
    return list({id(tensor): tensor for tensor in found}.values())

  def node_of(self, first: Member, program: Program, inputs: Sequence[gs.Tensor]) -> gs.Node:
    """The node with another program, whose parameters stand for `inputs`; without outputs."""
    node, own = first.node, self.own(first.node)[0]
    operands = inputs if self.statements or self.prologue else inputs[1:]
    attributes = {**node.attrs, "program": str(program)}
    return gs.Node(node.op, node.name, attributes, [*node.inputs[:own], *operands], [], DOMAIN)

  def make(
    self, scope: Scope, first: Member, other: Member, results: list[gs.Tensor]
  ) -> tuple[gs.Node, list[gs.Tensor]]:
    """The node that the two become, and the outputs that it takes over; it has none yet."""
    return self.node_of(first, *compose(in_order(scope, [first, other]), results)), results

  def __call__(self, scope: Scope, node: gs.Node) -> Outcome:
    """Joins the node with a neighbour, or says why with none of them."""
    if (first := self.read(scope, node)) is None:
      return None
    misses: list[Missed] = []
    for each in self.neighbours(scope, first):
      try:
        if (other := self.member(scope, first, each)) is not None:
          return self._join(scope, first, other)
      except (NotPointwiseError, ProgramError) as reason:
        misses.append(Missed(each, str(reason)))
    return misses

  def _join(self, scope: Scope, first: Member, other: Member) -> Applied:
    early, late = in_order(scope, [first, other])
    a, b = early.node, late.node
    kept = next((used for t in early.outputs if (used := scope.used_beyond(t, [a, b]))), "")
    # What it reads beside its program is not made there. Of the rest no path may leave the two and come back.
    beside = b.inputs[: self.own(b)[0]] if late is first else []
    for tensor in (*beside, *(t for t in late.inputs if kept and scope.producer(t) is not a)):
      if scope.depends_on(tensor, a):
        names = {"tensor": tensor.name, "early": label(a), "late": label(b), "kept": kept}
        raise NotPointwiseError(self.cycle.format(**names))
    new, outputs = self.make(scope, first, other, self.results(scope, first, other))
    return replaced(scope, [a, b], new, outputs)

  def check_operand(self, scope: Scope, node: gs.Node, tensor: gs.Tensor, whole: gs.Tensor, fits: bool) -> None:
    """Raises NotPointwiseError where what reads the value of `node` can't join because of `tensor`, which it reads
    besides. `fits`: that it does not enlarge the value, which has the shape of `whole`.
    """
    if not fits:
      shapes = f"{show(scope.shape(tensor))} does not surely broadcast to {show(scope.shape(whole))}"
      raise NotPointwiseError(f"'{tensor.name}' of shape {shapes}")
    if scope.depends_on(tensor, node):
      raise NotPointwiseError(f"'{tensor.name}', which it also reads, depends on {self.called}")


def in_order(scope: Scope, members: Iterable[Member]) -> list[Member]:
  """The members as their nodes stand in the graph: who makes a value before who reads it."""
  return sorted(members, key=lambda each: scope.position[id(each.node)])


def needed(scope: Scope, members: Sequence[Member]) -> list[gs.Tensor]:
  """What the members make and something else needs."""
  nodes = [member.node for member in members]
  return [tensor for member in members for tensor in member.outputs if scope.used_beyond(tensor, nodes)]


# What looks further ahead than one neighbour.


def chain_of(
  scope: Scope,
  first: Member,
  draw: Callable[[gs.Node, list[Member]], Member | None],
  may_end: Callable[[list[gs.Tensor], list[gs.Tensor]], bool],
) -> Chain:
  """`first` and what it draws in, in order; what they make for others; why there is no more.

  `draw`: a node as one more member behind those before it, None if it has no business there; raises NotPointwiseError
  or ProgramError with the reason where it is a near miss. `may_end`: whether a chain may leave values for
  others, the first list, where a shorter one could leave those of the second. The longest that may end is taken.
  """
  members, misses = [first], []
  best, outputs = 1, needed(scope, members)
  queue: list[int] = []  # the places of what reads the chain's values; topological order, so makers come first
  seen: set[int] = set()

  def follow(tensors: tuple[gs.Tensor, ...]) -> None:
    for place in (scope.position[id(node)] for tensor in tensors for node in scope.consumers(tensor)):
      if place not in seen:
        seen.add(place)
        heapq.heappush(queue, place)

  follow(first.outputs)
  while queue and len(members) < FAR:
    node = scope.slots[heapq.heappop(queue)]
    assert node is not None
    try:
      member = draw(node, members)
    except (NotPointwiseError, ProgramError) as reason:
      misses.append(Missed(node, str(reason)))
      continue
    if member is None:
      continue
    members.append(member)
    left = needed(scope, members)
    if member.program.statements and left and may_end(left, outputs) and _fits(members):
      best, outputs = len(members), left
    follow(member.outputs)
  left_out = [member for member in members[best:] if member.program.statements]
  if left_out:
    kept = [member.node for member in (*members[:best], left_out[0])]
    used = next((u for each in members[:best] for t in each.outputs if (u := scope.used_beyond(t, kept))), "")
    misses.append(Missed(kept[-1], used or "together with what is before it, it exceeds a program's limits"))
  return members[:best], outputs, misses


def drawn(
  scope: Scope,
  core: Core,
  node: gs.Node,
  members: list[Member],
  fit: Callable[[gs.Tensor, list[gs.Tensor]], tuple[bool, bool]],
) -> Member | None:
  """The node as one more member of a chain; None if it is not pointwise.

  `fit`: of an operand, and of what the node reads of the chain, whether the operand does not enlarge the value, and
  whether it has its shape. Raises NotPointwiseError or ProgramError with the reason why the node can't be one.
  """
  if scope.op(node) == "Identity":  # remove-identities takes it; here it would be a Cast, a program of its own
    return None
  if (member := member_of(scope, node)) is None:
    return None
  # A program has no value that nothing reads, and dead-nodes may be left out: ask before a value is one of a program.
  unread = next((each for each in node.outputs if not each.outputs and not scope.is_output(each)), None)
  if unread is not None:
    raise NotPointwiseError(f"nothing reads '{unread.name}'")
  first = members[0].node
  made = {id(tensor) for each in members for tensor in each.outputs}
  inside = [tensor for tensor in member.inputs if id(tensor) in made]
  names: dict[str, str] = {}
  for parameter, tensor in zip(member.program.parameters, member.inputs, strict=True):
    if id(tensor) in made:
      if parameter.name in member.rounded:
        raise NotPointwiseError(f"'{tensor.name}' has to be rounded to {parameter.dtype} before it")
      continue
    fits, same = fit(tensor, inside)
    core.check_operand(scope, first, tensor, first.outputs[0], fits)
    if same:
      names[parameter.name] = fresh_name("residual", [*member.program.dtypes, *names.values()])
  program = member.program.renamed(names)
  for each in (*program.parameters, *program.results):
    if each.dtype not in DTYPES:
      raise NotPointwiseError(f"it has a value of {each.dtype}; an epilogue knows {', '.join(DTYPES)}")
  return replace(member, program=program)


def _fits(members: list[Member]) -> bool:
  """Whether one program can hold them."""
  made = {id(tensor) for member in members for tensor in member.outputs}
  read = {id(tensor) for member in members for tensor in member.inputs} - made
  statements = sum(len(member.program.statements) for member in members)
  return len(read) <= MAX_PARAMETERS and statements <= MAX_STATEMENTS
