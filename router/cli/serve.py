"""`prefix-router serve`: reads the settings and hands them to the composition root."""

import argparse

from router.cli.arguments import Parser, add_settings, settings_flags
from router.cli.sources import SettingsError, load

_EXAMPLE = "--replicas http://10.0.0.1:8000,http://10.0.0.2:8000"


def add(commands: "argparse._SubParsersAction[Parser]") -> None:
    parser = commands.add_parser(
        "serve",
        help="run the router",
        usage="%(prog)s --replicas URL,URL [--config FILE] [flags]",
        description="Run the router. Flag > environment ROUTER_* > --config file > default;\nin brackets the default.",
        epilog=f"example:\n  prefix-router serve {_EXAMPLE}",
    )
    add_settings(parser)
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    loaded = load(settings_flags(arguments), arguments.config)
    if not loaded.settings.replicas:
        raise SettingsError(
            f"replicas (from {loaded.origins['replicas']}): none are configured; for instance {_EXAMPLE}"
        )
    from router.serving import serve  # loads the whole router, which other commands do without

    return serve(loaded.settings)
