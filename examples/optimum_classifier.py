"""Hugging Face Optimum on an optimized model: `ORTModelForSequenceClassification` with our session options.

optimum-cli export onnx --model distilbert/distilbert-base-uncased-finetuned-sst-2-english classifier/
optimize-model classifier/model.onnx -o classifier/fast.onnx
python examples/optimum_classifier.py classifier/ "What a fine day." "What a mess."
"""

import sys
from typing import Any

import onnxruntime
from optimum.onnxruntime import ORTModelForSequenceClassification
from transformers import AutoTokenizer

import ortplugin


def load(folder: str, **options: Any) -> Any:
  """The classifier in a folder; options are those of from_pretrained, such as provider="CUDAExecutionProvider"."""
  session_options = onnxruntime.SessionOptions()
  ortplugin.register(session_options)
  return ORTModelForSequenceClassification.from_pretrained(
    folder, file_name="fast.onnx", session_options=session_options, **options
  )


if __name__ == "__main__":
  _, where, *texts = sys.argv
  model, tokenizer = load(where), AutoTokenizer.from_pretrained(where)
  numbers = model(**tokenizer(texts, padding=True, return_tensors="pt")).logits.argmax(-1).tolist()
  for text, number in zip(texts, numbers, strict=True):
    print(f"{model.config.id2label[number]}: {text}")
