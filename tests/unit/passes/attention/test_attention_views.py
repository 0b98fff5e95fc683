from attention_helpers import attentions, attributes
from pass_helpers import model, operators, parametrize, restore, run_pass, run_same

from ortplugin.optimizer.pipeline import ATTENTION_VIEWS

NODE = 'ortplugin.FusedAttention<qkv_dtype = "float", heads = 2, kv_heads = 2'


def written(nodes, x, y):
  original = model(f"({x}) => ({y}) {{ {nodes} }}")
  original.opset_import.add(domain="ortplugin", version=1)
  return original


def rewritten(original):
  optimized, _ = run_same(restore(original), ATTENTION_VIEWS, start=original, changes=1)
  return optimized


def packed(order):
  return "".join(f', {name}_layout = "b ({order.format(at)} d) s"' for at, name in enumerate("qkv"))


@parametrize("order", ["{}/3 h", "h {}/3"])
def test_an_image_of_channels_last(order):
  """As botnet and coatnet: one 1x1 convolution makes Q, K and V; the pixels are one axis for attention alone."""
  nodes = f"""c = Transpose<0,3,1,2>(x)  flat = {{2,24,15}}
    r = Reshape(c, flat)  a = {NODE}{packed(order)}, y_layout = "b (h d) s"> (r, r, r)
    image = {{2,8,3,5}}  i = Reshape(a, image)  y = Transpose<0,2,3,1>(i)"""
  optimized = rewritten(written(nodes, "float[2,3,5,24] x", "float[2,3,5,8] y"))
  assert set(operators(optimized)) == {"Reshape", "FusedAttention"}
  found = attributes(attentions(optimized)[0])
  assert found["k_layout"] == f"b s ({order.format(1)} d)"
  assert found["y_layout"] == "b s (h d)"


def test_three_sequences():
  """As SqueezeBERT, of which what else reads K keeps its Transpose."""
  nodes = f"""qt = Transpose<0,2,1>(q)  kt = Transpose<0,2,1>(k)
    vt = Transpose<0,2,1>(v)  y2 = Neg(kt)
    y = {NODE}, q_layout = "b (h d) s", k_layout = "b (h d) s", v_layout = "b (h d) s"> (qt, kt, vt)"""
  x = ", ".join(f"float[2,{rows},8] {name}" for name, rows in (("q", 5), ("k", 7), ("v", 7)))
  optimized = rewritten(written(nodes, x, "float[2,2,5,4] y, float[2,8,7] y2"))
  assert operators(optimized) == ["Transpose", "Neg", "FusedAttention"]
  assert list(attentions(optimized)[0].input) == ["q", "k", "v"]


def test_what_is_written_by_rows_is_written_in_another_order_of_them():
  """As fuse-attention leaves a result that is needed with columns first, where a layout is chosen later."""
  nodes = f"a = {NODE}> (x, x, x)  y = Transpose<0,2,1,3>(a)"
  assert operators(rewritten(written(nodes, "float[2,2,5,4] x", "float[2,5,2,4] y"))) == ["FusedAttention"]
  nodes = f"a = {NODE}> (x, x, x)  rows = {{4,5,4}}  y = Reshape(a, rows)"
  run_pass(written(nodes, "float[2,2,5,4] x", "float[4,5,4] y"), ATTENTION_VIEWS, changes=0)


def test_what_is_read_twice_is_written_as_it_was():
  nodes = f"""a = {NODE}, y_layout = "b (h d) s"> (x, x, x)  y = Transpose<0,2,1>(a)  z = Neg(a)"""
  run_pass(written(nodes, "float[2,2,5,4] x", "float[2,5,8] y, float[2,8,5] z"), ATTENTION_VIEWS, changes=0)


def test_an_axis_of_several_is_left():
  """As HaloNet's windows, whose batch and columns are one axis of Y, which tells neither length."""
  nodes = f"""a = {NODE}, y_layout = "(h d b) s"> (x, x, x)  y = Transpose<1,0>(a)"""
  run_pass(written(nodes, "float[2,2,5,4] x", "float[5,16] y"), ATTENTION_VIEWS, changes=0)


def test_a_view_that_joins_batch_and_rows():
  """Its layout is one that an output alone may have."""
  nodes = f"""a = {NODE}, q_layout = "b s (h d)", k_layout = "b s (h d)", v_layout = "b s (h d)",
    y_layout = "b s (h d)"> (x, x, x)  y = Flatten<axis=2>(a)"""
  run_pass(written(nodes, "float[2,3,4] x", "float[6,4] y"), ATTENTION_VIEWS, changes=0)
