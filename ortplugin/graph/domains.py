"""The operator domains that the optimizer tells apart."""

DOMAIN = "ortplugin"  # ours
DEFAULT_DOMAINS = ("", "ai.onnx")  # both are names of ONNX's own
