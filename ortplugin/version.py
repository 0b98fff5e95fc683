"""The version, which is also pyproject.toml's."""

__version__ = "0.1.0"
