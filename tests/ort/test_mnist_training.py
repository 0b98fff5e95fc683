"""A network trained by sessions alone: the loss is PyTorch's, step by step, as built and after the optimizer."""

from collections import Counter

import pytest
from numpy.testing import assert_allclose

from models import mnist_training
from ort.host import make
from ortplugin.optimizer import PIPELINE, run_passes

BATCH, STEPS = 24, 8
# PyTorch 2.13's losses for the same parameters and data, as `torch_losses` computes them.
LOSSES = [2.192750, 1.615719, 1.143586, 1.295096, 0.512149, 0.316377, 0.252474, 0.124869]


def torch_losses():
  torch = pytest.importorskip("torch")
  functional = torch.nn.functional
  parameters = {name: torch.from_numpy(array).requires_grad_() for name, array in mnist_training.initial().items()}
  losses = []
  for step in range(STEPS):
    image, label = mnist_training.data(BATCH, 1 + step)
    x = torch.from_numpy(image)
    for i in range(3):
      x = functional.conv2d(x, parameters[f"conv{i}.weight"], parameters[f"conv{i}.bias"], padding=1)
      x = functional.max_pool2d(functional.relu(x), 2)
    logits = functional.linear(x.flatten(1), parameters["dense.weight"], parameters["dense.bias"])
    loss = functional.cross_entropy(logits, torch.from_numpy(label))
    for parameter, gradient in zip(
      parameters.values(), torch.autograd.grad(loss, list(parameters.values())), strict=True
    ):
      parameter.data -= 0.1 * gradient
    losses.append(loss.item())
  return losses


def test_the_loss_is_pytorchs():
  session = make(mnist_training.build(BATCH).SerializeToString())
  losses = mnist_training.train(session, BATCH, STEPS, mnist_training.initial())
  assert_allclose(losses, LOSSES, rtol=2e-4)
  assert losses[-1] < losses[0] / 2


def test_the_recorded_losses_are_pytorchs():
  assert_allclose(torch_losses(), LOSSES, rtol=2e-4)


def test_the_optimized_step_is_the_same():
  optimized, _, _ = run_passes(mnist_training.build(BATCH), PIPELINE)
  left = Counter(node.op_type for node in optimized.graph.node)
  assert left["FusedConv"] == left["ConvGrad"] == 3
  assert not {"Conv", "Relu", "Where", "Mod", "Equal", "Sub"} & set(left)
  assert_allclose(mnist_training.train(make(optimized), BATCH, STEPS, mnist_training.initial()), LOSSES, rtol=2e-4)
