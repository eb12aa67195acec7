"""Training libraries: a thin adapter each, imported by its name.

None of them is loaded by `import wdsplit`. A new adapter is a module here. Two modules serve several adapters:
`opaque_loader` hides dataset and sampler from libraries that would split them; `prefetching_loader` counts the batches
that were used where a library takes them ahead. Read `accelerate` first.
"""
