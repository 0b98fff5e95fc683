"""What random graphs are made of: importing this fills the tables."""

from . import control, motifs, networks, pointwise, scatters, views
from .table import GLUE, MOTIFS

__all__ = ["GLUE", "MOTIFS", "control", "motifs", "networks", "pointwise", "scatters", "views"]
