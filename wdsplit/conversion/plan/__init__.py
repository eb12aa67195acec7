"""The options of a conversion, and the plan that assigns rows to shards.

Pure (no I/O): no file, network, clock or environment. Start with `options`, then read `plan`.
"""
