import pytest

import analysis.reference
from analysis.reference import (
    ReferenceLabel,
    label_of,
    load_activation_checkpointing,
    load_datapath,
    load_deadlock,
    load_power_triage,
    load_scaling,
    load_setup,
    reference_dir,
)
from harness.errors import RecordError

LOADERS = [
    load_activation_checkpointing,
    load_datapath,
    load_deadlock,
    load_power_triage,
    load_scaling,
    load_setup,
]


@pytest.mark.parametrize("load", LOADERS)
def test_every_reference_row_says_where_it_comes_from(load):
    rows = load()
    assert rows
    assert all(row.source.startswith(("abstract", "secondary")) for row in rows)


def test_every_reference_file_has_a_loader_but_those_that_no_table_shows_yet():
    files = {path.name for path in reference_dir().glob("*.csv")}
    assert "preflight.csv" in files
    assert len(files - {"preflight.csv"}) == len(LOADERS)


@pytest.mark.parametrize(
    ("source", "label"),
    [
        ("abstract", ReferenceLabel.ABSTRACT),
        ("abstract(2.7 s)", ReferenceLabel.ABSTRACT),
        ("secondary", ReferenceLabel.SECONDARY),
        ("abstract(~53k tok/s)+secondary", ReferenceLabel.SECONDARY),
        ("", ReferenceLabel.SECONDARY),
    ],
)
def test_a_row_of_both_kinds_is_secondary(source, label):
    assert label_of(source) is label


def test_numbers_are_numbers_and_an_empty_cell_is_none():
    assert [row.gpus for row in load_scaling()] == [4, 8, 16]
    assert load_scaling()[0].nodes == 0.5
    watts = {row.state: row.board_power_w for row in load_power_triage()}
    assert watts["checkpoint_or_deadlock"] == 190.0
    assert watts["idle"] is None


def test_a_missing_reference_file_is_a_clear_error(tmp_path, monkeypatch):
    monkeypatch.setattr(analysis.reference, "reference_dir", lambda: tmp_path)
    with pytest.raises(RecordError, match=r"scaling\.csv.*reinstall"):
        load_scaling()
