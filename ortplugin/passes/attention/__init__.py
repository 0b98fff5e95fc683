"""Attention in the forms that exporters write becomes FusedAttention."""
