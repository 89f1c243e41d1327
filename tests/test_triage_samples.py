"""Triage over real telemetry files, where WATTLINE_SAMPLES names a folder of them.

The files are other people's and are not part of this project; skipped where the folder is not set.
Outcomes are what their authors say that the jobs were doing.
"""

import functools
import json
import os
import sys
from pathlib import Path

import pytest

from harness.triage import __main__ as command

FOLDER = os.environ.get("WATTLINE_SAMPLES")
pytestmark = pytest.mark.skipif(FOLDER is None, reason="WATTLINE_SAMPLES is not set")

WAITING = ("communication", "checkpoint", "checkpoint_or_deadlock")


@functools.cache
def run_command(name, *options):
    path = next(Path(FOLDER).glob(f"{name}*"))
    lines, stdout = [], sys.stdout
    try:
        sys.stdout = type("Sink", (), {"write": lambda _, s: lines.append(s), "flush": int})()
        code = command.main([str(path), "--json", *options])
    finally:
        sys.stdout = stdout
    return code, json.loads("".join(lines))


def share(plain, *states):
    gpus = plain["gpus"]
    return sum(gpu["shares"].get(s, 0.0) for gpu in gpus for s in states) / len(gpus)


def verdicts(plain):
    return [job["verdict"] for job in plain["jobs"]]


@pytest.mark.parametrize("name", ["16", "19"])
def test_no_power_column_is_refused_with_the_recipe(name):
    code, plain = run_command(name)
    assert code == 2
    assert "power" in plain["refused"]
    assert "nvidia-smi --query-gpu" in plain["refused"]


@pytest.mark.parametrize("name", ["10", "12"])
def test_a_node_meter_is_refused(name):
    code, plain = run_command(name)
    assert code == 2
    assert "node" in plain["refused"]
    assert plain["jobs"] == []


@pytest.mark.parametrize(("name", "gpus"), [("26", 8), ("28", 16), ("30", 4)])
def test_a_single_tick_is_a_snapshot(name, gpus):
    code, plain = run_command(name)
    assert code == 2
    assert plain["refused"] is None
    assert len(plain["gpus"]) == gpus
    assert all(gpu["episodes"] == [] for gpu in plain["gpus"])
    assert all(gpu["snapshot"]["power_w"] > 0 for gpu in plain["gpus"])
    assert plain["jobs"] == []


def test_28_has_two_hosts():
    _, plain = run_command("28")
    assert len({gpu["id"].split(":")[0] for gpu in plain["gpus"]}) == 2


def test_30_the_second_dies_are_shared_and_not_0_w():
    _, plain = run_command("30")
    assert len(plain["absent"]) == 4
    assert all("shared" in why for why in plain["absent"].values())


def test_27_averages_give_shares_with_low_confidence_and_no_hang():
    _, plain = run_command("27")
    assert plain["confidence"] == "low"
    assert plain["gpus"][0]["shares"]
    assert not {"deadlock", "wedged", "crashed_rank", "stalled_save"} & set(verdicts(plain))


@pytest.mark.parametrize("name", ["18", "21"])
def test_without_times_a_period_must_be_given(name):
    code, plain = run_command(name)
    assert code == 2
    assert "--period" in plain["refused"]


def test_21_is_read_with_a_period():
    code, plain = run_command("21", "--period", "1")
    assert code == 0
    assert plain["account"]["period_s"] == 1.0


def test_06_is_idle_with_a_context():
    _, plain = run_command("06")
    assert share(plain, "idle_context") > 0.9
    assert verdicts(plain) == ["idle"]


def test_07_computes():
    _, plain = run_command("07")
    assert share(plain, "compute") > 0.9
    assert verdicts(plain) == ["healthy"]


def test_08_neither_computes_nor_hangs_most_of_the_time():
    _, plain = run_command("08")
    assert share(plain, "compute") < 0.5
    assert share(plain, "deadlock", "checkpoint_or_deadlock") < 0.5


def test_05_computes_and_its_warm_gpu_is_not_odd():
    _, plain = run_command("05")
    assert share(plain, "compute") > 0.9
    assert [job["odd_gpus"] for job in plain["jobs"]] == [[]]
    assert len(plain["jobs"][0]["gpus"]) == 8


def test_01_has_8_gpus_and_saves_with_gpu_0_odd():
    _, plain = run_command("01")
    assert [len(job["gpus"]) for job in plain["jobs"]] == [8]
    assert plain["jobs"][0]["odd_gpus"] == [":0"]
    assert "checkpoint" in {e["state"] for e in plain["jobs"][0]["episodes"]}


def test_02_ends_bare_idle_and_counts_its_cut_row():
    _, plain = run_command("02")
    for gpu in plain["gpus"]:
        assert gpu["episodes"][-1]["state"] == "idle_bare"
    assert sum(plain["account"]["rows_dropped"].values()) >= 1


def test_03_reads_cells_without_units():
    _, plain = run_command("03")
    assert len(plain["gpus"]) == 2
    assert share(plain, "compute") == pytest.approx(0.55, abs=0.1)
    assert plain["jobs"][0]["odd_gpus"] == [":0"]


def test_14_has_two_gpus_and_says_that_utilization_is_absent():
    _, plain = run_command("14")
    assert len(plain["gpus"]) == 2
    assert any("no utilization" in reason for reason in plain["confidence_reasons"])


def test_22_without_a_limit_has_low_confidence():
    _, plain = run_command("22")
    assert plain["confidence"] == "low"
    assert plain["refused"] is None
    assert plain["gpus"][0]["limit_w"] is None


def test_24_has_no_episode_under_90_s():
    _, plain = run_command("24")
    lengths = [e["end_s"] - e["start_s"] for e in plain["gpus"][0]["episodes"]]
    assert lengths
    assert min(lengths) >= 90.0


@pytest.mark.parametrize(("every", "expected"), [(1, 0.74), (100, 0.45), (1000, 0.04)])
def test_save_intervals_come_out_in_order_and_no_save_is_a_deadlock(every, expected):
    code, plain = run_command(f"traces/h100x8_save_every_{every}_steps", "--limit", "700")
    waited = [sum(gpu["shares"].get(s, 0.0) for s in WAITING) for gpu in plain["gpus"]]
    assert sum(waited[1:]) / 7 == pytest.approx(expected, abs=0.02)
    states = {e["state"] for holder in plain["gpus"] + plain["jobs"] for e in holder["episodes"]}
    assert "deadlock" not in states
    assert plain["account"]["gaps"]
    assert code == 0
    assert plain["jobs"][0]["odd_gpus"] == [":0"]
