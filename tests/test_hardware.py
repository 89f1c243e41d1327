import re

import pytest

from harness.config import Precision
from harness.hardware import all_devices, find_device, missing_peak_reason, peak_flops

MIB = 2**20

# Name as the driver prints it, dense bf16 TFLOP/s; None has no bf16 peak.
NAMES = [
    ("Tesla V100-SXM2-16GB", None),
    ("Tesla V100-SXM2-32GB", None),
    ("Tesla V100-PCIE-16GB", None),
    ("Tesla V100-PCIE-32GB", None),
    ("Tesla V100S-PCIE-32GB", None),
    ("Tesla T4", None),
    ("NVIDIA A100-SXM4-40GB", 312.0),
    ("A100-SXM4-40GB", 312.0),
    ("NVIDIA A100-SXM4-80GB", 312.0),
    ("A100-SXM4-80GB", 312.0),
    ("NVIDIA A100 80GB PCIe", 312.0),
    ("NVIDIA H100 80GB HBM3", 989.4),
    ("NVIDIA H100 PCIe", 756.5),
    ("NVIDIA H100 NVL", 835.5),
    ("NVIDIA H200", 989.4),
    ("NVIDIA H200 NVL", 835.5),
    ("NVIDIA GH200 480GB", 989.4),
    ("NVIDIA GH200 120GB", 989.4),
    ("NVIDIA GH200 144G HBM3e", 989.4),
    ("NVIDIA B200", 2250.0),
    ("NVIDIA B300 SXM6 AC", 2250.0),
    ("NVIDIA GB200", 2450.0),
    ("NVIDIA GB300", 2450.0),
    ("NVIDIA L40S", 362.0),
    ("NVIDIA L4", 121.0),
    ("NVIDIA A10", 125.0),
    ("NVIDIA A40", 149.7),
    ("NVIDIA GeForce RTX 4090", 165.2),
    ("NVIDIA GeForce RTX 5090", 209.5),
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 480.0),
    ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 503.8),
    ("AMD Instinct MI250X", 191.5),
    ("AMD Instinct MI250X / MI250", None),
    ("AMD Instinct MI250X/MI250", None),
    ("AMD Instinct MI300X", 1307.4),
    ("AMD Instinct MI300X OAM", 1307.4),
    ("AMD Instinct MI300X VF", 1307.4),
    ("AMD Instinct MI300X HF", 1307.4),
    ("AMD Instinct MI325X", 1307.4),
    ("AMD Instinct Mi325X VF", 1307.4),
    ("AMD Instinct MI355X", 2516.6),
    ("HL-325L", 1677.0),
]


@pytest.mark.parametrize(("name", "tflops"), NAMES)
def test_every_known_name_has_the_dense_peak_of_its_own_part(name, tflops):
    facts = find_device(name)
    assert facts is not None
    peak = peak_flops(facts, Precision.BF16)
    if tflops is None:
        assert peak is None
    else:
        assert peak is not None
        assert peak.flops_per_s == pytest.approx(tflops * 1e12)
        assert peak.source == facts.source


def test_the_list_of_names_above_is_the_whole_table():
    assert {n for facts in all_devices() for n in facts.names} == {n for n, _ in NAMES}


@pytest.mark.parametrize(
    "name",
    [
        "",
        "cpu",
        "NVIDIA",
        "NVIDIA H100",
        "NVIDIA H100 64GB HBM2",
        "NVIDIA H20",
        "NVIDIA A10G",
        "NVIDIA A100",
        "NVIDIA A100-SXM-64GB",
        "NVIDIA A100-PCIE-40GB",
        "NVIDIA A100-SXM4-80GB MIG 1g.10gb",
        "NVIDIA L40",
        "NVIDIA B300",
        "NVIDIA GB300 NVL",
        "NVIDIA GB300-WS",
        "NVIDIA T4",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 5090 D",
        "NVIDIA GeForce RTX 5090 D v2",
        "NVIDIA GeForce RTX 5090 Laptop GPU",
        "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
        "AMD Instinct MI250",
        "AMD Instinct MI350X",
        "AMD Instinct MI300A",
        "Tesla V100-SXM3-32GB",
    ],
)
def test_a_part_that_only_resembles_a_known_one_has_no_facts_and_no_peak(name):
    assert find_device(name) is None
    assert missing_peak_reason(name, Precision.BF16)


