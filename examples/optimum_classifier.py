"""Hugging Face Optimum on an optimized model: `ORTModelForSequenceClassification` with our session options.

    optimum-cli export onnx --model distilbert/distilbert-base-uncased-finetuned-sst-2-english classifier/
    python examples/optimum_classifier.py classifier/ "What a fine day." "What a mess."

The folder has a tokenizer, config.json and model.onnx; model_optimized.onnx is written beside them the first time.
Every ORTModelFor... class takes session options in this way. Needs `pip install optimum-onnx` and transformers 4.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
from optimum.onnxruntime import ORTModelForSequenceClassification
from transformers import AutoTokenizer

import ortplugin

OPTIMIZED = "model_optimized.onnx"


def load(folder: Path, **options: Any) -> ORTModelForSequenceClassification:
  """The classifier in a folder; options are those of from_pretrained, such as provider="CUDAExecutionProvider"."""
  if not (folder / OPTIMIZED).exists():
    model, _ = ortplugin.optimize(folder / "model.onnx")
    onnx.save(model, folder / OPTIMIZED)
  session_options = onnxruntime.SessionOptions()
  ortplugin.register(session_options)
  return ORTModelForSequenceClassification.from_pretrained(
    folder, file_name=OPTIMIZED, session_options=session_options, local_files_only=True, **options
  )


def main() -> None:
  """Prints each text with its likeliest label."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("folder", type=Path)
  parser.add_argument("texts", nargs="+")
  given = parser.parse_args()
  model, tokenizer = load(given.folder), AutoTokenizer.from_pretrained(given.folder, local_files_only=True)
  scores = model(**tokenizer(given.texts, padding=True, return_tensors="pt")).logits.softmax(-1)
  for text, row in zip(given.texts, scores, strict=True):
    print(f"{model.config.id2label[int(row.argmax())]} {row.max():.3f}  {text}")


if __name__ == "__main__":
  main()
