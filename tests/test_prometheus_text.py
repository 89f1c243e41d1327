import math

import pytest

from harness.errors import FormatError
from harness.formats.sniff import open_stream

H100 = 'modelName="NVIDIA H100 80GB HBM3",Hostname="node-a"'


def labels(gpu, more=""):
    return f'{{gpu="{gpu}",UUID="GPU-{gpu}aaa",device="nvidia{gpu}",{H100}{more}}}'


def scrape(watts, *, more="", time="", util=None):
    """A dcgm-exporter scrape of as many GPUs as there are watts."""
    lines = [
        "# HELP DCGM_FI_DEV_GPU_TEMP GPU temperature (in C).",
        "# TYPE DCGM_FI_DEV_GPU_TEMP gauge",
    ]
    lines += [f"DCGM_FI_DEV_GPU_TEMP{labels(i, more)} {30 + i}{time}" for i in range(len(watts))]
    lines += [f"DCGM_FI_DEV_POWER_USAGE{labels(i, more)} {w}{time}" for i, w in enumerate(watts)]
    if util is not None:
        lines += [f"DCGM_FI_DEV_GPU_UTIL{labels(i, more)} {u}{time}" for i, u in enumerate(util)]
    return "\n".join(lines) + "\n"


def read(tmp_path, text, **options):
    """The stream, its one batch and its account."""
    path = tmp_path / "scrape.prom"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    stream = open_stream(path, **options)
    (batch,) = stream.batches()
    return stream, batch, stream.account()


def test_one_scrape_is_one_tick_with_every_gpu(tmp_path):
    stream, batch, account = read(tmp_path, scrape([68.347, 113.611], util=[0, 97]))
    assert batch.power_w.tolist() == [68.347, 113.611]
    assert batch.utilization_pct.tolist() == [0.0, 97.0]
    assert batch.temperature_c.tolist() == [30.0, 31.0]
    assert (account.num_ticks, account.period_s, account.is_relative) == (1, None, True)
    assert (account.format, account.columns["power"]) == (
        "prometheus text",
        "DCGM_FI_DEV_POWER_USAGE",
    )
    first = stream.gpus[0]
    assert (first.host, first.index, first.uuid) == ("node-a", 0, "GPU-0aaa")
    assert first.name == "NVIDIA H100 80GB HBM3"


def test_labels_of_pods_are_no_part_of_a_gpu(tmp_path):
    more = ',container="main",namespace="n",pod="p-1"'
    text = scrape([100.0, 101.0]).replace(labels(0), labels(0, more))
    stream, batch, _ = read(tmp_path, text)
    assert len(stream.gpus) == 2
    assert batch.power_w.tolist() == [100.0, 101.0]


def test_a_gpu_shared_by_two_pods_is_read_once(tmp_path):
    one, other = labels(0, ',pod="a"'), labels(0, ',pod="b"')
    text = f"DCGM_FI_DEV_POWER_USAGE{one} 200\nDCGM_FI_DEV_POWER_USAGE{other} 200\n"
    _, batch, account = read(tmp_path, text)
    assert batch.power_w.tolist() == [200.0]
    assert account.rows_dropped == {}
    _, batch, account = read(tmp_path, text.replace(" 200\n", " 201\n", 1))
    assert batch.power_w.tolist() == [201.0]
    assert account.rows_dropped == {"a second reading of one GPU at one time": 1}


def test_escapes_in_label_values_are_undone(tmp_path):
    odd = r'DCGM_FI_DEV_POWER_USAGE{gpu="0",Hostname="a\"b\\c\nd,e}f",UUID="GPU-1"} 99.5' + "\n"
    stream, batch, _ = read(tmp_path, odd)
    assert stream.gpus[0].host == 'a"b\\c\nd,e}f'
    assert batch.power_w.tolist() == [99.5]


