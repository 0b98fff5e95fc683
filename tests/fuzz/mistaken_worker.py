"""A worker with a mistake: `python -m fuzz.mistaken_worker MISTAKE PROVIDER` plants it, then imports what has it."""

import sys

from .mistakes import plant

if __name__ == "__main__":
  plant(sys.argv.pop(1))
  from .worker import main

  main()
