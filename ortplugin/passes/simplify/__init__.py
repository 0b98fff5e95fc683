"""Passes that turn standard ONNX into simpler standard ONNX."""
