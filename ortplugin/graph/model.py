"""Models in and out, and what is known of their values."""

from __future__ import annotations

from ortplugin.graph.annotate import annotate
from ortplugin.graph.convert import export_model, import_model, lighten, put_back

__all__ = ["annotate", "export_model", "import_model", "lighten", "put_back"]
