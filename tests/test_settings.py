"""The model: which values a router obeys, and what it says of the others."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from router.cli.arguments import what_and_why
from router.cli.docs import render
from router.settings import GROUPS, Settings, masked


def complaint(**values: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        Settings(**values)
    assert len(caught.value.errors()) == 1
    return str(caught.value.errors()[0]["msg"])


def test_defaults_are_the_contract() -> None:
    made = Settings()
    assert (made.host, made.port, made.policy, made.placement) == ("127.0.0.1", 8000, "locality", "cost")
    assert (made.engine, made.store, made.admission, made.experiment) == ("auto", "memory", "auto", None)
    assert (made.max_body_bytes, made.scrape_interval, made.drain_timeout) == (64 * 1024 * 1024, 1.0, 30.0)
    assert (made.admin_port, made.admin_token, made.max_inflight, made.max_requests) == (None, None, None, None)
    assert made.response_headers
    assert made.session_sources
    assert made.session_hints


def test_nothing_ends_a_stream_that_still_moves() -> None:
    """F188"""
    made = Settings()
    assert made.total_timeout == 0
    assert (made.connect_timeout, made.first_byte_timeout, made.idle_timeout) == (5.0, 600.0, 300.0)


def test_defaults_are_valid_themselves() -> None:
    Settings(**Settings().model_dump())


def test_the_environment_is_not_read_by_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUTER_PORT", "9")
    assert Settings().port == 8000


def test_every_field_says_what_it_is_and_why_its_default_is_right() -> None:
    for name, field in Settings.model_fields.items():
        what, why = what_and_why(field)
        assert len(what) > 10, name
        assert why.endswith("."), name


def test_groups_begin_at_fields_that_exist() -> None:
    assert set(GROUPS) <= set(Settings.model_fields)
    assert next(iter(Settings.model_fields)) in GROUPS


def test_settings_page_is_up_to_date() -> None:
    page = Path(__file__).parent.parent / "docs" / "settings.md"
    assert page.read_text(encoding="utf-8") == render(), "run python -m router.cli.docs docs/settings.md"


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("http://a:1,https://b:2/base/", ["http://a:1", "https://b:2/base/"]),
        ('["http://a:1"]', ["http://a:1"]),
        (["http://[::1]:8000", "file:///etc/replicas.yaml"], ["http://[::1]:8000", "file:///etc/replicas.yaml"]),
        (" http://a:1 , ", ["http://a:1"]),
        ("", []),
    ],
)
def test_replicas_may_be_a_list_or_json_or_words_between_commas(given: object, read: list[str]) -> None:
    assert Settings(replicas=given).replicas == read


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("10.0.0.1:8000", "'10.0.0.1:8000' has no scheme; write for instance http://10.0.0.1:8000"),
        ("ftp://a", "'ftp://a': unknown scheme ftp://"),
        ("dns+http://name:80", "dns+http:// comes in a later release"),
        ("k8s://space/name", "k8s:// comes in a later release"),
        ("file://replicas.yaml", "needs an absolute path"),
        ("http://", "'http://': url has no valid host name"),
        ("http://a:99999", "'http://a:99999': url is malformed"),
        ("http://a:1?x=1", "must not have a query"),
        ("http://a b:1", "holds spaces"),
        ("http://me:pw@a:1", "'http://********@a:1': url must not hold a user or password"),
    ],
)
def test_wrong_source_is_named(source: str, message: str) -> None:
    assert message in complaint(replicas=[source])


def test_passwords_in_addresses_are_not_repeated() -> None:
    assert masked("http://me:p@ss@a:1/x and https://b/@c") == "http://********@a:1/x and https://b/@c"
    assert "p@ss" not in complaint(replicas=["ftp://me:p@ss@a:1"])


@pytest.mark.parametrize(
    "values",
    [
        {"store": "redis://h"},
        {"experiment": {"arms": []}},
        {"api_keys_file": "/keys"},
    ],
)
def test_what_comes_later_is_refused_and_not_ignored(values: dict[str, Any]) -> None:
    assert "comes in a later release" in complaint(**values)


def test_bare_off_in_yaml_is_the_word() -> None:
    assert Settings(admission=False).admission == "off"


@pytest.mark.parametrize(
    "values",
    [
        {"port": 65536},
        {"port": -1},
        {"scrape_interval": 0},
        {"scrape_interval": "nan"},
        {"connect_timeout": -1},
        {"total_timeout": -1},
        {"retry_budget": 1.1},
        {"retries": -1},
        {"max_body_bytes": 0},
        {"max_inflight": 0},
        {"host": ""},
        {"engine": "tgi"},
        {"placement": "random"},
        {"store": "disk"},
        {"upstream_ca_file": "/no/such/file"},
        {"session_sources": [""]},
        {"session_sources": "cookie:a"},
        {"session_hints": "user"},
        {"policy_options": "margin"},
        {"replcas": []},
    ],
)
def test_values_out_of_bounds_are_errors(values: dict[str, Any]) -> None:
    assert complaint(**values)


def test_sizes_have_units() -> None:
    assert Settings(max_body_bytes="1MiB").max_body_bytes == 1_048_576


def test_policy_options_may_be_pairs() -> None:
    assert Settings(policy_options="margin=1.5,name=x").policy_options == {"margin": 1.5, "name": "x"}
    assert Settings(policy_options='{"margin": {"a": 1}}').policy_options == {"margin": {"a": 1}}


def test_unknown_policy_gets_the_nearest_name() -> None:
    assert "did you mean session_hash?" in complaint(policy="sesion_hash")
    assert Settings(policy="mine.policies:Best").policy == "mine.policies:Best"


def test_admin_port_is_another_port() -> None:
    assert "admin_port 8000" in complaint(admin_port=8000)
    assert Settings(port=0, admin_port=0).admin_port == 0


@pytest.mark.parametrize("token", ["", "a b", "line\n", "ключ", "********"])
def test_token_that_no_header_can_carry_is_refused(token: str) -> None:
    assert complaint(admin_token=token)


def test_secrets_do_not_show_in_prints() -> None:
    made = Settings(admin_token="hush", upstream_api_key="quiet")
    assert "hush" not in f"{made!r} {made}"
    assert "quiet" not in f"{made!r} {made}"
