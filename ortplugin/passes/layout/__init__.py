"""Passes that decide which operators are NHWC (channels last), and that use what was decided."""
