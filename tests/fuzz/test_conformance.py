"""ONNX's own cases, optimized: as they are, and in a part that changes from day to day in other forms.

`make conformance` runs all of them.
"""

import time

import pytest
from sample import SAMPLING

from fuzz.conformance import VARIANTS, cases, judge_all, wrong

PARTS = 144 if SAMPLING else 12
TODAY = int(time.time() // 86_400) % PARTS

pytestmark = pytest.mark.xdist_group("conformance")  # one worker makes the cases


@pytest.mark.parametrize("variant", VARIANTS)
def test_conformance(variant):
  """All that ONNX Runtime runs gives the same when it is optimized."""
  part, parts = (TODAY, PARTS) if variant != "plain" else (TODAY % (PARTS // 4), PARTS // 4)
  verdicts = judge_all(cases(variant, part, parts))
  assert not wrong(variant, verdicts), f"part {part} of {parts}"
  if variant != "plain":
    return  # of some parts nothing runs or is rewritten
  same = sum(each.what == "same" for each in verdicts.values())
  assert same > 0.75 * len(verdicts)
  assert sum(len(each.rewrites) for each in verdicts.values()) > len(verdicts)
