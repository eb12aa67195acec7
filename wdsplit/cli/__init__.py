"""The command line: a module for each command, or for a few that belong together.

Commands read arguments, call the library and show what it returns; they decide nothing themselves. Begin with `main`.
`options`, `conversion`, `terminal`, `progress` and `signals` serve several commands. The library is imported when a
command runs, not when it is defined: `--help` needs neither numpy nor pyarrow.
"""
