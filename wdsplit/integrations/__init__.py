"""Adapters for training libraries, one module each, imported by its name.

`import wdsplit` loads none of them. Start with `accelerate`. Two modules serve several adapters: `opaque_loader` hides
dataset and sampler from libraries that would split them; `prefetching_loader` counts the used batches for libraries
that prefetch.
"""
