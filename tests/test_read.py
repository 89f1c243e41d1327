"""Reading records back: whole lines all, a torn one counted, other versions refused."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import RecordError
from harness.parse import to_plain
from harness.record.read import (
    read_campaign,
    read_events,
    read_jsonl,
    read_manifest,
    read_steps,
    read_summary,
)
from harness.record.run_dir import JsonlWriter, write_json
from harness.record.schema import SCHEMA_VERSION, Event, EventKind


def event(t, kind=EventKind.EVAL, **detail):
    return Event(t_unix_s=t, kind=kind, rank=None, detail=detail)


@settings(max_examples=60)
@given(texts=st.lists(st.text(max_size=8), max_size=5), data=st.data())
def test_a_file_cut_at_any_byte_gives_every_whole_line_and_counts_a_torn_one(
    tmp_path_factory, texts, data
):
    path = tmp_path_factory.mktemp("cut") / "events.jsonl"
    written = tuple(event(float(i), text=text) for i, text in enumerate(texts))
    with JsonlWriter(path) as writer:
        for record in written:
            writer.append(record)
    raw = path.read_bytes()
    size = data.draw(st.integers(0, len(raw)))
    path.write_bytes(raw[:size])
    whole = raw[:size].count(b"\n")
    lines = read_jsonl(path, Event)
    assert lines.records == written[:whole]
    assert lines.torn == (1 if size and not raw[:size].endswith(b"\n") else 0)


def test_a_missing_file_is_empty(tmp_path):
    lines = read_steps(tmp_path / "rank00000.jsonl")
    assert (lines.records, lines.torn) == ((), 0)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b"not json", "Expecting value"),
        (b"\xff", "codec can't decode"),
        (b"", "Expecting value"),
        (b"[]", "expected a mapping"),
        (b'{"t_unix_s": 1.0}', "kind: missing"),
        (b'{"t_unix_s": 1.0, "kind": "party", "rank": null, "detail": {}}', "kind='party'"),
        (b'{"t_unix_s": NaN, "kind": "eval", "rank": null, "detail": {}}', "t_unix_s=nan"),
    ],
)
def test_a_whole_line_that_is_no_record_is_named_with_file_and_line(tmp_path, line, what):
    path = tmp_path / "events.jsonl"
    with JsonlWriter(path) as writer:
        writer.append(event(1.0))
    path.write_bytes(path.read_bytes() + line + b"\n")
    with pytest.raises(RecordError, match=what) as caught:
        read_jsonl(path, Event)
    assert str(caught.value).startswith(f"{path}:2: ")


def test_events_of_all_writers_come_in_order_of_time_with_their_torn_lines(write_run):
    run_dir = write_run(
        events={"node000": [event(2.0), event(4.0)], "rank00000": [event(1.0), event(3.0)]}
    )
    for writer in ("node000", "rank00000"):
        with run_dir.events(writer).open("a") as file:
            file.write('{"t_unix')
    lines = read_events(run_dir.root)
    assert [e.t_unix_s for e in lines.records] == [1.0, 2.0, 3.0, 4.0]
    assert lines.torn == 2


def test_a_run_without_events_has_none(tmp_path):
    assert read_events(tmp_path).records == ()


def test_a_manifest_is_read_back_equal(write_run, make_manifest):
    assert read_manifest(write_run().manifest) == make_manifest()


@pytest.mark.parametrize("read", [read_manifest, read_campaign, read_summary])
@pytest.mark.parametrize("version", [SCHEMA_VERSION + 1, 0, None, "1"])
def test_a_record_of_another_schema_version_is_refused_with_the_repair(tmp_path, read, version):
    path = tmp_path / "record.json"
    path.write_text(json.dumps({"schema_version": version, "new_field": 1}))
    with pytest.raises(RecordError) as caught:
        read(path)
    assert str(caught.value) == (
        f"{path}: schema version {version}, this version reads {SCHEMA_VERSION}; read it with the"
        " version that wrote it, or start anew with fresh=true"
    )


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[1]", "not a record; move its folder away"),
        (f'{{"schema_version": {SCHEMA_VERSION}}}', "run_id: missing; expected text"),
    ],
)
def test_a_file_that_is_no_record_is_named(tmp_path, text, what):
    path = tmp_path / "summary.json"
    path.write_text(text)
    with pytest.raises(RecordError, match=what) as caught:
        read_summary(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_a_field_of_the_wrong_type_is_named(tmp_path, make_summary):
    path = tmp_path / "summary.json"
    write_json(path, {**to_plain(make_summary()), "status": "great"})
    with pytest.raises(RecordError, match=r"summary\.json: status='great': expected one of"):
        read_summary(path)


def test_a_missing_record_asks_whether_this_is_a_run(tmp_path):
    with pytest.raises(RecordError, match=r"manifest\.json: missing; is this a run folder\?"):
        read_manifest(tmp_path / "manifest.json")
