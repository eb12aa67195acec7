"""Training libraries: a thin adapter each, imported by its name.

None of them is loaded by `import wdsplit`. A new adapter is a module here; `delegate` is a loader as libraries may hold
it, and `progress` counts the batches that were used where a library takes them ahead.
"""
