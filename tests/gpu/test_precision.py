"""--precision on a GPU: converted models agree with the originals there, and nothing of them runs on the CPU."""

import numpy as np
import pytest

import ortplugin
from gpu.device import make
from models.bert import BertConfig, build_bert, random_weights
from models.light import randomized

pytestmark = pytest.mark.gpu

SMALL = BertConfig(hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256, vocab_size=500)
WHERE = {"verify": True, "providers": ["cuda"]}


def originals(name):
  return build_bert(SMALL, random_weights(0), np.float32) if name == "bert" else randomized(name, logits=True)


@pytest.mark.parametrize("precision", ["fp16", "bf16", "tf32"])
@pytest.mark.parametrize("name", ["bert", "shufflenet", "squeezenet", "resnet50"])
def test_converted_models_agree(name, precision):
  model, report = ortplugin.optimize(originals(name), precision=precision, **WHERE)
  assert report.passed
  assert report.verification[0].inputs
  if name == "bert":
    return  # its arithmetic on shapes runs on the CPU, as in the original
  make(model.SerializeToString())  # fails where a node is not on the GPU


def test_back_to_float32():
  half, _ = ortplugin.optimize(randomized("shufflenet", logits=True), precision="fp16", precision_io=True)
  restored = ortplugin.restore(half)
  _, report = ortplugin.optimize(restored, precision="fp32", **WHERE)
  assert report.passed
  assert report.converted > 0
