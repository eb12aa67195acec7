"""The commands and their options, which documents of the project name."""

import click

from wdsplit.cli.main import cli

COMMANDS = sorted(cli.commands)
OPTIONS = [
    (command, option)
    for command in COMMANDS
    for parameter in cli.commands[command].params
    if isinstance(parameter, click.Option)
    for option in [*parameter.opts, *parameter.secondary_opts]
    if option.startswith("--")
]
