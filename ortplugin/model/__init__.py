"""Models as such: their files, what is valid, the forms that passes begin with, and the way back to standard ONNX."""
