"""What `make test` runs of the large families of tests. `make test-all`, and pytest by itself, run all of them.

With ORTPLUGIN_SAMPLE=1, which `make test` sets, the cases of a large test that differ in dtype, layout or exporter
alone take turns: one of them runs, by a hash of what they have in common. Where many are left, of those that begin
alike a third runs, at least one; but all of what is refused or stays. Of cases with the marker `one_in(n)` one in n
runs, of 0 none: tests of what we test with. Property tests, and others that count, try a fifth of their examples. No
chance is in it: the same ones on every machine and every day.
"""

import os
import re
import zlib
from collections import defaultdict

SAMPLING = os.environ.get("ORTPLUGIN_SAMPLE") == "1"
FEW = 24  # cases of a test that is not large
MANY = 40  # after turns
REFUSED = ("refused", "wrong", "error", "fault", "miss", "stay", "kept", "_no_", "_not_")  # a line for each case
WORDS = re.compile(
  r"\b(b?float(16|32|64)?|double|u?int(8|16|32|64)|bool)\b|\bN(CHW|HWC)\b( but X)?|"
  r"_(torchscript|dynamo|dynamic|opset\d+|fp16)(?![a-z])"
)


def examples(count):
  """How many of its examples a test tries."""
  return max(10, count // 5) if SAMPLING else count


def is_taken(name, every):
  """Whether the one of this name is among the one in `every` that a sample has; of 0 it has none."""
  return not SAMPLING or (every > 0 and zlib.crc32(name.encode()) % every == 0)


def taken(every):
  """The sample of tests that are named as pytest does, "path::test[case]", each with the n of `one_in(n)`, or 1."""
  families = defaultdict(list)
  for name in every:
    if every[name] > 0:
      families[name.partition("[")[0]].append(name)
  # No other test is without a case.
  thin = [[name for name in each if is_taken(name, every[name])] or [min(each)] for each in families.values()]
  turns = (family if len(family) <= FEW else _turns(family) for family in thin)
  return {name for family in turns for name in (family if len(family) <= MANY else _third(family))}


def _third(family):
  """Of cases that begin alike, up to a comma, bracket or number and but for leading numbers, a third: at least one."""
  groups = defaultdict(list)
  for name in family:
    test, _, case = WORDS.sub("", name).partition("[")
    is_each = any(word in test for word in REFUSED)
    groups[name if is_each else re.split(r"[],<([]|-\d", case.lstrip("-0123456789"))[0].strip()].append(name)
  hashed = (sorted(group, key=lambda name: zlib.crc32(name.encode())) for group in groups.values())
  return [name for group in hashed for name in group[: (len(group) + 2) // 3]]


def _turns(family):
  """One of the cases that have all but such words in common."""
  groups = defaultdict(list)
  for name in family:
    groups[WORDS.sub("", name)].append(name)
  return [sorted(group)[zlib.crc32(common.encode()) % len(group)] for common, group in groups.items()]
