"""The command line; start with `main`. Most commands have a module of their own.

Commands read arguments, call the library and show what it returns. `options`, `conversion`, `terminal`, `progress` and
`signals` are shared. The library is imported when a command runs: `--help` needs neither numpy nor pyarrow.
"""
