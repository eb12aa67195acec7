"""The text of a condition, such as "width >= 256 and label in (1, 2)", as an Arrow expression.

Pure (no I/O): functions of the text and the columns' types; reading rows by it
belongs to `tables`. Begin with `parse`.
"""
