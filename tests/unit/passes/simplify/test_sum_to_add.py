from pass_helpers import model, parametrize, parsed, run_same, stays

from ortplugin.optimizer.pipeline import SUM_TO_ADD


@parametrize("nodes, ops", [("y = Sum(x, z)", "Add"), ("y = Sum(z)", "Identity")])
@parametrize("opset", [8, 13, 17])
def test_renamed(nodes, ops, opset):
  _, result = run_same(model(f"(float[1,3] x, float[4,3] z) => (y) {{ {nodes} }}", opset), SUM_TO_ADD, into=ops)
  assert result.changes[0].nodes == ("'y' (Sum)",)


def test_more_stay():
  """In float16 a Sum of three may round once."""
  stays("(float[3] x, z) => (y) { y = Sum(x, z, x) }", SUM_TO_ADD)


def test_no_elements_stay():
  """ONNX Runtime's BiasSoftmax of an Add without elements ends the process on CUDA."""
  stays("(float[1,0] x, float[0] z) => (float[1,0] y) { y = Sum(x, z) }", SUM_TO_ADD)


def test_where_an_add_does_not_broadcast_as_numpy_does_it_stays():
  stays(model("(float[3] x, z) => (y) { y = Sum(x, z) }", 6), SUM_TO_ADD)


def test_a_function_of_that_name_stays():
  stays(parsed("""(float[3] x, z) => (y) { y = local.Sum(x, z) }
    <domain: "local", opset_import: ["" : 17]> Sum (a, b) => (c) { c = Mul(a, b) }""",
        domains=["local"]), [SUM_TO_ADD])  # fmt: skip
