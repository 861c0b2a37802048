"""The benchmark: `python tests/benchmarks/bench.py`. Nothing here runs or needs a peer on import."""
