"""The formats of input files, a module each: parquet, Arrow, ORC, CSV, JSON lines and tar.

A module opens and reads files of its format, as `registry.Format` says; selecting rows belongs to `tables`. A new
format is a module and a line in `registry`. Begin with `registry`, then `parquet`; `common`, `opening`, `text` and
`text_types` serve several formats.
"""
