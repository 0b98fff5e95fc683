"""Many threads at the same thing at once."""

import threading
from collections.abc import Callable


def in_threads(count: int, work: Callable[[int], None]) -> None:
  """Runs work(number) on threads that start together; raises what one of them raised."""
  start = threading.Barrier(count)
  errors: list[BaseException] = []

  def body(number: int) -> None:
    start.wait()
    try:
      work(number)
    except BaseException as error:
      errors.append(error)

  threads = [threading.Thread(target=body, args=(number,)) for number in range(count)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  if errors:
    raise errors[0]
