"""The command line: a module for each command, or for a few that belong together.

Commands read arguments, call the library and show what it returns; they decide nothing themselves. Begin with `main`.
`options`, `conversion`, `terminal` and `signals` serve several commands.
"""
