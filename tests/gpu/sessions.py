"""What a session owes on a GPU whatever its operator computes: the same under CUDA graphs, on a stream of the caller's
and in many threads; and new shapes are refused while a graph is captured."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle

import numpy as np
from node_cases import Array
from threads import in_threads

import ortplugin
from gpu.device import at_offset, bind, cupy, host, keep_busy, make, python, run, run_bound, run_case, same_bits
from ortplugin.graph import TensorType
from ortplugin.ops import find
from ortplugin.session import onnxruntime


@dataclass(frozen=True)
class Trial:
  """A run: its arrays by input name, what checks its outputs, and arrays of these outputs' shapes and dtypes."""

  feeds: Mapping[str, Array]
  check: Callable[[list[Array]], object] = lambda found: None
  like: Sequence[Array] = ()

  def arrays(self, session):
    """The session's inputs on the device, and zeros for its outputs."""
    inputs = [cupy.asarray(self.feeds[value.name]) for value in session.get_inputs()]
    return inputs, [cupy.zeros(array.shape, array.dtype) for array in self.like]


def trial(case, check):
  """The run of an operator's test case, which `check(case, outputs)` compares with its reference."""
  node = case.node()
  operator = find(node.domain, node.op_type)
  assert operator is not None
  return Trial(case.feeds(), partial(check, case), operator.reference(node, case.inputs()))


def variants(case, *constant):
  """What --tune is offered for an operator's test case, of whose inputs those of these numbers are constant."""
  node, inputs = case.node(), case.inputs()
  operator = find(node.domain, node.op_type)
  assert operator is not None
  types = [TensorType(array.dtype, array.shape) for array in inputs]
  return operator.device_variants(node, types, [number in constant for number in range(len(inputs))])


def check_all(ways, attempt):
  """Tries all ways, as algorithms, and fails with those whose results are wrong."""
  wrong = []
  for each in ways:
    try:
      attempt(each)
    except AssertionError as error:
      wrong.append((each, str(error)[-80:]))
  assert not wrong, wrong


def check_rounding(found, wanted):
  """Factors were rounded to the nearest TF32: cut off, all products are some 7e-4 smaller."""
  assert abs((found * wanted).sum() / (wanted * wanted).sum() - 1) < 2e-4


def check_repeats(case, times=3, between=lambda number: None):
  """Runs of a test case give the same bits, whatever `between` does before each, in another session too."""
  session = make(case.model())
  first = run(session, case)
  for number in range(times):
    between(number)
    assert same_bits(run(session, case), first)
  assert same_bits(run_case(case), first)


def check_addresses(case, check, offsets, like=None):
  """A view into a larger array begins at a multiple of its elements' size, not of 16 bytes.

  `offsets`: for each run those of the inputs and of the outputs in elements, from the first on and again. `like`:
  arrays of the outputs' shapes and dtypes, if they are there already.
  """
  session = make(case.model())
  wanted = trial(case, lambda case, found: None).like if like is None else like
  for inner, outer in offsets:
    inputs = [at_offset(*each) for each in zip(case.inputs(), cycle(inner), strict=False)]
    outputs = [at_offset(np.zeros_like(array), each) for array, each in zip(wanted, cycle(outer), strict=False)]
    run_bound(session, inputs, outputs)
    check([cupy.asnumpy(array) for array in outputs])


def permuted(case, check=lambda *compared: None):
  """Runs of a test case on its own values in other orders; `check(case, outputs, inputs)` compares."""
  rng = np.random.default_rng(0)
  trials = []
  for _ in range(3):
    feeds = {key: rng.permuted(array.reshape(-1)).reshape(array.shape) for key, array in case.feeds().items()}
    inputs = list(feeds.values())
    trials.append(Trial(feeds, lambda found, inputs=inputs: check(case, found, inputs)))
  return trials


def check_graph(model, trials):
  """A CUDA graph, captured once and then replayed on other values, gives the same bits as a session without one."""
  plain, graph = make(model), ortplugin.session(model, [("cuda", {"use_tf32": "0"})], cuda_graph=True)
  for each in trials:
    wanted = host(ortplugin.run(plain, each.feeds))
    each.check(wanted)
    assert same_bits(host(ortplugin.run(graph, each.feeds)), wanted)


def check_replays(case, count=3):
  """`check_graph` of a test case and others of its shapes."""
  check_graph(case.model(), [Trial(replace(case, name=f"{case.name}, replay {i}").feeds()) for i in range(count)])


def check_threads(model, trial_of, threads=8):
  """Threads run one session, each with a trial of its own, new to the session, and get the same bits in each run.

  Of tests half of the trials have shapes of their own, half the same.
  """
  session = make(model)

  def work(number):
    each = trial_of(number)
    feeds = {name: cupy.asarray(array) for name, array in each.feeds.items()}
    first = host(ortplugin.run(session, feeds))
    each.check(first)
    for _ in range(20):
      assert same_bits(host(ortplugin.run(session, feeds)), first)

  in_threads(threads, work)


def session_on(stream, model):
  """A session that works on a CuPy stream, and options of runs that do not wait for it."""
  options = onnxruntime().RunOptions()
  options.add_run_config_entry("disable_synchronize_execution_providers", "1")
  return make(model, user_compute_stream=str(stream.ptr)), options


def check_stream(model, each):
  """On a stream given to ONNX Runtime, the kernel comes after what the stream already holds."""
  stream = cupy.cuda.Stream(non_blocking=True)
  session, options = session_on(stream, model)
  inputs, outputs = each.arrays(session)
  binding = bind(session, inputs, outputs)
  session.run_with_iobinding(binding, options)
  cupy.cuda.Device().synchronize()
  true = inputs[0].copy()
  with stream:
    inputs[0][...] = 0
    inputs[0][...] = true + keep_busy(50)[0] * 0
  session.run_with_iobinding(binding, options)
  stream.synchronize()
  each.check([cupy.asnumpy(array) for array in outputs])


def check_capture(captured, node):
  """While a CUDA graph is captured a shape that is new to the session is refused; the session runs on afterwards.

  `captured`: a test module's function, which a process of its own calls; a model and two runs of different shapes.
  `node`: the name that the message must give.
  """
  module, name = captured.__module__, captured.__name__
  done = python(f"from gpu.sessions import run_captured\nfrom {module} import {name}\nrun_captured(*{name}())\n")
  assert done.returncode == 0, done.stderr
  assert "for the first time while a CUDA graph is captured" in done.stdout
  assert f"node '{node}'" in done.stdout
  assert done.stdout.endswith("runs\n")


def run_captured(model, first, later):
  """Runs `first`, then `later` in a capture, and prints that one's error; then both again, and prints 'runs'."""
  stream = cupy.cuda.Stream(non_blocking=True)
  session, options = session_on(stream, model)
  arrays = [each.arrays(session) for each in (first, later)]
  bindings = [bind(session, *each) for each in arrays]
  cupy.cuda.Device().synchronize()
  session.run_with_iobinding(bindings[0], options)
  cupy.cuda.Device().synchronize()
  message = "accepted"
  stream.begin_capture()
  try:
    session.run_with_iobinding(bindings[1], options)
  except Exception as error:
    message = str(error)
  with suppress(cupy.cuda.runtime.CUDARuntimeError):  # the capture was given up
    stream.end_capture()
  print(message)
  for each, (_, outputs), binding in zip((first, later), arrays, bindings, strict=True):
    session.run_with_iobinding(binding, options)
    stream.synchronize()
    each.check([cupy.asnumpy(array) for array in outputs])
  print("runs")
