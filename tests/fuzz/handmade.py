"""Cases that tests write by hand, and what Judge says of them."""

from types import SimpleNamespace

from fuzz.generate import Case
from fuzz.judge import Judge


def case_of(model, *feeds, dtype="fp32", wide=None, checks=(), **options):
  return Case(0, dtype, model, wide, frozenset(), list(feeds), options, checks)


def judged_as(monkeypatch, case, optimized):
  """The verdict on the case if it were optimized to this model."""
  monkeypatch.setattr("fuzz.judge.optimize", lambda case: (optimized, SimpleNamespace(changes=())))
  return Judge().judge(case)
