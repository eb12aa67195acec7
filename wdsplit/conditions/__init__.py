"""Translates conditions such as "width >= 256 and label in (1, 2)" to Arrow expressions.

Pure (no I/O): functions of the text and the types of the columns. `tables` filters rows by the expression. Start with
`parse`, then read `compare`.
"""
