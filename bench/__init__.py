"""Benchmarks of libddl beside other libraries: `python -m bench --help`."""
