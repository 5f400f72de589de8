"""`prefix-router config`: the effective settings and where each came from. Its law: no secret is ever printed."""

import argparse
import json
from collections.abc import Mapping
from typing import Any

import yaml
from pydantic import SecretStr

from router.cli.arguments import Parser, add_settings, settings_flags
from router.cli.sources import load
from router.settings import MASK, Settings, masked

_COLUMN = 44  # where origins begin; longer values push theirs to the right


def add(commands: "argparse._SubParsersAction[Parser]") -> None:
    parser = commands.add_parser(
        "config",
        help="print the effective settings and where each came from",
        usage="%(prog)s [--config FILE] [--format yaml|json] [flags]",
        description="Print the effective settings, secrets masked. Exit code 2 if one is wrong.",
    )
    parser.add_argument("--format", choices=["yaml", "json"], default="yaml", help="how to print them (yaml)")
    add_settings(parser)
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    loaded = load(settings_flags(arguments), arguments.config)
    values = effective(loaded.settings)
    if arguments.format == "json":
        print(
            json.dumps(
                {name: {"value": value, "origin": loaded.origins[name]} for name, value in values.items()}, indent=2
            )
        )
        return 0
    print("\n".join(_yaml_lines(values, loaded.origins)))
    return 0


def effective(settings: Settings) -> dict[str, Any]:
    """All settings as plain values; secrets as asterisks, addresses without passwords."""
    values = settings.model_dump(mode="json")
    secrets = {name for name in values if isinstance(getattr(settings, name), SecretStr)}
    return {name: MASK if name in secrets else _hidden(value) for name, value in values.items()}


def _hidden(value: Any) -> Any:
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, list):
        return [_hidden(item) for item in value]
    if isinstance(value, dict):
        return {key: _hidden(item) for key, item in value.items()}
    return value


def _yaml_lines(values: Mapping[str, Any], origins: Mapping[str, str]) -> list[str]:
    return [f"{name + ': ' + _flow(value):<{_COLUMN}}  # {origins[name]}" for name, value in values.items()]


def _flow(value: Any) -> str:
    """One value on one line, as YAML."""
    text: str = yaml.safe_dump(value, default_flow_style=True, width=float("inf"), allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")
