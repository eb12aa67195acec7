"""The formats of input files, a module each: parquet, Arrow, ORC, CSV, JSON lines and tar.

A format says how its files are opened and read, as `registry.Format` has it; selecting rows is common to all and lives
above. Begin with `registry` (which format a file has), then `parquet`. A new format is a module here and a line there.
"""
