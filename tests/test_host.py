from collections import namedtuple

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.power import host
from harness.power.host import HostMeter, read_disk_bytes, read_net_bytes

Times = namedtuple("Times", "user nice system idle iowait guest guest_nice")
NetCounters = namedtuple("NetCounters", "bytes_recv")
seconds = st.floats(0, 1e6)


def make(cpu_times, disk=lambda: 10, net=lambda: 20):
    readings = iter(cpu_times)
    return HostMeter(
        "node7",
        cpu_times=lambda: next(readings),
        disk_bytes=disk,
        net_bytes=net,
        wall=lambda: 5.0,
    )


def times(user=0.0, idle=0.0, iowait=0.0, guest=0.0):
    return Times(user, 0.0, 0.0, idle, iowait, guest, 0.0)


def test_cpu_share_is_that_of_the_interval():
    meter = make([times(user=100, idle=100), times(user=103, idle=101)])
    meter.read(None)
    row = meter.read(None)
    assert row.host_cpu_pct == pytest.approx(75.0)
    assert (row.t_unix_s, row.host, row.disk_read_bytes, row.net_rx_bytes) == (5.0, "node7", 10, 20)
    assert row.reason is None


def test_the_first_reading_has_no_cpu_share_instead_of_zero():
    row = make([times(user=100, idle=100)]).read(None)
    assert row.host_cpu_pct is None
    assert row.reason == "host_cpu_pct: needs two readings"


def test_waiting_for_a_disk_is_idle():
    meter = make([times(), times(user=1, iowait=3)])
    meter.read(None)
    assert meter.read(None).host_cpu_pct == pytest.approx(25.0)


def test_time_of_a_guest_counts_once():
    meter = make([times(), times(user=2, guest=2, idle=2)])
    meter.read(None)
    assert meter.read(None).host_cpu_pct == pytest.approx(50.0)


def test_counters_that_did_not_move_give_null_instead_of_zero():
    meter = make([times(user=5), times(user=5)])
    meter.read(None)
    row = meter.read(None)
    assert row.host_cpu_pct is None
    assert row.reason == "host_cpu_pct: the CPU counters did not move"


@given(before=st.tuples(*[seconds] * 4), after=st.tuples(*[seconds] * 4))
def test_a_share_is_always_between_0_and_100_or_null_with_a_reason(before, after):
    meter = make([times(*before), times(*after)])
    meter.read(None)
    row = meter.read(None)
    if row.host_cpu_pct is None:
        assert row.reason is not None
    else:
        assert 0.0 <= row.host_cpu_pct <= 100.0


def test_the_reason_for_no_power_stands_in_the_row():
    meter = make([times(), times(user=1)])
    meter.read(None)
    assert meter.read("no NVIDIA driver: X").reason == "power: no NVIDIA driver: X"


def test_a_host_without_counters_gives_nulls_with_reasons():
    def fail():
        raise FileNotFoundError("/proc/diskstats")

    meter = HostMeter("h", cpu_times=fail, disk_bytes=fail, net_bytes=lambda: None)
    row = meter.read(None)
    assert (row.host_cpu_pct, row.disk_read_bytes, row.net_rx_bytes) == (None, None, None)
    assert row.reason == (
        "host_cpu_pct: /proc/diskstats; disk_read_bytes: /proc/diskstats;"
        " net_rx_bytes: none on this host"
    )


def test_an_error_without_a_text_is_named_by_its_type():
    def fail():
        raise NotImplementedError

    row = make([times()], disk=fail).read(None)
    assert "disk_read_bytes: NotImplementedError" in row.reason


def test_loopback_is_no_network(monkeypatch):
    counters = {"lo": NetCounters(1000), "eth0": NetCounters(7), "eth1": NetCounters(5)}
    monkeypatch.setattr(psutil, "net_io_counters", lambda **_: counters)
    assert read_net_bytes() == 12
    del counters["eth0"], counters["eth1"]
    assert read_net_bytes() is None


def test_a_host_that_shows_no_disk_has_no_count(monkeypatch):
    monkeypatch.setattr(psutil, "disk_io_counters", lambda **_: None)
    assert read_disk_bytes() is None


def test_the_counters_of_this_machine_can_be_read():
    row = host.HostMeter("h").read(None)
    assert row.disk_read_bytes is None or row.disk_read_bytes >= 0
    assert row.reason is not None
    assert "host_cpu_pct: needs two readings" in row.reason
