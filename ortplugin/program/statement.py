"""The parts of a program: typed names and statements."""

from dataclasses import dataclass

from .attributes import as_attribute, complete_attributes
from .operators import OPERATORS, AttributeValue, OperatorSpec
from .printing import Operand, attribute_text, operand_text


@dataclass(frozen=True)
class Parameter:
  """A typed name: a parameter (one of the node's inputs) or a result (one of its outputs)."""

  dtype: str
  name: str

  def __str__(self) -> str:
    return f"{self.dtype} {self.name}"


@dataclass(frozen=True)
class Statement:
  """`name = op<attributes>(operands)`; attributes left out take their defaults, in the order of the table."""

  name: str
  op: str
  operands: tuple[Operand, ...]
  attributes: tuple[tuple[str, AttributeValue], ...] = ()

  def __post_init__(self) -> None:
    object.__setattr__(self, "attributes", complete_attributes(self.op, self.attributes, self.name))

  @property
  def spec(self) -> OperatorSpec:
    """The operator's row of the table."""
    return OPERATORS[self.op]

  def attribute(self, name: str) -> AttributeValue:
    """The value of one attribute, its default if it was left out."""
    return dict(self.attributes)[name]

  def number(self, name: str) -> float:
    """The value of an attribute that is a number."""
    value = self.attribute(name)
    assert not isinstance(value, str)
    return value

  @property
  def names(self) -> tuple[str, ...]:
    """The operands that are names, not literals."""
    return tuple(operand for operand in self.operands if isinstance(operand, str))

  def __str__(self) -> str:
    defaults = dict(self.spec.attributes)

    def differs(value: AttributeValue, default: AttributeValue | None) -> bool:
      return repr(value) != repr(default if default is None else as_attribute(default))  # -0 is not 0

    given = [f"{name}={attribute_text(value)}" for name, value in self.attributes if differs(value, defaults[name])]
    attributes = f"<{', '.join(given)}>" if given else ""
    operands = ", ".join(operand_text(operand) for operand in self.operands)
    return f"{self.name} = {self.op}{attributes}({operands})"
