"""What a caller of the optimizer asks for, in one record."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..errors import UsageError
from ..model.input_shapes import Shapes
from ..model.storage import PathLike
from ..precision import Precision, resolve
from ..session import CUDA, gpu_count

Progress = Callable[[str], None]


def _say_nothing(text: str) -> None:
  pass


@dataclass(frozen=True)
class Options:
  """The arguments of `ortplugin.optimize`, which says what each means."""

  only: Sequence[str] | None = None
  skip: Sequence[str] = ()
  layout: str = "auto"
  input_shapes: Shapes | None = None
  verify: bool = False
  drop_guilty: bool = False
  keep_faster: bool = False
  tune: bool = False
  profile: bool = False
  providers: Sequence[str] | None = None
  device_id: int = 0
  inputs: Mapping[str, object] | PathLike | None = None
  rtol: float | None = None
  atol: float | None = None
  limit: int | None = None
  precision: str | None = None
  precision_io: bool = False
  precision_skip: Sequence[str] = ()
  tell: Progress = _say_nothing

  def target(self) -> Precision | None:
    """The precision to convert to, if any. UsageError where there is none of that name, or no use for the rest."""
    target = None if self.precision is None else resolve(self.precision)
    if target is None and (self.precision_io or self.precision_skip):
      raise UsageError("precision_io and precision_skip are about a conversion; say to which precision")
    if target is not None and not target.sources and (self.precision_io or self.precision_skip):
      raise UsageError("the precision 'tf32' changes no dtype, so precision_io and precision_skip do not go with it")
    return target

  def is_for_gpu(self, narrow: bool = False) -> bool:
    """Whether a GPU runs the result: the CUDA provider is named, or none is and this machine has one.

    `narrow`: the result has 16 bits or TF32, which without a word of a provider are for a GPU as well.
    """
    if self.providers is None:
      return narrow or gpu_count() > 0
    return any(each.lower() in ("cuda", CUDA.lower()) for each in self.providers)

  def check(self) -> None:
    """UsageError where arguments contradict each other."""
    if self.drop_guilty and not self.verify:
      raise UsageError("drop_guilty is about the verification; it needs verify=True")
    if self.keep_faster and not self.verify:
      raise UsageError("keep_faster goes by the times that the verification takes; it needs verify=True")
    self.target()
    if self.limit is not None and self.limit < 0:
      raise UsageError(f"the limit {self.limit} is negative; give the number of changes to make")