def test_case_and_blanks_do_not_matter():
    assert find_device("amd instinct MI325x  vf ") == find_device("AMD Instinct MI325X")


def test_names_of_one_superchip_are_told_apart_by_memory_not_by_the_cpu_figure_in_the_name():
    assert find_device("NVIDIA GH200 480GB", 97871 * MIB) is not None
    assert find_device("NVIDIA GH200 480GB", 146831 * MIB) is None
    reason = missing_peak_reason("NVIDIA GH200 480GB", "bf16", 146831 * MIB)
    assert reason is not None
    assert str(146831 * MIB) in reason


@pytest.mark.parametrize(
    ("name", "mib", "is_known"),
    [
        ("NVIDIA A100-SXM4-80GB", 81920, True),
        ("NVIDIA A100-SXM4-80GB", 9728, False),
        ("NVIDIA B300 SXM6 AC", 275040, True),
        ("AMD Instinct MI300X", 196592, True),
        ("AMD Instinct MI300X", 24574, False),
    ],
)
def test_a_slice_of_a_device_is_not_the_device(name, mib, is_known):
    assert (find_device(name, mib * MIB) is not None) is is_known


def test_fp32_has_no_peak_and_says_why():
    facts = find_device("NVIDIA B300 SXM6 AC")
    assert facts is not None
    assert peak_flops(facts, Precision.FP32) is None
    assert missing_peak_reason("NVIDIA B300 SXM6 AC", "bf16") is None
    assert missing_peak_reason("NVIDIA B300 SXM6 AC", "fp32") == (
        "NVIDIA B300 SXM6 AC: no sourced peak for fp32"
    )


def test_a_part_without_bf16_tensor_cores_says_so():
    reason = missing_peak_reason("Tesla T4", "bf16")
    assert reason is not None
    assert "no bf16 tensor cores" in reason


def test_one_die_of_an_mi250x_is_half_of_the_module():
    module = next(f for f in all_devices() if f.model == "MI250X module")
    die = find_device("AMD Instinct MI250X")
    assert die is not None
    assert module.names == ()
    assert module.dense_bf16_flops == 2 * (die.dense_bf16_flops or 0)
    assert module.memory_bytes == 2 * (die.memory_bytes or 0)


def test_b300_facts_are_in_base_units_per_direction():
    facts = find_device("NVIDIA B300 SXM6 AC")
    assert facts is not None
    assert facts.dense_bf16_flops == 2.25e15
    assert facts.memory_bytes == 275040 * MIB
    assert not facts.is_memory_label
    assert facts.memory_bandwidth_bytes_per_s == 7.7e12
    assert facts.max_power_limit_w == 1100.0
    assert facts.scaleup_bytes_per_s == 900e9
    assert facts.nic_bytes_per_s == 100e9


def test_what_has_no_source_is_none_and_never_zero():
    facts = find_device("NVIDIA GH200 480GB")
    assert facts is not None
    assert facts.default_power_limit_w is None
    assert facts.nic_bytes_per_s is None


def test_no_sparse_figure_is_in_the_table():
    sparse = {1979.0, 3958.0, 1671.0, 624.0, 242.0, 733.0, 1513.0, 330.0, 419.0, 5000.0, 299.0}
    peaks = {f.dense_bf16_flops / 1e12 for f in all_devices() if f.dense_bf16_flops is not None}
    assert not peaks & sparse


def test_every_row_names_its_source_and_its_date():
    for facts in all_devices():
        assert all(url.startswith("https://") for url in facts.source.split()), facts.model
        assert facts.source
        assert re.fullmatch(r"20\d\d-(\d\d-\d\d|20\d\d)", facts.source_date), facts.model
        assert facts.confidence in {"high", "medium", "low"}


def test_no_name_belongs_to_two_rows():
    names = [n.casefold() for facts in all_devices() for n in facts.names]
    assert len(names) == len(set(names))