def test_units_of_dcgm_become_si_units(tmp_path):
    text = (
        f"DCGM_FI_DEV_POWER_USAGE{labels(0)} 300\n"
        f"DCGM_FI_DEV_FB_USED{labels(0)} 1024\n"
        f"DCGM_FI_DEV_SM_CLOCK{labels(0)} 1980\n"
        f"DCGM_FI_DEV_ENFORCED_POWER_LIMIT{labels(0)} 700\n"
        f"DCGM_FI_DEV_CLOCK_THROTTLE_REASONS{labels(0)} 64\n"
        f"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{labels(0)} 123456789\n"
    )
    _, batch, account = read(tmp_path, text)
    assert batch.memory_used_bytes.tolist() == [1024.0 * 1024**2]
    assert batch.sm_clock_mhz.tolist() == [1980.0]
    assert batch.limit_w.tolist() == [700.0]
    assert batch.throttled.tolist() == [1]
    assert "the energy counter in the file is not used" in account.notes


@pytest.mark.parametrize("blank", ["140737488355328", "9223372036854775794", "NaN"])
def test_a_blank_of_dcgm_is_missing_and_not_a_number(tmp_path, blank):
    text = scrape([300.0, 301.0]).replace(" 301.0\n", f" {blank}\n")
    _, batch, account = read(tmp_path, text)
    assert batch.power_w[0] == 300.0
    assert math.isnan(batch.power_w[1])
    assert not any("unreadable" in note for note in account.notes)


def test_a_blank_of_32_bits_is_no_memory(tmp_path):
    text = scrape([300.0]) + f"DCGM_FI_DEV_FB_USED{labels(0)} 2147483632\n"
    _, batch, _ = read(tmp_path, text)
    assert math.isnan(batch.memory_used_bytes[0])


def test_several_scrapes_without_times_need_a_period(tmp_path):
    text = scrape([300.0, 301.0]) + scrape([400.0, 401.0]) + scrape([500.0, 501.0])
    with pytest.raises(FormatError, match="--period"):
        read(tmp_path, text)
    _, batch, account = read(tmp_path, text, period_s=15.0)
    assert batch.t_s.tolist() == [0.0, 0.0, 15.0, 15.0, 30.0, 30.0]
    assert batch.power_w.tolist() == [300.0, 301.0, 400.0, 401.0, 500.0, 501.0]
    assert (account.num_ticks, account.period_s, account.is_relative) == (3, 15.0, True)


def test_scrapes_of_one_metric_are_told_apart_by_what_repeats(tmp_path):
    lines = [f"DCGM_FI_DEV_POWER_USAGE{labels(i)} {w + i}" for w in (100, 200) for i in (0, 1)]
    _, batch, _ = read(tmp_path, "\n".join(lines) + "\n", period_s=1.0)
    assert batch.t_s.tolist() == [0.0, 0.0, 1.0, 1.0]
    assert batch.power_w.tolist() == [100.0, 101.0, 200.0, 201.0]


def test_scrapes_of_two_hosts_one_after_the_other_are_one_tick(tmp_path):
    text = scrape([300.0]) + scrape([400.0]).replace("node-a", "node-b")
    stream, batch, account = read(tmp_path, text)
    assert {gpu.host for gpu in stream.gpus} == {"node-a", "node-b"}
    assert batch.t_s.tolist() == [0.0, 0.0]
    assert account.num_ticks == 1


def test_a_scrape_whose_pod_has_changed_is_still_a_new_scrape(tmp_path):
    text = scrape([300.0, 301.0]) + scrape([400.0, 401.0], more=',pod="new"')
    _, batch, _ = read(tmp_path, text, period_s=5.0)
    assert batch.t_s.tolist() == [0.0, 0.0, 5.0, 5.0]


def test_times_on_the_lines_are_used_and_sorted(tmp_path):
    late, early = scrape([2.0], time=" 1773114090000"), scrape([1.0], time=" 1773114080000")
    _, batch, account = read(tmp_path, late + early + "# EOF\n")
    assert batch.t_s.tolist() == [1773114080.0, 1773114090.0]
    assert batch.power_w.tolist() == [1.0, 2.0]
    assert not account.is_relative


def test_a_line_without_the_time_that_others_have_is_dropped(tmp_path):
    text = scrape([2.0], time=" 1773114090000") + f"DCGM_FI_DEV_POWER_USAGE{labels(0)} 9\n"
    _, batch, account = read(tmp_path, text)
    assert batch.power_w.tolist() == [2.0]
    assert account.rows_dropped == {"series without the time that others have": 1}


