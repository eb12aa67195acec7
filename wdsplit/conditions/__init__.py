"""The text of a condition, such as "width >= 256 and label in (1, 2)", as an Arrow expression.

Pure functions of the text and the columns' types; which rows are read with it belongs to `tables`. Begin with `parse`.
"""
