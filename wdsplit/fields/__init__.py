"""Converts Arrow columns to the payloads of fields, and back.

Pure (no I/O): no file, network or torch. Start with `rules` (the table of types), then `encode` and `decode`. `infer`
chooses the fields for the columns of a table, `keys` makes its keys.
"""