def test_the_other_exporter_gives_ratios_bytes_and_hertz(tmp_path):
    uuid = '{uuid="aaaa-bbbb"}'
    text = (
        '# TYPE nvidia_smi_gpu_info gauge\nnvidia_smi_gpu_info{uuid="aaaa-bbbb",name="NVIDIA L4",'
        'index="3"} 1\n'
        f"nvidia_smi_power_draw_watts{uuid} 28.07\n"
        f"nvidia_smi_enforced_power_limit_watts{uuid} 72\n"
        f"nvidia_smi_utilization_gpu_ratio{uuid} 0.42\n"
        f"nvidia_smi_memory_used_bytes{uuid} 7.06740224e+08\n"
        f"nvidia_smi_clocks_current_sm_clock_hz{uuid} 1.98e+09\n"
        f"nvidia_smi_clocks_event_reasons_hw_slowdown{uuid} 0\n"
        f"nvidia_smi_clocks_event_reasons_hw_thermal_slowdown{uuid} 1\n"
    )
    stream, batch, _ = read(tmp_path, text)
    gpu = stream.gpus[0]
    assert (gpu.index, gpu.uuid, gpu.name) == (3, "aaaa-bbbb", "NVIDIA L4")
    assert (batch.power_w[0], batch.limit_w[0]) == (28.07, 72.0)
    assert batch.utilization_pct[0] == pytest.approx(42.0)
    assert batch.memory_used_bytes[0] == 706740224.0
    assert batch.sm_clock_mhz[0] == pytest.approx(1980.0)
    assert batch.throttled[0] == 1


def test_an_average_and_an_instant_are_never_mixed(tmp_path):
    text = (
        'nvidia_smi_power_draw_average_watts{uuid="a"} 300\n'
        'nvidia_smi_power_draw_instant_watts{uuid="a"} 400\n'
        'nvidia_smi_power_draw_instant_watts{uuid="b"} 401\n'
    )
    _, batch, account = read(tmp_path, text)
    assert batch.power_w[0] == 300.0
    assert math.isnan(batch.power_w[1])
    assert account.power_kind == "average"
    assert any("another kind" in note for note in account.notes)


def test_instances_of_mig_have_no_power(tmp_path):
    text = scrape([300.0]) + f"""DCGM_FI_DEV_POWER_USAGE{labels(1, ',GPU_I_ID="3"')} 300\n"""
    stream, _, account = read(tmp_path, text)
    assert len(stream.gpus) == 1
    assert sum(account.rows_dropped.values()) == 1


def test_a_last_line_that_is_cut_is_no_reading(tmp_path):
    _, batch, account = read(tmp_path, scrape([300.25, 301.25])[:-3])
    assert batch.power_w[0] == 300.25
    assert math.isnan(batch.power_w[1])
    assert sum(account.rows_dropped.values()) == 1


def test_a_value_that_is_no_number_is_counted_and_missing(tmp_path):
    _, batch, account = read(tmp_path, scrape([300.0, 301.0]).replace(" 301.0\n", " 3O1.0\n"))
    assert math.isnan(batch.power_w[1])
    assert "unreadable readings, left out: 1" in account.notes


def test_damaged_labels_are_no_series(tmp_path):
    text = scrape([300.0]) + 'DCGM_FI_DEV_POWER_USAGE{gpu="1",gpu="2"} 5\n'
    _, batch, account = read(tmp_path, text)
    assert batch.power_w.tolist() == [300.0]
    assert account.rows_dropped == {"line is no series": 1}


def test_a_series_that_names_no_gpu_is_dropped(tmp_path):
    text = scrape([300.0]) + 'DCGM_FI_DEV_POWER_USAGE{Hostname="x"} 5\n'
    _, _, account = read(tmp_path, text)
    assert account.rows_dropped == {"series that names no GPU": 1}


def test_an_exporter_without_power_is_refused_with_what_it_has(tmp_path):
    path = tmp_path / "node.prom"
    path.write_text("# HELP node_load1 1m load average.\n# TYPE node_load1 gauge\nnode_load1 0.5\n")
    with pytest.raises(FormatError, match=r"no power metric .* among node_load1; record"):
        open_stream(path)


def test_utf_16_and_crlf_change_nothing(tmp_path):
    text = scrape([300.0, 301.0]).replace("\n", "\r\n")
    _, batch, _ = read(tmp_path, text.encode("utf-16"))
    assert batch.power_w.tolist() == [300.0, 301.0]
