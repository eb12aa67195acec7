"""Adapters for training libraries, one module each, imported by its name.

`import wdsplit` loads none of them. Start with `accelerate`. `opaque_loader` serves several: it hides dataset and
sampler from libraries that would split them.
"""
