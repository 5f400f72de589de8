"""The grammar of sources and the rules of replica URLs."""

import asyncio

import pytest

from router.core.replica import Replica
from router.discovery import parse_source, replica_url


@pytest.mark.parametrize(
    ("text", "name", "url"),
    [
        ("http://10.0.0.1:8000", "10.0.0.1:8000", "http://10.0.0.1:8000"),
        ("http://10.0.0.1:8000/", "10.0.0.1:8000", "http://10.0.0.1:8000"),
        ("http://engine", "engine:80", "http://engine"),
        ("https://engine", "engine:443", "https://engine"),
        ("HTTPS://Engine.example:8443/base/path/", "engine.example:8443", "https://engine.example:8443/base/path"),
        ("http://[::1]:8000", "[::1]:8000", "http://[::1]:8000"),
        ("http://[2001:DB8::0:1]", "[2001:db8::1]:80", "http://[2001:db8::1]"),
        ("http://[fe80::1%eth0]:8000", "[fe80::1%eth0]:8000", "http://[fe80::1%eth0]:8000"),
    ],
)
def test_an_address_has_a_default_id_and_one_spelling(text, name, url):
    """F160"""
    assert replica_url(text) == (name, url)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"),
        ("http://", "host name"),
        ("10.0.0.1:8000", "must start with http://"),
        ("ftp://engine", "not ftp"),
        ("http://::1:8000", "brackets"),
        ("http://[::1", "brackets"),
        ("http://[nonsense]:1", "brackets"),
        ("http://engine:99999", "malformed"),
        ("http://engine:0", "port 0"),
        ("http://engine?a=b", "query"),
        ("http://engine#a", "fragment"),
        ("http://en gine", "spaces"),
        ("http://engine\n:80", "control"),
        ("http://ben:secret@engine", "api_key_env"),
    ],
)
def test_an_address_that_cannot_be_is_refused_with_its_reason(text, why):
    with pytest.raises(ValueError, match=why) as caught:
        replica_url(text)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("engine:8000", "without a scheme"),
        ("zk://engine", "zk is no source"),
        ("file://relative.yaml", "absolute"),
        ("file:///", "absolute"),
        ("file:///a.yaml?x", "query"),
        ("http://ben:secret@engine", "api_key_env"),
    ],
)
def test_a_source_that_cannot_be_is_refused_with_its_reason(text, why):
    with pytest.raises(ValueError, match=why) as caught:
        parse_source(text)
    assert "secret" not in str(caught.value)


def test_a_static_source_yields_its_replica_once():
    source = parse_source(" http://10.0.0.1:8000/v ")

    async def main():
        return [sets async for sets in source.sets()]

    assert source.text == "http://10.0.0.1:8000/v"
    assert asyncio.run(main()) == [(Replica("10.0.0.1:8000", "http://10.0.0.1:8000/v"),)]


def test_a_file_source_reads_its_path(tmp_path):
    path = tmp_path / "our replicas.yaml"
    path.write_text("- url: http://a:1\n")

    async def main():
        sets = parse_source(f"file://{tmp_path}/our%20replicas.yaml").sets()
        first = await anext(sets)
        await sets.aclose()
        return first

    assert asyncio.run(main()) == (Replica("a:1", "http://a:1"),)
