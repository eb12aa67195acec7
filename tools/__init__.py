"""Programs for those who work on wdsplit; run them from the root of the repository."""
