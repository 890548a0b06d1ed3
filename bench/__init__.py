"""Benchmarks of libddl and other libraries: `python -m bench --help`."""
