"""Wrong nodes in processes of their own, which they may end without ending the tests."""

import json
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

import onnx
from node_cases import OPSET
from onnx import TensorProto, helper
from onnx_models import built

# Tries each model read from standard input, announcing it first: what ends the process shows in the last line.
TRY_EACH = """
import json, sys, numpy, onnxruntime, ortplugin
for line in sys.stdin:
    name, model, fed = json.loads(line)
    print(json.dumps([name, "began", ""]), flush=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    ortplugin.register(options)
    stage = "session"
    try:
        session = onnxruntime.InferenceSession(bytes.fromhex(model), options, providers=["CPUExecutionProvider"])
        stage = "run"
        if fed is not None:
            arrays = [
                numpy.zeros(shape, dtype) if values is None else numpy.array(values, dtype).reshape(shape)
                for dtype, shape, values in fed
            ]
            session.run(None, dict(zip((each.name for each in session.get_inputs()), arrays)))
        message = ""
    except Exception as error:
        message = str(error)
    print(json.dumps([name, stage, message]), flush=True)
"""


def culprit(operator, shapes, attributes, dtypes=(), outputs=("y",), inputs=None):
  """A model of one node named "culprit".

  Its inputs p0, p1, ... are the node's unless other ones are given, and float unless dtypes are. An attribute that is
  None is left out.
  """
  names = [f"p{i}" for i in range(len(shapes))]
  node = helper.make_node(
    operator, names if inputs is None else inputs, outputs, "culprit", domain="ortplugin", **attributes
  )
  given = dict(zip(names, zip(dtypes or [TensorProto.FLOAT] * len(names), shapes, strict=True), strict=True))
  results = {name: ("float", None) for name in outputs if name}
  return built([node], given, results, OPSET, 9, domains=["ortplugin"]).SerializeToString()


@dataclass(frozen=True)
class Wrong:
  """A node with a program that is refused: words of the message beside the names of operator and node, and when."""

  operator: str
  words: str
  attributes: dict[str, Any] = field(default_factory=dict)
  text: str | int | bytes | None = "(float c, float b) => (float y) { a = Add(c, b) y = Relu(a) }"
  shapes: tuple[tuple[int | str, ...] | None, ...] = ()
  dtypes: tuple[int, ...] = ()
  outputs: tuple[str, ...] = ("y",)
  fed: tuple[tuple[int, ...], ...] | None = None  # shapes at the run, if that is when it is refused
  inputs: tuple[str, ...] | None = None  # of the node; p0, p1, ... where left out

  def model(self):
    attributes = {"program": self.text, **self.attributes}
    return culprit(self.operator, self.shapes, attributes, self.dtypes, self.outputs, self.inputs)


def wrong_programs(operator, usual=None, usual_shapes=((2, 3),)):
  """Makes a Wrong of this operator from its words, program and shapes, where other ones than usual are wrong."""

  def wrong(words, text=usual, shapes=usual_shapes, dtypes=(), **more):
    return Wrong(operator, words, text=text, shapes=shapes, dtypes=dtypes, **more)

  return wrong


def wrong_texts(wrong, one, two):
  """What every operator with a program refuses. `wrong`: a Wrong with one input; programs of one and of two inputs."""
  return {
    "no program": wrong("program", None),
    "a number for a program": wrong("type", 5),
    "an empty program": wrong("line 1, column 1: found the end of the text, expected '('", ""),
    "another dtype": wrong("is float16 but the program's parameter 'x' is float", one, dtypes=(TensorProto.FLOAT16,)),
    "strings": wrong("input 0 is string", one, dtypes=(TensorProto.STRING,)),
    "an input too many": wrong("1 parameters, the node 2 inputs", one, ((2, 3), (3,))),
    "an input too few": wrong("2 parameters, the node 1 inputs", two),
    "an output too many": wrong("1 results, the node 2 outputs", one, outputs=("y", "z")),
  }


def wrong_epilogues(wrong):
  """What every product of two floats refuses of the program that follows it. `wrong`: a Wrong with three inputs."""
  half, single = TensorProto.FLOAT16, TensorProto.FLOAT
  norm = "(float c, float b) => (float y) { n = LayerNormalization(c) y = Add(n, b) }"
  whole = "(int32 c, int32 b) => (int32 y) { y = Add(c, b) }"
  residual = "(float c, float b, float r) => (float y) { a = Add(c, b) y = Add(a, r) }"
  return {
    "no program": wrong("program", text=None),
    "a number for a program": wrong("type", text=5),
    "a norm": wrong("LayerNormalization", text=norm),
    "no parameter": wrong("numbers alone", text="() => (float y) { y = Relu(1) }"),
    "a value of integers": wrong("floating", text=whole, dtypes=(TensorProto.INT32,) * 3),
    "an operand too many": wrong("takes 2 inputs; it has 3", text="(float c) => (float c) {}"),
    "an operand too few": wrong("takes 4 inputs; it has 3", text=residual),
    "an output too many": wrong("1 results, the node 2 outputs", outputs=("y", "z")),
    "weights of another dtype": wrong("input 1 is float16", dtypes=(single, half, single)),
    "a bias of another dtype": wrong("parameter 'b' is float", dtypes=(single, single, half)),
    "an algorithm that is a number": wrong("algorithm", {"algorithm": 7}),
  }


def with_attributes(model, changes):
  """The model, in whose only node attributes have other values; None leaves one out."""
  made = onnx.load_model_from_string(model)
  (node,) = made.graph.node
  kept = [each for each in node.attribute if each.name not in changes]
  del node.attribute[:]
  given = (helper.make_attribute(name, value) for name, value in changes.items() if value is not None)
  node.attribute.extend((*kept, *given))
  return made.SerializeToString()


def refusals_of(wrong):
  """(stage, message) of each model by name; it runs on the feeds, unless they are None."""
  found = {}
  while left := [name for name in wrong if name not in found]:
    done = python(TRY_EACH, "\n".join(json.dumps([name, wrong[name][0].hex(), wrong[name][1]]) for name in left))
    for line in done.stdout.splitlines():
      name, stage, message = json.loads(line)
      found[name] = stage, message
    assert left[0] in found, done.stderr
  return found


def assert_blamed(error, words, operator):
  """Its message names the node, whose name is "culprit", and its operator, and has the words."""
  for each in (words, "culprit", operator):
    assert each in str(error)


def assert_refused_in_time(refusal, *, at_load, words, operator):
  stage, message = refusal
  assert stage != "began", "the process ended"
  assert message, "it was accepted"
  assert stage == ("session" if at_load else "run"), message
  assert_blamed(message, words, operator)


def python(code, stdin="", env=None):
  """Runs Python code in a process of its own that imports what this one does."""
  start = f"import sys; sys.path[:] = {sys.path!r}\n"
  return subprocess.run(
    [sys.executable, "-c", start + code], input=stdin, capture_output=True, text=True, timeout=120, env=env
  )
