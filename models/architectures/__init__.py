"""Small models of many architectures, as the exporters of PyTorch, Keras, scikit-learn and Paddle write them.

The tests run the optimizer on all of them; they need none of these libraries. Weights are random: nothing is
downloaded. tests/data/architectures.tar.bz2 holds the files, and architectures.json, what is said of each:
architecture, exporter, opset, inputs (dtype, the shapes to run, the exclusive upper bound of integers), and the
versions of each exporter.

To make them again, each in an environment of its own, since these libraries do not agree about versions:

    pip install torch torchvision timm transformers onnx onnxscript onnxruntime
    python -m models.architectures.export_torch                # 84 architectures, by both exporters
    python -m models.architectures.export_torch --only resnet  # those whose name contains "resnet"

    pip install tensorflow-cpu tf2onnx onnxruntime
    python -m models.architectures.export_keras

    pip install scikit-learn skl2onnx onnx onnxruntime
    python -m models.architectures.export_sklearn

    pip install paddlepaddle paddle2onnx onnxruntime
    python -m models.architectures.export_paddle

Each writer replaces its own files in the archive and keeps the others'; `python -m models.architectures.archive` then
leaves out forms of an architecture that add nothing to what the other files show of the optimizer. Every file is run in
ONNX Runtime and compared with the library that it comes from before it is written, on all of its inputs' shapes.
"""
