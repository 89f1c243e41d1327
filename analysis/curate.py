"""Copies a campaign into the curated results: ``python -m analysis.curate DIR --machine NAME``.

Goes: the campaign, and of every ended run manifest, steps, events, telemetry and summary, and the
answer key and the power table where there are. Stays: logs, heartbeats, stacks and earlier tries,
which only count. Paths, hosts and addresses are taken out on the way (:mod:`analysis.scrub`). The
same records give the same bytes. Nothing is overwritten, and the folder appears whole or not at
all.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from analysis import console
from analysis.derive import Measures, measure
from analysis.load import MEASURED, PASSED_OVER, load_run
from analysis.scrub import Scrubber, host_pattern
from harness.errors import RecordError
from harness.files import sync_folder
from harness.record.read import read_campaign, read_manifest
from harness.record.run_dir import RunDir, naming
from harness.record.schema import Campaign

CAMPAIGN, TABLE, ANSWER_KEY = "campaign.json", "table.yaml", "injected.jsonl"
_LINES = ("steps", "events", "telemetry")
_MACHINE = re.compile(r"[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?", re.ASCII)
_RENAMED = re.compile(r"\.(?:old|try)\d+$")
_BROKEN = "{"  # stands for a line that is no record: as unreadable as it was, and says nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Curated:
    """What was copied where; ``left_out`` names each run that was not, and why."""

    folder: Path
    run_ids: tuple[str, ...]
    left_out: tuple[str, ...]


def curate(experiment_dir: Path, *, machine: str, measured: Path) -> Curated:
    """Copy the ended runs of one campaign to ``measured/machine/experiment``.

    Raises:
        RecordError: no campaign, none ended, a name that will not do, a folder that is there, or a
            copy that would not say the same as its original.
    """
    campaign = read_campaign(experiment_dir / CAMPAIGN)
    run_roots, left_out = _ended(experiment_dir)
    if not run_roots:
        raise RecordError(f"{experiment_dir}: no run of this campaign has ended; nothing to copy")
    target = measured / machine / campaign.experiment
    scrubber = Scrubber(hosts=_names(machine, _hosts(campaign, run_roots)))
    if target.exists():
        raise RecordError(f"{target}: there already; move it away or give another --machine")
    partial = target.with_name(f".{target.name}.partial")
    with naming(target):
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    try:
        with naming(target):
            _copy_campaign(experiment_dir, partial, scrubber)
            for root in run_roots:
                _copy_run(root, partial / root.name, scrubber)
        for root in run_roots:
            _require_same(root, partial / root.name, campaign)
        with naming(target):
            partial.rename(target)
            sync_folder(target.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return Curated(folder=target, run_ids=tuple(r.name for r in run_roots), left_out=left_out)


def _ended(experiment_dir: Path) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    """Run folders with a summary that can be read, and why the others are left out."""
    ended: list[Path] = []
    left_out: list[str] = []
    for folder in sorted(p for p in experiment_dir.iterdir() if p.is_dir()):
        run_dir = RunDir(folder)
        if _RENAMED.search(folder.name) or not run_dir.manifest.exists():
            continue
        try:
            read_manifest(run_dir.manifest)
        except RecordError as error:
            left_out.append(str(error))
            continue
        if run_dir.summary.exists():
            ended.append(folder)
        else:
            left_out.append(f"{folder.name}: no summary.json (interrupted, or still running)")
    return tuple(ended), tuple(left_out)


def _hosts(campaign: Campaign, run_roots: Sequence[Path]) -> tuple[str, ...]:
    """Every host that the records name, in the order in which they do."""
    hosts = [name.rpartition(" ")[0] for name in campaign.devices]
    for root in run_roots:
        hosts += [host.host for host in read_manifest(RunDir(root).manifest).hosts]
        for kind in ("events", "telemetry"):
            for path in sorted((root / kind).glob("*.jsonl")):
                hosts += dict.fromkeys(_host(row) for row, _ in _lines(path))
    return tuple(dict.fromkeys(host for host in hosts if host))


def _host(row: Any) -> str:
    """The host that a sample, or the detail of an event, names; empty where there is none."""
    if not isinstance(row, dict):
        return ""
    detail = row.get("detail")
    return str(row.get("host") or (detail.get("host") if isinstance(detail, dict) else None) or "")


def _names(machine: str, hosts: Sequence[str]) -> dict[str, str]:
    """What each host is called in the copy: the machine, numbered where there are several."""
    usable = _MACHINE.fullmatch(machine) and not _RENAMED.search(machine)
    if not usable or machine in PASSED_OVER:
        raise RecordError(
            f"--machine {machine}: use letters, digits, dots and dashes, as h200-node; not"
            f" {', '.join(sorted(PASSED_OVER))}"
        )
    if found := host_pattern(hosts).search(machine):
        raise RecordError(
            f"--machine {machine}: it holds the host name {found[0]}, which is to be taken out;"
            " name the kind of machine instead, as h200-node"
        )
    if len(hosts) == 1:
        return {hosts[0]: machine}
    return {host: f"{machine}-{number}" for number, host in enumerate(hosts)}


def _copy_campaign(source: Path, target: Path, scrubber: Scrubber) -> None:
    record = json.loads((source / CAMPAIGN).read_bytes())
    _write_json(target / CAMPAIGN, scrubber.value(record))
    if (source / TABLE).exists():
        text = (source / TABLE).read_text(encoding="utf-8")
        (target / TABLE).write_text(scrubber.text(text), encoding="utf-8")


def _copy_run(source: Path, target: Path, scrubber: Scrubber) -> None:
    target.mkdir()
    run_dir = RunDir(source)
    manifest = json.loads(run_dir.manifest.read_bytes())
    _write_json(target / run_dir.manifest.name, scrubber.manifest(manifest))
    summary = json.loads(run_dir.summary.read_bytes())
    summary["tries"] = max(summary["tries"], _num_earlier_tries(source) + 1)
    _write_json(target / run_dir.summary.name, scrubber.messages(summary))
    for name in _LINES:
        for path in sorted((source / name).glob("*.jsonl")):
            (target / name).mkdir(exist_ok=True)
            scrub = scrubber.messages if name == "events" else scrubber.value
            _copy_lines(path, target / name / path.name, scrub)
    if (source / ANSWER_KEY).exists():
        _copy_lines(source / ANSWER_KEY, target / ANSWER_KEY, scrubber.messages)


def _copy_lines(source: Path, target: Path, scrub: Callable[[Any], Any]) -> None:
    """Line by line; a torn or broken one stays one, without what it held."""
    with target.open("w", encoding="utf-8", newline="") as file:
        for row, end in _lines(source):
            file.write((_BROKEN if row is None else _line(scrub(row))) + end)


def _lines(path: Path) -> Iterator[tuple[Any, str]]:
    """Each line as JSON, null where it is none, and how it ends; a torn last one ends in nothing.

    A torn last line is no record even where what was written of it is JSON.
    """
    *whole, torn = path.read_bytes().split(b"\n")
    for line in whole:
        yield _parsed(line), "\n"
    if torn:
        yield None, ""


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _require_same(source: Path, copy: Path, campaign: Campaign) -> None:
    """The copy gives the same figures as its original.

    Raises:
        RecordError: it does not; a host named like a word of the records would do that.
    """
    tries = _num_earlier_tries(source)
    hint = "is a host named like a word of the records?"
    try:
        ours = measure(load_run(source, campaign, earlier_tries=tries))
        theirs = measure(load_run(copy, campaign, earlier_tries=0))
    except RecordError as error:
        what = str(error).replace(f"{copy}/", "")
        raise RecordError(f"{source}: its copy cannot be read ({what}); {hint}") from error
    names = [f.name for f in fields(Measures) if f.name not in {"run", "notes", "device"}]
    differ = [name for name in names if getattr(ours, name) != getattr(theirs, name)]
    if ours.run.tries != theirs.run.tries:
        differ.append("tries")
    if differ:
        raise RecordError(f"{source}: its copy would differ in {', '.join(differ)}; {hint}")


def _num_earlier_tries(run_root: Path) -> int:
    return len(list(run_root.parent.glob(f"{run_root.name}.try*")))


def _write_json(path: Path, record: object) -> None:
    path.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _line(row: object) -> str:
    return json.dumps(row, separators=(",", ":"))


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; see ``--help``."""
    parser = argparse.ArgumentParser(prog="python -m analysis.curate", description=__doc__)
    parser.add_argument("experiment_dir", type=Path, help="folder of one campaign, as results/X")
    parser.add_argument(
        "--machine", required=True, metavar="NAME", help="what to call it, as h200-node"
    )
    parser.add_argument(
        "--measured", type=Path, default=console.DEFAULT_RESULTS / MEASURED, metavar="DIR",
        help="folder of curated runs (default: results/measured)",
    )  # fmt: skip
    args = parser.parse_args(argv)

    def command() -> int:
        done = curate(args.experiment_dir, machine=args.machine, measured=args.measured)
        console.warn(f"left out: {reason}" for reason in done.left_out)
        console.show(f"curated: {done.folder} ({len(done.run_ids)} runs)")
        console.show("look it through, then: python -m analysis.report")
        return 0

    return console.guarded(command)


if __name__ == "__main__":
    sys.exit(main())
