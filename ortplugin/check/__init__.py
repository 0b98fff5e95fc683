"""Original against optimized in ONNX Runtime, and which form of a node measures fastest."""
