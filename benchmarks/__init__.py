"""Measurements: one module per figure, each `python -m benchmarks NAME --json FILE`."""
