"""The benchmark: `python tests/tools/benchmarks/bench.py`. Nothing here runs or needs a peer on import."""
