"""Benchmarks, side by side with peers: `python -m tools.bench.load --help`, from the root of the repository.

`core` has what all share (rounds, processes, tables), `data` the tables that are read or converted, `peers` how each
library writes and reads, `link` a network of a given rate, `meter` counts what readers and a
server use. Every other module is a benchmark.
"""
