"""What a conversion will do: its options, and the plan that gives each shard its rows.

Pure (no I/O): no file, network, clock or environment. Begin with `options`, then `plan`.
"""
