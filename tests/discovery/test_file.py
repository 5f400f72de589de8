"""The watched file of replicas: its format, its mistakes, its changes."""

import asyncio
import logging
from pathlib import Path

import pytest

from router.core.replica import Replica
from router.discovery import SourceError, file
from router.discovery.file import parse

PATH = Path("replicas.yaml")


def test_every_field_is_read_as_it_is_written():
    text = """
- url: http://10.0.0.1:8000
- url: http://10.0.0.2:8000/base/
  id: 0123
  model: on
  engine: sglang
  labels: {zone: 1, rack: b}
  api_key_env: KEY_2
- url: http://[::1]
  id:
  labels:
"""
    assert parse(text, PATH) == (
        Replica("10.0.0.1:8000", "http://10.0.0.1:8000"),
        Replica("0123", "http://10.0.0.2:8000/base", "on", "sglang", {"zone": "1", "rack": "b"}, "KEY_2"),
        Replica("[::1]:80", "http://[::1]"),
    )


def test_an_empty_list_is_no_replicas():
    assert parse("[]", PATH) == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "replicas.yaml:1: expected a list of replicas; write [] for none"),
        ("url: http://a", "replicas.yaml:1: expected a list of replicas"),
        ("- url: [\n", "replicas.yaml:2: "),
        ("\n- http://a", "replicas.yaml:2: expected an object"),
        ("- model: m\n", "replicas.yaml:1: url: is missing"),
        ("- url: http://a\n- url: http://b\n  modle: m\n", "replicas.yaml:3: modle: unknown field"),
        ("- url: http://a\n  engine: tgi\n", "replicas.yaml:2: engine: unknown engine tgi"),
        ("- url: ftp://a\n", "replicas.yaml:1: url: url must start with"),
        ("- url: [http://a]\n", "replicas.yaml:1: url: expected a single value"),
        ("- url: http://a\n  url: http://b\n", "replicas.yaml:2: url: is there twice"),
        ("- url: http://a\n  labels: zone\n", "replicas.yaml:2: labels: expected an object"),
        ("- url: http://a\n  labels:\n    z: []\n", "replicas.yaml:3: labels.z: expected a single value"),
        ("- url: http://a\n  id: a/b\n", "replicas.yaml:2: id: must be"),
        ("&a [*a]", "replicas.yaml:1: expected an object"),
    ],
)
def test_a_mistake_is_named_by_path_line_and_field(text, message):
    with pytest.raises(SourceError) as caught:
        parse(text, PATH)
    assert str(caught.value).startswith(message)


def test_two_replicas_of_one_id_are_both_named():
    text = "- url: http://a:1\n- url: http://b:1\n- url: http://a:1/base\n"
    with pytest.raises(SourceError) as caught:
        parse(text, PATH)
    assert str(caught.value) == "replicas.yaml:3: id: a:1 names http://a:1/base and, on line 1, http://a:1"


def test_a_key_in_the_place_of_a_variables_name_is_not_shown():
    with pytest.raises(SourceError) as caught:
        parse("- url: http://a\n  api_key_env: sk-12345\n", PATH)
    assert str(caught.value) == "replicas.yaml:2: api_key_env: must be the name of an environment variable"


def test_a_missing_file_at_the_start_is_an_error(tmp_path):
    with pytest.raises(SourceError, match=r"none\.yaml: No such file"):
        asyncio.run(anext(file(tmp_path / "none.yaml")))


def test_a_file_that_is_not_text_is_an_error(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_bytes(b"- url: \xff\xfe")
    with pytest.raises(SourceError, match="not UTF-8"):
        asyncio.run(anext(file(path)))


def test_a_changed_file_yields_the_whole_new_set(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text("- url: http://a:1\n")

    async def main():
        sets = file(path, poll=0.005, settle=0.005)
        seen = [await anext(sets)]
        path.write_text("- url: http://b:1\n")  # same size, perhaps the same time stamp
        seen.append(await anext(sets))
        path.write_text("[]")
        seen.append(await anext(sets))
        await sets.aclose()
        return [[replica.id for replica in replicas] for replicas in seen]

    assert asyncio.run(main()) == [["a:1"], ["b:1"], []]


def test_a_broken_or_missing_file_keeps_the_last_good_set_and_warns_once_per_change(tmp_path, caplog):
    path = tmp_path / "r.yaml"
    path.write_text("- url: http://a:1\n")

    async def warned(count):
        async with asyncio.timeout(5):
            while len(caplog.records) < count:  # noqa: ASYNC110 - a log record wakes nobody
                await asyncio.sleep(0.005)

    async def main():
        caplog.set_level(logging.WARNING, "router.discovery.file")
        sets = file(path, poll=0.002, settle=0.002)
        await anext(sets)
        change = asyncio.ensure_future(anext(sets))
        path.write_text("- url: [")
        await warned(1)
        path.unlink()
        await warned(2)
        await asyncio.sleep(0.05)  # many more looks: not one more warning
        assert not change.done()
        path.write_text("- url: http://a:1\n- url: http://b:1\n")
        replicas = await asyncio.wait_for(change, 5)
        await sets.aclose()
        return [replica.id for replica in replicas]

    assert asyncio.run(main()) == ["a:1", "b:1"]
    assert len(caplog.records) == 2
    assert f"{path}:1: " in caplog.records[0].getMessage()
    assert "No such file" in caplog.records[1].getMessage()
