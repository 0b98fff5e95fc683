"""Tuning inside `optimize`: where to measure, and on which inputs (check/tune.py measures)."""

from onnx import ModelProto

from ..check.inputs import CANDIDATES, as_wanted, generate, load_inputs
from ..check.tune import tune as tune_nodes
from ..errors import OrtPluginError, UsageError, VerificationError, one_line
from ..report import TunedNode
from ..session import CUDA, available_providers, check_device, resolve_provider
from .options import Options


def tune_model(original: ModelProto, optimized: ModelProto, options: Options) -> tuple[ModelProto, list[TunedNode]]:
  """`optimized` with every fused node as it measures fastest, on the user's inputs or the first that run."""
  device_id, tell = options.device_id, options.tell
  if options.providers is None and available_providers()[0] != CUDA:
    raise UsageError(
      "tuning measures on an NVIDIA GPU, and ONNX Runtime finds none here; tune where the model will run, "
      "or choose the provider 'cpu' to tune for the CPU"
    )
  provider = CUDA if options.providers is None else resolve_provider(options.providers[0])
  check_device(device_id, [provider])
  if options.inputs is not None:
    feeds = as_wanted(load_inputs(options.inputs, original).feeds, optimized)
    return tune_nodes(optimized, feeds, provider, tell, device_id)
  failure: Exception | None = None
  for sizes in CANDIDATES:
    try:
      feeds = as_wanted(generate(original, sizes, options.input_shapes).feeds, optimized)
      return tune_nodes(optimized, feeds, provider, tell, device_id)
    except OrtPluginError:
      raise
    except Exception as error:  # ONNX Runtime's own classes have no common base
      failure = failure or error
  raise VerificationError(
    f"the model does not run on generated inputs, so it can't be tuned: {one_line(failure or '')}; "
    "give its inputs with --inputs data.npz or their shapes with --input-shape"
  ) from failure
