"""The text of a condition, such as "width >= 256 and label in (1, 2)", as an Arrow expression.

Pure (no I/O): functions of the text and the columns' types; `tables` filters rows by the expression. Begin with
`parse`, then `compare`.
"""
