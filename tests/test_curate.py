from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis import cli, curate
from analysis.curate import Curated
from analysis.scrub import ABSOLUTE_PATH, PATH, Scrubber, host_pattern
from analysis.table import to_csv
from analysis.tables import analyse
from harness.errors import RecordError
from harness.record.read import read_events, read_manifest, read_summary

GOLDEN = Path(__file__).parent / "data" / "golden" / "results"
HOST = "alices-box7"
RUN = "scaling-g2-5ca1ab1e-r0"
ENVIRONMENT = {
    "OMP_NUM_THREADS": "4",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,max_split_size_mb:128",
    "NCCL_P2P_DIRECT_DISABLE": "1",
    "NCCL_TOPO_FILE": "/etc/nccl/alice.xml",
    "HF_HOME": "cache",
    "MASTER_ADDR": "10.1.2.3",
    "NCCL_COMM_ID": "fe80::1:2",
    "GLOO_PEER": f"{HOST}.corp.example",
    "SLURM_JOB_ACCOUNT": "alice",
}
KEPT = {"OMP_NUM_THREADS", "PYTORCH_CUDA_ALLOC_CONF", "NCCL_P2P_DIRECT_DISABLE"}


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes, indent=1) + "\n")


def name_everything(folder: Path) -> None:
    """Put the host, a person's folders and addresses wherever a real campaign has them."""
    for path in folder.rglob("*.json*"):
        path.write_text(re.sub(r"golden-(host|node)", HOST, path.read_text()))
    run = folder / RUN
    manifest = json.loads((run / "manifest.json").read_text())
    config = manifest["config"] | {"cache_dir": "/home/alice/my cache", "results_dir": "~/results"}
    hosts = [manifest["hosts"][0] | {"mounts": {"/": "overlay overlay", "/a/x": "nfs srv:/vol/x"}}]
    edit(
        run / "manifest.json",
        config=config,
        hosts=hosts,
        environment=ENVIRONMENT,
        argv=["/usr/bin/harness", "experiment=scaling", "results_dir=/home/alice/out", "gpus=2"],
    )
    error = f'File "/home/alice/x.py", line 3: connect {HOST}.corp.example [10.1.2.3]:29500 failed'
    event = {"t_unix_s": 1.0, "kind": "rank_started", "rank": 0, "detail": {"m": error}}
    with (run / "events" / "rank00000.jsonl").open("a") as file:
        file.write(json.dumps(event) + "\n")
    summary = json.loads((run / "summary.json").read_text())
    edit(run / "summary.json", drift=[f"{HOST} driver was 1, is 2"], detail=summary["detail"])
    for name in ("logs", "heartbeat"):
        (run / name).mkdir()
        (run / name / "rank00000").write_text(HOST)
    (run / "injected.jsonl").write_text(json.dumps({"host": HOST, "what": "/bin/stress"}) + "\n")
    (folder / "table.yaml").write_text(f"source: runs on {HOST} in /home/alice/results/cal\n")


