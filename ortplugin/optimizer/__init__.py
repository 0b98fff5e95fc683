"""The optimizer: `optimize`, and the pipeline that it runs.

pipeline      the table of passes, and which of them run
loop          passes in rounds until nothing changes
options       what a caller asks for
api           `optimize` itself; tuning and verification: what it does with check/; bisection: which change is to blame;
              keep_faster: which passes make it slower
"""

from .api import optimize
from .bisection import find_guilty
from .loop import MAX_ROUNDS, PassError, run_passes, run_stages
from .options import Options
from .pipeline import BESIDES, LAYOUTS, PIPELINE, Stage, Step, make_stages, select_passes

__all__ = [
  "BESIDES",
  "LAYOUTS",
  "MAX_ROUNDS",
  "PIPELINE",
  "Options",
  "PassError",
  "Stage",
  "Step",
  "find_guilty",
  "make_stages",
  "optimize",
  "run_passes",
  "run_stages",
  "select_passes",
]
