"""Training libraries: a thin adapter each, imported by its name; none of them is loaded by `import wdsplit`."""

__all__: list[str] = []
