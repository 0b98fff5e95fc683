"""Texts in a model file that are not UTF-8, in every field that ONNX has for one: refused in a line, or kept.

Protobuf reads them as bytes, against the field's type, and lets only a parser write them back.
"""

import onnx
import onnx.parser
import pytest

from ortplugin.cli import main

TEXT = """<ir_version: 10, opset_import: ["" : 18, "mine" : 1]>
    g (float[N,8] x, bool c) => (float[N,8] y) <float[8] s = {1,1,1,1,2,2,2,2}> {
        a = mine.Norm <eps=0.001>(x, s)  d = Relu(a)
        y = If(c) <then_branch = t () => (float[N,8] p) { p = Neg(d) },
                    else_branch = e () => (float[N,8] r) { r = Exp(d) }> }
    <domain: "mine", opset_import: ["" : 18]> Norm <eps> (x, s) => (y) {
        e = Constant <value_float : float = @eps> ()  v = Add(x, e)  y = Mul(v, s) }"""
GIVEN, DAMAGED = b"grosse Zahl", b"gro\xdfe Zahl\xff"  # of one length


def model():
  made = onnx.parser.parse_model(TEXT)
  graph = made.graph
  graph.value_info.append(onnx.helper.make_tensor_value_info("a", onnx.TensorProto.FLOAT, ["N", 8]))
  graph.quantization_annotation.add(tensor_name="x").quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="s")
  for message in (made, graph, graph.node[0], graph.initializer[0], graph.input[0], made.functions[0]):
    message.metadata_props.add(key="k", value="v")
  return made


def messages(message, path=()):
  yield message, path
  for field, value in message.ListFields():
    if field.message_type is not None:
      for number, each in enumerate(value) if hasattr(value, "extend") else [(None, value)]:
        yield from messages(each, (*path, (field.name, number)))


def fields():
  """The fields for texts of every kind of message in the model, each once for where it stands."""
  found = {}
  for message, path in messages(model()):
    for field in message.DESCRIPTOR.fields:
      if field.type == field.TYPE_STRING:
        found.setdefault(".".join([*(name for name, _ in path[-2:]), field.name]), (path, field.name))
  return found


def damaged(path, name):
  made = model()
  target = made
  for field, number in path:
    target = getattr(target, field) if number is None else getattr(target, field)[number]
  texts = getattr(target, name)
  if hasattr(texts, "extend"):
    texts[:] = [GIVEN.decode(), *texts[1:]]
  else:
    setattr(target, name, GIVEN.decode())
  data = made.SerializeToString()
  assert GIVEN in data
  return data.replace(GIVEN, DAMAGED)


def test_every_place_for_a_text_is_there():
  assert len(fields()) > 60
  assert {"producer_name", "graph.doc_string", "graph.node.op_type", "metadata_props.value"} <= fields().keys()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", fields())
@pytest.mark.parametrize("options", [[], ["--restore"], ["--precision", "fp16"]], ids=" ".join)
def test_a_text_that_is_not_utf8(tmp_path, capfd, name, options):
  source, target = tmp_path / "in.onnx", tmp_path / "out.onnx"
  assert len(GIVEN) == len(DAMAGED)
  source.write_bytes(damaged(*fields()[name]))
  status = main([str(source), "-o", str(target), "--no-verify", *options])
  _, words = capfd.readouterr()
  assert "internal error" not in words
  if status == 0:
    onnx.checker.check_model(onnx.load(target))
    kept = name.split(".")[-1] in ("producer_name", "producer_version") or name in ("doc_string", "graph.doc_string")
    assert DAMAGED in target.read_bytes() or not kept
  else:
    assert status in (1, 2)
    assert len(words.splitlines()) == 1, words
    assert not target.exists()