@pytest.fixture(params=["scaling", "measured/golden-laptop/scaling"])
def campaign(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A campaign in a results folder of its own, alone, so that tables can be compared."""
    folder = tmp_path / "results" / "scaling"
    shutil.copytree(GOLDEN / request.param, folder)
    name_everything(folder)
    return folder


@pytest.fixture
def done(campaign: Path, tmp_path: Path) -> Curated:
    return curate.curate(campaign, machine="h200-x", measured=tmp_path / "measured")


def files(folder: Path) -> Iterator[Path]:
    yield from (path for path in sorted(folder.rglob("*")) if path.is_file())


def test_no_absolute_path_no_host_and_no_address_remain(done: Curated) -> None:
    for path in files(done.folder):
        text = path.read_text()
        assert HOST not in text, path
        assert "10.1.2.3" not in text, path
        assert "alice" not in text.replace("private:", ""), path
        assert not re.search(r"(?<![\w./])/\w", text), path


def test_the_tables_of_the_copy_are_those_of_the_original(campaign: Path, done: Curated) -> None:
    def rows(results: Path, name: str) -> list[dict[str, Any]]:
        table = analyse(results).table(name)
        return [{k: v for k, v in row.items() if k != "machine"} for row in table.rows]

    # What has not ended stays behind: its row says so in both, in other words.
    for folder in [p for p in campaign.iterdir() if p.is_dir() and ".try" not in p.name]:
        if folder.name not in done.run_ids:
            shutil.rmtree(folder)
    for name in ("scaling", "statistics"):
        ours = [scrubbed(row) for row in rows(campaign.parent, name)]
        assert ours == rows(done.folder.parents[1], name)
        assert len(to_csv(analyse(done.folder.parents[1]).table(name)).splitlines()) > 5


def scrubbed(row: dict[str, Any]) -> dict[str, Any]:
    """A note may name the host, as drift does."""
    return {
        key: value.replace(HOST, "h200-x") if isinstance(value, str) else value
        for key, value in row.items()
    }


def test_only_records_go(done: Curated) -> None:
    top = {path.name for path in (done.folder / RUN).iterdir()}
    assert top <= {
        "manifest.json", "summary.json", "steps", "events", "telemetry", "injected.jsonl",
    }  # fmt: skip
    assert {"manifest.json", "summary.json", "steps", "events", "injected.jsonl"} <= top
    assert not [p for p in done.folder.iterdir() if ".try" in p.name]
    assert (done.folder / "table.yaml").read_text() == "source: runs on h200-x in cal\n"


def test_the_manifest_keeps_what_can_change_speed_and_loses_who_ran_it(done: Curated) -> None:
    manifest = read_manifest(done.folder / RUN / "manifest.json")
    assert set(manifest.environment) == KEPT
    assert manifest.argv == ("harness", "experiment=scaling", f"results_dir={PATH}", "gpus=2")
    assert manifest.hosts[0].host == "h200-x"
    assert manifest.hosts[0].mounts == {"root": "overlay", "x": "nfs"}
    assert manifest.config["cache_dir"] == "my cache"
    assert manifest.data is not None
    assert manifest.data.store_path == "store"
    assert read_summary(done.folder / RUN / "summary.json").drift == ("h200-x driver was 1, is 2",)
    messages = [e.detail["m"] for e in read_events(done.folder / RUN).records if "m" in e.detail]
    assert messages == ['File "x.py", line 3: connect h200-x [ADDRESS]:29500 failed']


def test_the_same_records_give_the_same_bytes(
    campaign: Path, done: Curated, tmp_path: Path
) -> None:
    again = curate.curate(campaign, machine="h200-x", measured=tmp_path / "again")
    pairs = list(zip(files(done.folder), files(again.folder), strict=True))
    assert len(pairs) > 10
    assert all(a.name == b.name and a.read_bytes() == b.read_bytes() for a, b in pairs)


def test_what_is_there_is_never_overwritten(campaign: Path, done: Curated) -> None:
    before = {path: path.read_bytes() for path in files(done.folder)}
    with pytest.raises(RecordError, match="there already"):
        curate.curate(campaign, machine="h200-x", measured=done.folder.parents[1])
    assert {path: path.read_bytes() for path in files(done.folder)} == before


def laptop(tmp_path: Path) -> Path:
    folder = tmp_path / "results" / "scaling"
    shutil.copytree(GOLDEN / "measured" / "golden-laptop" / "scaling", folder)
    return folder


def test_what_has_not_ended_or_cannot_be_read_is_left_out_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = str(tmp_path / "measured")
    command = ["curate", str(laptop(tmp_path)), "--machine", "laptop-x", "--measured", measured]
    assert cli.main(command) == 0
    printed = capsys.readouterr()
    assert "scaling-g1-5ca1ab1e-r3: no summary.json" in printed.err
    assert "schema version 0" in printed.err
    assert "laptop-x/scaling (7 runs)" in printed.out


def test_earlier_tries_only_count(tmp_path: Path) -> None:
    folder = laptop(tmp_path)
    edit(folder / RUN / "summary.json", tries=1)  # as before tries were counted in it
    done = curate.curate(folder, machine="laptop-x", measured=tmp_path / "measured")
    assert read_summary(done.folder / RUN / "summary.json").tries == 2


def test_torn_and_broken_lines_stay_so_and_say_nothing(tmp_path: Path) -> None:
    folder = laptop(tmp_path)
    first, second = (f"scaling-g1-5ca1ab1e-r{repeat}/steps/rank00000.jsonl" for repeat in range(2))
    (folder / first).write_bytes(b"/home/alice\n" + (folder / first).read_bytes())
    with (folder / second).open("ab") as file:
        file.write(b'{"step": "/home/al')
    done = curate.curate(folder, machine="laptop-x", measured=tmp_path / "measured")
    assert (done.folder / first).read_text().startswith("{\n")
    assert (done.folder / second).read_text().endswith("\n{")
    measures = analyse(tmp_path / "measured").measures
    assert [(m.status, m.run.torn_lines) for m in measures[:2]] == [("invalid", 0), ("finished", 1)]


def test_several_hosts_are_numbered(tmp_path: Path) -> None:
    folder = laptop(tmp_path)
    path = folder / "scaling-g1-5ca1ab1e-r1" / "manifest.json"
    path.write_text(path.read_text().replace("golden-host", "other-host"))
    done = curate.curate(folder, machine="pair", measured=tmp_path / "measured")
    hosts = {read_manifest(done.folder / r / "manifest.json").hosts[0].host for r in done.run_ids}
    assert hosts == {"pair-0", "pair-1"}


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        ("my/laptop", "letters, digits"),
        ("tables", "not"),
        ("box.old1", "letters, digits"),
        ("", "letters, digits"),
        ("the-golden-host", "holds the host name golden-host"),
    ],
)
def test_a_machine_name_that_will_not_do_is_refused(
    tmp_path: Path, machine: str, words: str
) -> None:
    with pytest.raises(RecordError, match=words):
        curate.curate(laptop(tmp_path), machine=machine, measured=tmp_path / "measured")
    assert not (tmp_path / "measured").exists()


def test_a_copy_that_would_say_something_else_is_refused_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    """A host called "bf16" turned the precision into the name of the machine: no MFU."""
    folder = tmp_path / "results" / "scaling"
    shutil.copytree(GOLDEN / "scaling", folder)
    for path in folder.rglob("*.json*"):
        path.write_text(path.read_text().replace("golden-node", "bf16"))
    with pytest.raises(RecordError, match="would differ in mfu; is a host named like a word"):
        curate.curate(folder, machine="h200-x", measured=tmp_path / "measured")
    assert list((tmp_path / "measured" / "h200-x").iterdir()) == []


def test_a_host_called_like_a_status_is_refused(tmp_path: Path) -> None:
    folder = laptop(tmp_path)
    for path in folder.rglob("*.json*"):
        path.write_text(path.read_text().replace("golden-host", "finished"))
    with pytest.raises(RecordError, match="cannot be read"):
        curate.curate(folder, machine="laptop-x", measured=tmp_path / "measured")


def test_a_campaign_without_an_ended_run_is_refused(tmp_path: Path) -> None:
    folder = laptop(tmp_path)
    for path in folder.glob("*/summary.json"):
        path.unlink()
    with pytest.raises(RecordError, match="no run of this campaign has ended"):
        curate.curate(folder, machine="laptop-x", measured=tmp_path / "measured")


def test_a_folder_without_a_campaign_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert curate.main([str(tmp_path), "--machine", "x"]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_runs_that_differed_in_a_private_variable_still_differ() -> None:
    record: dict[str, Any] = {"environment": {}, "argv": [], "hosts": []}

    def key(path: str) -> Any:
        comparability = {"environment.NCCL_TOPO_FILE": path, "world_size": 2}
        return Scrubber(hosts={}).manifest(record | {"comparability": comparability})

    one, other = key("/a/topo.xml"), key("/b/topo.xml")
    assert one != other
    assert one == key("/a/topo.xml")
    assert "topo" not in str(one)


def test_mounts_that_end_alike_keep_as_much_as_tells_them_apart() -> None:
    mounts = {"/home/u/cache": "ext4 /dev/sda", "/scratch/cache": "xfs /dev/sdb"}
    record = {"environment": {}, "argv": [], "comparability": {}, "hosts": [{"mounts": mounts}]}
    scrubbed = Scrubber(hosts={}).manifest(record)
    assert scrubbed["hosts"][0]["mounts"] == {"u/cache": "ext4", "scratch/cache": "xfs"}


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("3 tokens/s and GPU-h/epoch, global batch / (a x b)", None),
        ("https://example.org/a/b", None),
        ("./here ../there a/b", None),
        ("std::bad_alloc in c10::Error", None),
        ("file:///home/u/x.py:3", "x.py:3"),
        ("/a/b:/c/d", "b:d"),
        ("--out=/tmp/x -v", "--out=x -v"),
        ("~/x/y and ~u/z", "y and z"),
    ],
)
def test_only_what_names_a_place_is_taken_out(text: str, left: str | None) -> None:
    assert Scrubber(hosts={}).messages(text) == (text if left is None else left)


TEXTS = st.text(alphabet="/:.~ab-_ '\"=(),\n\u00e9", max_size=30) | st.text(max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


def texts_of(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from texts_of(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts_of(item)


@given(value=JSON, host=st.from_regex(r"[a-z][a-z0-9-]{0,8}[a-z0-9]", fullmatch=True))
def test_no_path_and_no_host_is_left_in_any_value(value: Any, host: str) -> None:
    scrubber = Scrubber(hosts={host: "ZZ-9"})
    if host_pattern([host]).search("ZZ-9 ADDRESS"):
        return
    once = scrubber.messages({"x": value, "host": host, "at": f"/home/u/{host}.log"})
    for text in texts_of(once):
        assert not ABSOLUTE_PATH.search(text)
        assert not host_pattern([host]).search(text)
    assert scrubber.messages(once) == once


@given(st.lists(st.text(alphabet="abc.-_ ", min_size=1, max_size=5), min_size=2, max_size=5))
def test_a_path_setting_is_reduced_to_its_last_component(parts: list[str]) -> None:
    path = "/" + "/".join(parts)
    scrubbed = Scrubber(hosts={}).value({"cache_dir": path})["cache_dir"]
    assert scrubbed == Path(path).name
