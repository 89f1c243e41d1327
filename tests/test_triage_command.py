"""``python -m harness.triage``: options, exit codes, what it writes, and how it refuses."""

import json
import subprocess
import sys

import pytest

from harness.triage import __main__ as command
from harness.triage.bands import load_table, table_to_yaml


@pytest.fixture
def write(made_traces, tmp_path):
    """A file with the course of that name."""

    def _write(name, **options):
        stream = made_traces.make_stream(made_traces.COURSES[name], **options)
        return made_traces.write_csv(stream, tmp_path / f"{options.get('host', 'gpus')}.csv")

    return _write


def test_a_hang_is_reported_and_found(write, capsys):
    assert command.main([str(write("a hang, killed"))]) == 1
    out = capsys.readouterr().out
    assert "DEADLOCK" in out
    assert "odd: GPU 5" in out


def test_json_is_one_object_and_nothing_else(write, capsys):
    assert command.main([str(write("the report's hang")), "--json", "--limit", "700"]) == 1
    plain = json.loads(capsys.readouterr().out)
    assert plain["jobs"][0]["verdict"] == "deadlock"
    assert plain["gpus"][0]["limit_source"] == "--limit"


def test_throttling_is_read_from_the_event_reasons(write, capsys):
    assert command.main([str(write("one throttled")), "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["gpus"][6]["shares"]["throttled"] > 0.9
    assert plain["jobs"][0]["odd_gpus"] == [":6"]


def test_strict_turns_a_warning_into_1(write):
    path = str(write("a straggler"))
    assert command.main([path]) == 0
    assert command.main([path, "--strict"]) == 1


def test_several_hosts_are_judged_together(write, capsys):
    paths = [str(write("a hang, killed", host=host)) for host in ("a", "b")]
    assert command.main([*paths, "--json"]) == 1
    plain = json.loads(capsys.readouterr().out)
    assert [len(job["gpus"]) for job in plain["jobs"]] == [16]
    assert plain["jobs"][0]["odd_gpus"] == ["a:5", "b:5"]


def test_out_holds_markdown_json_and_the_picture(write, tmp_path, capsys):
    out = tmp_path / "deep" / "out"
    assert command.main([str(write("saves of 15 s")), "--out", str(out)]) == 0
    assert sorted(p.name for p in out.iterdir()) == ["triage.json", "triage.md", "triage.png"]
    assert "(triage.png)" in (out / "triage.md").read_text(encoding="utf-8")
    assert json.loads((out / "triage.json").read_text(encoding="utf-8"))["refused"] is None
    assert "HEALTHY" in capsys.readouterr().out


def test_without_matplotlib_one_line_says_so_and_the_rest_stands(
    write, tmp_path, capsys, monkeypatch
):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert command.main([str(write("saves of 15 s")), "--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().err.count("\n") == 1
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["triage.json", "triage.md"]
    assert "triage.png" not in (tmp_path / "out" / "triage.md").read_text(encoding="utf-8")


def test_an_out_that_cannot_be_written_is_one_line(write, tmp_path, capsys):
    (tmp_path / "taken").write_text("", encoding="utf-8")
    assert command.main([str(write("bare idle")), "--out", str(tmp_path / "taken")]) == 2
    assert "--out" in capsys.readouterr().err


def test_a_file_without_power_is_refused_with_the_recipe(tmp_path, capsys):
    path = tmp_path / "gpus.csv"
    rows = "2026/01/01 00:00:00.000, 50 %\n2026/01/01 00:00:01.000, 50 %\n"
    path.write_text("timestamp, utilization.gpu [%]\n" + rows, encoding="utf-8")
    assert command.main([str(path), "--json", "--out", str(tmp_path / "out")]) == 2
    plain = json.loads(capsys.readouterr().out)
    assert "nvidia-smi --query-gpu" in plain["refused"]
    assert not (tmp_path / "out" / "triage.png").exists()


def test_a_table_by_path_is_used_and_one_for_another_limit_refused(write, tmp_path, capsys):
    table = tmp_path / "mine.yaml"
    table.write_text(table_to_yaml(load_table("h100-sxm-traces")), encoding="utf-8")
    path = str(write("the report's hang", limit_w=1100.0))
    assert command.main([path, "--table", str(table), "--json"]) == 2
    assert "--accept-mismatch" in json.loads(capsys.readouterr().out)["refused"]
    options = ["--table", str(table), "--accept-mismatch", "--json"]
    assert command.main([path, *options]) == 1
    assert json.loads(capsys.readouterr().out)["table"] == "h100-sxm-traces"


def test_a_table_that_does_not_exist_is_one_line(write, capsys):
    assert command.main([str(write("bare idle")), "--table", "nope"]) == 2
    assert capsys.readouterr().err.startswith("error: --table nope")


def test_tables_are_listed(capsys):
    assert command.main(["--list-tables"]) == 0
    out = capsys.readouterr().out
    assert "b300-report: NVIDIA B300 SXM at 1100 W, secondary; no watts known for" in out
    assert "h100-sxm-traces" in out


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["x.csv", "--limit", "0"],
        ["x.csv", "--limit", "many"],
        ["x.csv", "--period", "-1"],
        ["x.csv", "--columns", "power"],
        ["x.csv", "--columns", "power="],
    ],
)
def test_wrong_usage_is_2(options, capsys):
    with pytest.raises(SystemExit) as raised:
        command.main(options)
    assert raised.value.code == 2
    assert "usage" in capsys.readouterr().err


def test_columns_are_named_by_hand(tmp_path, capsys):
    path = tmp_path / "own.csv"
    rows = [f"{i},{600 if i < 60 else 602},99" for i in range(120)]
    path.write_text("when,juice,load\n" + "\n".join(rows) + "\n", encoding="utf-8")
    options = ["--columns", "time=when, power=juice,utilization=load", "--limit", "700", "--json"]
    assert command.main([str(path), *options]) == 0
    assert json.loads(capsys.readouterr().out)["jobs"][0]["verdict"] == "healthy"


def test_help_needs_neither_numpy_nor_matplotlib():
    script = (
        "import sys\n"
        "from harness.triage.__main__ import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "assert not {'numpy', 'matplotlib', 'torch', 'rich'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert b"exit codes" in done.stdout


def test_a_node_meter_is_refused_with_the_recipe_and_its_energy(tmp_path, capsys):
    path = tmp_path / "node.txt"
    lines = [
        f':::MLLOG {{"time_ms": {1_700_000_000_000 + 1000 * i}, "event_type": "POINT_IN_TIME",'
        ' "key": "power_reading", "value": 3600, "metadata": ""}'
        for i in range(101)
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert command.main([str(path), "--json"]) == 2
    plain = json.loads(capsys.readouterr().out)
    assert "node meter" in plain["refused"]
    assert "nvidia-smi --query-gpu" in plain["refused"]
    assert plain["energy"][0]["joules"] == pytest.approx(360_000.0)


def test_a_reader_that_has_seen_enough_is_no_error(write, monkeypatch):
    def close(*_):
        raise BrokenPipeError

    monkeypatch.setattr("harness.triage.as_text.print_sections", close)
    monkeypatch.setattr(command.os, "dup2", lambda *_: None)
    assert command.main([str(write("bare idle"))]) == 0


def test_the_recipe_stands_on_a_line_of_its_own_and_can_be_copied(tmp_path, capsys):
    """It was wrapped in the middle of a column name."""
    path = tmp_path / "no_power.csv"
    path.write_text("timestamp, utilization.gpu [%]\n2026/01/01 00:00:00.000, 5 %\n")
    assert command.main([str(path)]) == 2
    lines = capsys.readouterr().out.splitlines()
    (recipe,) = [line for line in lines if line.startswith("nvidia-smi ")]
    assert recipe.endswith("> gpus.csv")
    assert "power.draw.average" in recipe


def _rows(num_ticks, cell):
    """A log of four GPUs at work; ``cell(tick, gpu)`` gives power, utilization and MIG mode."""
    lines = ["timestamp, index, power.draw [W], utilization.gpu [%], mig.mode.current"]
    for tick in range(num_ticks):
        stamp = f"2026/01/01 00:{tick // 60:02d}:{tick % 60:02d}.000"
        lines += [f"{stamp}, {gpu}, " + ", ".join(cell(tick, gpu)) for gpu in range(4)]
    return "\n".join(lines) + "\n"


def test_mig_in_a_column_of_its_own_is_refused(tmp_path, capsys):
    """Only names and uuids were looked at: a MIG log was called healthy."""
    path = tmp_path / "mig.csv"
    path.write_text(_rows(60, lambda *_: ("400.00 W", "[N/A]", "Enabled")))
    assert command.main([str(path)]) == 2
    assert "MIG is enabled" in capsys.readouterr().out
    path.write_text(_rows(60, lambda *_: ("400.00 W", "100 %", "Disabled")))
    assert command.main([str(path), "--limit", "700"]) == 0


@pytest.mark.parametrize("fault", ["ERR!", "[GPU requires reset]"])
def test_a_gpu_in_fault_is_named_and_never_healthy(tmp_path, capsys, fault):
    """Its row was a missing reading like any other, and the job was called healthy."""

    def cell(tick, gpu):
        broken = gpu == 2 and tick >= 60
        return (fault if broken else "600.00 W", "0 %" if broken else "100 %", "Disabled")

    path = tmp_path / "fault.csv"
    path.write_text(_rows(180, cell))
    assert command.main([str(path), "--limit", "700", "--json"]) == 1
    (job,) = json.loads(capsys.readouterr().out)["jobs"]
    assert (job["verdict"], job["odd_gpus"]) == ("wedged", [":2"])


def test_milliwatts_without_a_unit_are_not_read_as_watts(tmp_path, capsys):
    """681220 became 681 kW, and full compute was told as communication."""
    path = tmp_path / "milliwatts.csv"
    path.write_text(
        "timestamp, index, power.draw, utilization.gpu\n"
        + "".join(
            f"2026/01/01 00:{t // 60:02d}:{t % 60:02d}.000, 0, 681220, 100\n" for t in range(90)
        )
    )
    assert command.main([str(path)]) == 2
    assert "no usable row" in capsys.readouterr().out


def test_look_again_is_not_followed_by_nothing(tmp_path, capsys):
    """A log that ends in a wait was told to be looked at again, and then: nothing."""

    def cell(tick, gpu):
        if tick < 120:
            return ("600.00 W", "100 %", "Disabled")
        return ("150.00 W", "0 %" if gpu == 1 else "100 %", "Disabled")

    path = tmp_path / "wait.csv"
    path.write_text(_rows(150, cell))
    assert command.main([str(path), "--limit", "700"]) == 0
    out = capsys.readouterr().out
    assert "look again" in out
    assert "next: nothing" not in out
