"""The version, which is also pyproject.toml's."""

from __future__ import annotations

__version__ = "0.1.0"
