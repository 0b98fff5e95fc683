import numpy as np
from onnx_models import one_in, parametrize, parsed

import ortplugin
from fuzz.corpus import corpus, from_text
from fuzz.handmade import case_of
from fuzz.judge import Judge
from fuzz.providers import Provider
from fuzz.reference import Reference
from ortplugin.program import NUMPY_DTYPES

MODEL = parsed("""model (float[1,2,2,2] x) => (y, int64[4] s) <float[2,1,1,1] w = {1,2}>
    { c = Conv <group=2, kernel_shape=[1,1]>(x, w)  y = Sigmoid(c)  s = Shape(y) }""")
NORM = parsed("""model (float[1,2,2,2] x) => (y, int64[4] s) <float[2] w = {1,2}>
    { y = LayerNormalization(x, w)  s = Shape(y) }""")


CLIPPED = parsed("""model (float[1,2,2,2] x) => (y, int64[4] s)
    <float[2,1,1,1] w = {1,2}, float low = {0}, float high = {6}>
    { c = Conv <group=2, kernel_shape=[1,1]>(x, w)  y = Clip(c, low, high)  s = Shape(y) }""")

ROOTED = parsed("""model (float[1,2,2,2] x) => (y, r)
    <float[2,1,1,1] w = {1,2}, float low = {0}, float high = {6}>
    { c = Conv <group=2, kernel_shape=[1,1]>(x, w)  y = Clip(c, low, high)  r = Sqrt(x) }""")


class Gpu(Provider):
  """Gives `wrong` for some elements of y, by their names in `problem`."""

  is_cpu = False

  def __init__(self, wrong):
    self.wrong = wrong

  def run(self, session, feeds):
    outputs = super().run(session, feeds)
    for name, value in self.wrong.items():
      outputs["y"].ravel()[int(name[1:])] = value
    return outputs


def problem(model, first, when_finite=True, **changes):
  """Of outputs that differ from the right ones at the elements `e0`, `e1`, ..

  `when_finite`: they do so on any input, not only on those that are infinite or NaN.
  """
  feeds = {"x": np.float32([first, 1, 2, 3, -1, -2, -3, 0.5]).reshape(1, 2, 2, 2)}
  case = case_of(model, feeds)
  reference = Reference(case, feeds)
  got = {name: np.array(value) for name, value in reference.wanted.items()}
  for name, value in changes.items():
    got["y"].ravel()[int(name[1:])] = value
  return Judge(Gpu(changes if when_finite else {})).problem(case, reference, ortplugin.optimize(model)[0], got)


@parametrize("first", [np.inf, np.nan])
def test_only_what_is_not_finite_is_left_open(first):
  assert problem(MODEL, first) is None
  assert problem(MODEL, first, e5=np.nan) is None
  assert problem(MODEL, first, e6=0.75) is not None


@one_in(0)
def test_what_is_finite_to_begin_with_stays_so():
  assert problem(MODEL, 0.0) is None
  assert problem(MODEL, 0.0, e5=np.nan) is not None
  assert problem(MODEL, 0.0, e5=0.75) is not None


@one_in(0)
def test_other_operators_have_nothing_open():
  assert problem(NORM, np.nan) is None
  assert problem(NORM, np.nan, e5=np.nan) is not None


@one_in(3)
@parametrize("first", [np.inf, np.nan])
@parametrize("model", [CLIPPED, ROOTED])
def test_what_an_operator_made_finite_is_judged_on_finite_inputs(library, model, first):
  """Behind a Clip an infinity that spread is a 6, as wrong as any other number. A root of -1 elsewhere is NaN."""
  assert problem(model, first, when_finite=False, e5=0.25) is None
  assert problem(model, first, when_finite=True, e5=0.25) is not None
  assert model is ROOTED or problem(model, 0.0, when_finite=False, e5=0.25) is not None
  assert problem(CLIPPED, first, when_finite=True, e5=np.nan) is None
  assert problem(CLIPPED, 0.0, when_finite=True, e5=np.nan) is not None


class Changed(Provider):
  def __init__(self, element, value):
    self.element, self.value = element, value

  def run(self, session, feeds):
    h = np.array(super().run(session, feeds)["h"])
    h[self.element] = self.value
    return {"h": h}


@one_in(0)
@parametrize("restored", [False, True])
def test_what_a_mask_makes_of_an_infinite_score_is_open(library, restored):
  case = from_text(corpus()["infinite-score-under-a-filled-mask"])
  made = ortplugin.optimize(case.model, **case.options)[0]
  made = ortplugin.restore(made) if restored else made

  def problem(first, element, value):
    """Of a row that a mask fills whole, the third, whose score's factor is `first`, and its neighbours."""
    ones = np.ones((5, 1, 1, 1), np.float32)
    feeds = {"x": np.arange(5).reshape(5, 1, 1, 1) != 3, "a": ones.copy(), "b": ones * 2, "c": ones}
    feeds["a"][3] = first
    reference, provider = Reference(case, feeds), Changed(element, value)
    got = {"h": reference.wanted["h"].astype(NUMPY_DTYPES["bfloat16"])}
    got["h"][element] = value
    return Judge(provider).problem(case, reference, made, got, restored=restored)

  assert problem(np.inf, 3, np.nan) is None
  assert problem(np.inf, 2, 7.0) is not None
  assert problem(1.0, 3, np.nan) is not None
