"""torchvision's Mask R-CNN (ResNet-50 with a feature pyramid) as ONNX, by PyTorch's TorchScript exporter.

Its region heads assign into tensors at computed indices, which the exporter writes as ScatterElements; its masks are
pasted into the image by a Loop, a mask each.

    pip install torch torchvision onnx
    python -m models.mask_rcnn mask_rcnn.onnx               # random weights, an image of 800 x 800
    python -m models.mask_rcnn mask_rcnn.onnx --size 320

With random weights no class stands out, so the score threshold is 0: the model keeps its 100 best detections, as it
does with trained weights on a crowded image.
"""

import argparse
import sys
import warnings
from pathlib import Path

import torch
from torchvision.models.detection import maskrcnn_resnet50_fpn

OPSET = 17
DETECTIONS = 100


def export(path, size=800, seed=0):
  """Writes the model: input image, float [3, size, size] in 0 .. 1; outputs boxes, labels, scores and masks.

  boxes is float [n, 4], labels int64 [n], scores float [n] and masks float [n, 1, size, size], n at most 100.
  """
  torch.manual_seed(seed)
  model = maskrcnn_resnet50_fpn(
    weights=None, weights_backbone=None, box_score_thresh=0.0, box_detections_per_img=DETECTIONS
  ).eval()
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the exporter's remarks on traced control flow
    torch.onnx.export(
      model,
      ([torch.rand(3, size, size)],),
      str(path),
      dynamo=False,
      opset_version=OPSET,
      input_names=["image"],
      output_names=["boxes", "labels", "scores", "masks"],
    )


def main(arguments=None):
  """Writes the model where the command says."""
  parser = argparse.ArgumentParser(description="Exports torchvision's Mask R-CNN with random weights.")
  parser.add_argument("path", type=Path)
  parser.add_argument("--size", type=int, default=800, help="height and width of the image")
  parser.add_argument("--seed", type=int, default=0, help="of the weights")
  options = parser.parse_args(arguments)
  export(options.path, options.size, options.seed)
  return 0


if __name__ == "__main__":
  sys.exit(main())
