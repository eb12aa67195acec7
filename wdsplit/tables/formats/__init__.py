"""The formats of input files, a module each: parquet, Arrow, CSV, JSON lines and tar.

A module opens and reads files of its format, with the functions of `registry.Format`; `tables` selects rows. A new
format needs a module and a line in `registry`. Start with `registry`, then `parquet`; `common`, `opening` and
`text` are shared.
"""
