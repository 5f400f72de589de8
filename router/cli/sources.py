"""Layers flags, environment and file over the defaults, and remembers where each value came from.

Its law: a higher layer replaces a whole value, never half of it; what nobody would obey is an error.
"""

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import EnvSettingsSource, TomlConfigSettingsSource, YamlConfigSettingsSource

from router.policies import UnknownPolicy
from router.policies import load as load_policy
from router.settings import Settings, masked, nearest

PREFIX = "ROUTER_"
CONFIG = "ROUTER_CONFIG"  # --config for images, whose command line is fixed
URL = "ROUTER_URL"  # --url of the commands that ask a running router
REPLICA_KEYS = "ROUTER_KEY_"  # free for the variables that api_key_env names

# What Kubernetes sets in every pod beside a Service whose name begins with "router".
_SERVICE_LINK = re.compile(
    r"ROUTER_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://")
_LONGEST_INPUT = 60  # characters of a wrong value that are shown


class SettingsError(Exception):
    """Settings that cannot be obeyed; one line for each wrong field."""

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


@dataclass(frozen=True, slots=True)
class Loaded:
    """Valid settings, and for each field where its value came from, in words."""

    settings: Settings
    origins: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Layer:
    values: Mapping[str, Any]
    origin: str  # with {flag} and {variable} for the field's own

    def named(self, field: str) -> str:
        return self.origin.format(flag=flag(field), variable=PREFIX + field.upper())


def flag(field: str) -> str:
    return "--" + field.replace("_", "-")


def load(flags: Mapping[str, Any], config: Path | None = None) -> Loaded:
    """Flag > environment > file > default. Raises `SettingsError` with every wrong field."""
    path = config or (Path(named) if (named := os.environ.get(CONFIG)) else None)
    layers = [_Layer(_file(path), f"file {path}".replace("{", "{{").replace("}", "}}"))] if path else []
    layers += [_Layer(_environment(), "environment {variable}"), _Layer(flags, "flag {flag}")]
    merged: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for layer in layers:
        merged |= layer.values
        origins |= {field: layer.named(field) for field in layer.values}
    lines = list(_unknown_variables())
    try:
        settings = Settings(**merged)
    except ValidationError as error:
        lines += [_line(detail, origins) for detail in error.errors(include_url=False)]
    else:
        lines += _policy_lines(settings, origins)
    if lines:
        raise SettingsError(*lines)
    return Loaded(settings, {field: origins.get(field, "default") for field in Settings.model_fields})


def _policy_lines(settings: Settings, origins: Mapping[str, str]) -> Iterator[str]:
    """A policy that cannot be made is found here, so that `config` finds it too."""
    try:
        load_policy(settings.policy, settings.policy_options)
    except UnknownPolicy as error:
        yield f"policy (from {origins.get('policy', 'default')}): {error}"
    except ValueError as error:
        yield f"policy_options (from {origins.get('policy_options', 'default')}): {error}"


def _environment() -> dict[str, Any]:
    values = EnvSettingsSource(Settings)()
    return {field: value for field, value in values.items() if not _is_service_link(PREFIX + field.upper(), value)}


def _unknown_variables() -> Iterator[str]:
    known = {PREFIX + field.upper() for field in Settings.model_fields} | {CONFIG, URL}
    for name, value in sorted(os.environ.items()):
        upper = name.upper()
        if not upper.startswith(PREFIX) or upper in known or upper.startswith(REPLICA_KEYS):
            continue
        if not _is_service_link(upper, value):
            yield f"{name} (from environment): unknown setting{nearest(upper, known)}"


def _is_service_link(name: str, value: object) -> bool:
    if _SERVICE_LINK.fullmatch(name):
        return True
    return name.endswith("_PORT") and isinstance(value, str) and _SERVICE_ADDRESS.match(value) is not None


def _file(path: Path) -> dict[str, Any]:
    if path.suffix.lower() not in {".yaml", ".yml", ".toml"}:
        raise SettingsError(f"config file {path}: its name must end in .yaml, .yml or .toml")
    if not path.is_file():
        raise SettingsError(f"config file {path}: there is no such file")
    try:
        values = _read(path)
    except OSError as error:
        raise SettingsError(f"config file {path}: {error.strerror}") from None
    except (ValueError, TypeError, AttributeError, yaml.YAMLError) as error:
        raise SettingsError(f"config file {path}: {_one_line(error)}") from None
    return {str(name): value for name, value in values.items()}


def _read(path: Path) -> dict[str, Any]:
    if path.suffix.lower() == ".toml":
        return TomlConfigSettingsSource(Settings, path)()
    return YamlConfigSettingsSource(Settings, path)()


def _one_line(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
        return f"line {error.problem_mark.line + 1}: {error.problem or error.context}"
    if isinstance(error, yaml.YAMLError | tomllib.TOMLDecodeError | UnicodeDecodeError):
        return " ".join(str(error).split())
    return "expected a mapping of setting names to values"


def _line(detail: ErrorDetails, origins: Mapping[str, str]) -> str:
    field = str(detail["loc"][0]) if detail["loc"] else ""
    if not field:
        return _message(detail)
    origin = origins.get(field, "default")
    if detail["type"] == "extra_forbidden":
        return f"{field} (from {origin}): unknown setting{nearest(field, list(Settings.model_fields))}"
    return f"{field} (from {origin}): {_message(detail)}{_shown(field, detail)}"


def _message(detail: ErrorDetails) -> str:
    return detail["msg"].removeprefix("Value error, ").partition(", unable to")[0]


def _shown(field: str, detail: ErrorDetails) -> str:
    """The wrong value, where our own message does not name it and it is no secret."""
    if detail["type"] == "value_error" or "Secret" in str(Settings.model_fields[field].annotation):
        return ""
    text = masked(repr(detail["input"]))
    return f", got {text if len(text) <= _LONGEST_INPUT else text[:_LONGEST_INPUT] + '...'}"
