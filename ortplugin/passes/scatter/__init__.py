"""Passes around ScatterND, ScatterElements and UpdateSlice."""
