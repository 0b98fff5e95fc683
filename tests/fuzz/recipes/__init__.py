"""What random graphs are made of: importing this fills the tables."""

from . import control, images, networks, pointwise, scatters, sums, tokens, views
from .table import GLUE, MOTIFS

__all__ = ["GLUE", "MOTIFS", "control", "images", "networks", "pointwise", "scatters", "sums", "tokens", "views"]
