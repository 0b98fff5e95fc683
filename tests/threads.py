"""Many threads at the same thing at once."""

import threading


def in_threads(count, work):
  """Runs work(number) on threads that start together; raises what one of them raised."""
  start = threading.Barrier(count)
  errors = []

  def body(number):
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
