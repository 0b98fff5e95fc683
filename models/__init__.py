"""Builders and exporters of the models that the demo, the tests and the benchmarks use."""
