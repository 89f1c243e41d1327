from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.parse import parse, to_plain
from harness.power.amd_smi import RETRY_S, AmdSmiSource, load_amd_smi
from harness.power.amd_smi_gpu import throttle_names
from harness.power.bounded import BoundedSource
from harness.samples import GpuSample, PowerKind, PowerScope

NOT_SUPPORTED, INTERNAL, NOT_FOUND, NOT_INIT, NO_DRIVER = 2, 16, 31, 32, 34
NA = "N/A"


class AmdSmiException(Exception):  # noqa: N818 (its name in the bindings)
    pass


class AmdSmiLibraryException(AmdSmiException):
    def __init__(self, err_code):
        super().__init__(err_code)
        self.err_code = err_code
        self.err_info = f"AMDSMI_STATUS_{err_code} - text"


class FakeAmdSmi:
    """AMD SMI of as many GPUs as asked for, which misbehaves when told to.

    ``broken`` maps a function, a GPU (its index) or (function, index) to an error code.
    """

    AmdSmiException = AmdSmiException
    AmdSmiInitFlags = SimpleNamespace(INIT_AMD_GPUS=2)
    AmdSmiMemoryType = SimpleNamespace(VRAM=0)
    AmdSmiClkType = SimpleNamespace(GFX=0)
    AmdSmiTemperatureType = SimpleNamespace(EDGE=0, HOTSPOT=1, JUNCTION=1)
    AmdSmiTemperatureMetric = SimpleNamespace(CURRENT=0)

    def __init__(self, num_gpus=2):
        self.order = list(range(num_gpus))
        self.broken = {}
        self.sessions = 0
        self.name = "AMD Instinct MI300X OAM"
        self.power = {"current_socket_power": 698, "average_socket_power": NA, "power_limit": 750}
        self.power_of = {}
        self.cap = 750_000_000
        self.energy = {"energy_accumulator": 2_000_000, "counter_resolution": 15.3}
        self.energy_of = {}
        self.activity = 97
        self.memory = 5_000_000_000
        self.clock = {"clk": 2100, "max_clk": 2100}
        self.temperature = 71
        self.throttle = 0
        self.uuid = "uuid-{}"

    def check(self, function, gpu=None):
        for key in (function, gpu, (function, gpu)):
            if key is not None and key in self.broken:
                raise AmdSmiLibraryException(self.broken[key])
        if self.sessions == 0 and function != "init":
            raise AmdSmiLibraryException(NOT_INIT)

    def amdsmi_init(self, flags):
        assert flags == 2
        self.check("init")
        self.sessions += 1

    def amdsmi_shut_down(self):
        self.check("shut_down")
        self.sessions -= 1

    def amdsmi_get_processor_handles(self):
        self.check("handles")
        return list(self.order)

    def amdsmi_get_gpu_device_uuid(self, handle):
        self.check("uuid", handle)
        return self.uuid.format(handle)

    def amdsmi_get_gpu_asic_info(self, handle):
        self.check("asic", handle)
        return {"market_name": self.name}

    def amdsmi_get_power_info(self, handle):
        self.check("power", handle)
        return self.power_of.get(handle, self.power)

    def amdsmi_get_power_cap_info(self, handle):
        self.check("cap", handle)
        return {"power_cap": self.cap}

    def amdsmi_get_energy_count(self, handle):
        self.check("energy", handle)
        return self.energy_of.get(handle, self.energy)

    def amdsmi_get_gpu_activity(self, handle):
        self.check("activity", handle)
        return {"gfx_activity": self.activity, "umc_activity": 3, "mm_activity": NA}

    def amdsmi_get_gpu_memory_usage(self, handle, kind):
        assert kind == 0
        self.check("memory", handle)
        return self.memory

    def amdsmi_get_clock_info(self, handle, kind):
        assert kind == 0
        self.check("clock", handle)
        return self.clock

    def amdsmi_get_temp_metric(self, handle, sensor, metric):
        assert (sensor, metric) == (1, 0)
        self.check("temperature", handle)
        return self.temperature

    def amdsmi_get_gpu_metrics_info(self, handle):
        self.check("metrics", handle)
        return {"indep_throttle_status": self.throttle}


class Clock:
    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


@pytest.fixture(name="lib")
def _lib():
    return FakeAmdSmi()


def open_source(lib, clock=None):
    return AmdSmiSource("h", load=lambda: lib, wall=lambda: 1000.0, monotonic=clock or Clock())


def first(lib):
    return open_source(lib).read().samples[0]


def test_mi300_is_read_in_si_units(lib):
    reading = open_source(lib).read()
    assert reading.faults == ()
    assert [row.gpu for row in reading.samples] == [0, 1]
    row = reading.samples[0]
    assert (row.host, row.gpu_uuid, row.t_unix_s) == ("h", "uuid-0", 1000.0)
    assert (row.power_w, row.power_kind, row.power_scope) == (698.0, "instant", PowerScope.GPU)
    assert row.enforced_limit_w == pytest.approx(750.0)
    assert row.energy_j == pytest.approx(2_000_000 * 15.3e-6)
    assert (row.utilization_pct, row.memory_used_bytes) == (97.0, 5_000_000_000)
    assert (row.sm_clock_mhz, row.temperature_c) == (2100, 71.0)
    assert row.clock_event_reasons == ()
    assert row.reason == "gpm: none on AMD GPUs"
    assert parse(GpuSample, to_plain(row)) == row


def test_mi200_has_an_average_power(lib):
    lib.power = {"current_socket_power": NA, "average_socket_power": 305}
    row = first(lib)
    assert (row.power_w, row.power_kind) == (305.0, PowerKind.AVERAGE)


def test_a_power_that_says_not_which_it_is_has_no_kind(lib):
    lib.power = {"socket_power": 305, "current_socket_power": NA, "average_socket_power": NA}
    row = first(lib)
    assert (row.power_w, row.power_kind) == (305.0, PowerKind.UNKNOWN)


@pytest.mark.parametrize(
    "absent", [NA, 2**16 - 1, 2**32 - 1, 0, None, True, -5, 10**9, float("nan")]
)
def test_an_absent_power_is_null_and_never_a_number(lib, absent):
    lib.power = {"current_socket_power": absent, "average_socket_power": absent}
    row = first(lib)
    assert row.power_w is None
    assert f"current_socket_power reads {absent}" in row.reason
    assert "fault" not in row.reason


def test_a_gpu_keeps_the_kind_it_began_with(lib):
    source = open_source(lib)
    assert source.read().samples[0].power_kind == "instant"
    lib.power = {"current_socket_power": NA, "average_socket_power": 305}
    row = source.read().samples[0]
    assert (row.power_w, row.power_kind) == (None, "instant")


@pytest.mark.parametrize("power", [NA, 0])
@pytest.mark.parametrize("told_by", ["counter", "name"])
def test_the_second_die_is_shared_and_neither_missing_nor_0(lib, power, told_by):
    lib.power = {"average_socket_power": 237}
    lib.power_of[1] = {"average_socket_power": power}
    if told_by == "counter":
        lib.energy_of[1] = {"power": 0, "counter_resolution": 15.3}
    else:
        lib.name = "AMD INSTINCT MI250 (MCM) OAM AC MBA"
        lib.broken["energy", 1] = NOT_SUPPORTED
    one, other = open_source(lib).read().samples
    assert one.power_w == 237.0
    assert other.power_w is None
    assert "power: shared, a second die" in other.reason
    assert "shared" not in one.reason


def test_a_first_die_that_fails_for_a_moment_is_not_called_shared(lib):
    lib.name = "AMD Instinct MI250X"
    source = open_source(lib)
    source.read()
    lib.power_of[0] = {"current_socket_power": NA}
    assert "shared" not in source.read().samples[0].reason


@pytest.mark.parametrize(
    ("cap", "limit_w"), [(750_000_000, 750.0), (560, 560.0), (0, None), (NA, None)]
)
def test_the_cap_is_in_microwatts_and_was_in_watts_once(lib, cap, limit_w):
    lib.cap = cap
    assert first(lib).enforced_limit_w == (None if limit_w is None else pytest.approx(limit_w))


def test_older_bindings_give_other_units_and_names(lib):
    lib.temperature = 71_000
    lib.clock = {"cur_clk": 1700}
    lib.energy = {"power": 1_000_000, "counter_resolution": 15.0}
    row = first(lib)
    assert (row.temperature_c, row.sm_clock_mhz) == (71.0, 1700)
    assert row.energy_j == pytest.approx(15.0)


def test_memory_comes_in_mebibytes_where_bytes_are_not_offered(lib):
    bindings = SimpleNamespace(
        **{name: getattr(lib, name) for name in dir(lib) if name.startswith(("amdsmi", "AmdSmi"))}
    )
    del bindings.amdsmi_get_gpu_memory_usage
    bindings.amdsmi_get_gpu_vram_usage = lambda _: {"vram_used": 283, "vram_total": 196592}
    bindings.AmdSmiTemperatureType = SimpleNamespace(JUNCTION=1)
    row = first(bindings)
    assert row.memory_used_bytes == 283 * 1024**2
    assert row.temperature_c == 71.0
    bindings.amdsmi_get_gpu_vram_usage = lambda _: {"vram_used": NA, "vram_total": NA}
    assert "memory_used: reads nothing" in first(bindings).reason


def test_a_counter_without_its_unit_is_no_energy(lib):
    lib.energy = {"energy_accumulator": 5, "counter_resolution": NA}
    row = first(lib)
    assert row.energy_j is None
    assert "energy: reads N/A" in row.reason


def test_thermal_throttling_gets_the_name_that_triage_knows(lib):
    lib.throttle = 1 << 36
    assert first(lib).clock_event_reasons == ("hw_thermal_slowdown",)
    lib.throttle = NA
    row = first(lib)
    assert row.clock_event_reasons is None
    assert "clock_event_reasons: reads N/A" in row.reason


@given(st.integers(0, 2**64 - 1))
def test_every_bit_of_throttling_has_a_name(mask):
    names = throttle_names(mask)
    assert bool(names) == bool(mask)
    assert len(set(names)) == len(names)


def test_what_is_not_offered_is_no_fault_and_what_breaks_is_one(lib):
    lib.broken = {("activity", 0): NOT_SUPPORTED, ("clock", 0): INTERNAL}
    reading = open_source(lib).read()
    assert reading.faults == ("GPU 0: sm_clock: AMDSMI_STATUS_16 - text",)
    reason = reading.samples[0].reason
    assert "utilization: not supported" in reason
    assert "fault: sm_clock: AMDSMI_STATUS_16 - text" in reason
    assert reading.samples[1].utilization_pct == 97.0


def test_a_utilization_that_cannot_be_is_null(lib):
    lib.activity = 250
    row = first(lib)
    assert row.utilization_pct is None
    assert "utilization: reads 250, which cannot be" in row.reason


def test_bindings_that_lack_a_function_cost_only_that_field(lib):
    lib.amdsmi_get_gpu_metrics_info = None
    lib.amdsmi_get_power_info = lambda _: None
    row = first(lib)
    assert row.power_w is None
    assert row.utilization_pct == 97.0


def test_a_uuid_that_is_not_known_is_a_reason(lib):
    lib.uuid = NA
    row = first(lib)
    assert row.gpu_uuid is None
    assert "gpu_uuid: unknown" in row.reason


def test_a_machine_without_bindings_or_library_or_driver_says_which(lib):
    def missing():
        raise ImportError

    def unloadable():
        raise OSError("libamd_smi.so: cannot open")

    assert AmdSmiSource("h", load=missing).read().reason.startswith("no AMD SMI bindings")
    reason = AmdSmiSource("h", load=unloadable).read().reason
    assert reason == "the AMD SMI library cannot be loaded: libamd_smi.so: cannot open"
    lib.broken["init"] = NO_DRIVER
    reading = open_source(lib).read()
    assert reading.reason == "no AMD driver: AMDSMI_STATUS_34 - text"
    assert (reading.samples, reading.faults) == ((), (reading.reason,))


def test_a_driver_that_lists_nothing_is_a_reason_and_leaves_no_session(lib):
    lib.order = []
    assert open_source(lib).read().reason == "the AMD driver lists no GPU"
    assert lib.sessions == 0
    lib.broken["handles"] = INTERNAL
    assert open_source(lib).read().reason == "AMD SMI failed: AMDSMI_STATUS_16 - text"


def test_a_driver_that_goes_and_comes_back_keeps_the_gpus(lib):
    clock = Clock()
    source = open_source(lib, clock)
    source.read()
    lib.broken["power"] = NO_DRIVER
    gone = source.read()
    assert [row.gpu_uuid for row in gone.samples] == ["uuid-0", "uuid-1"]
    assert {row.power_w for row in gone.samples} == {None}
    assert {row.reason for row in gone.samples} == {
        "fault: AMD SMI failed: AMDSMI_STATUS_34 - text"
    }
    assert gone.reason is None
    del lib.broken["power"]
    lib.order = [1, 0]
    assert source.read().samples[0].power_w is None
    clock.now_s += RETRY_S
    back = source.read().samples
    assert [(row.gpu, row.gpu_uuid) for row in back] == [(0, "uuid-1"), (1, "uuid-0")]
    assert [row.power_w for row in back] == [698.0, 698.0]
    assert all(row.power_kind == "instant" for row in back)
    source.close()
    assert lib.sessions == 0


def test_a_driver_that_stays_away_is_a_fault_of_known_gpus(lib):
    clock = Clock()
    source = open_source(lib, clock)
    source.read()
    lib.broken = {"power": NO_DRIVER, "init": NO_DRIVER}
    source.read()
    clock.now_s += RETRY_S
    assert source.read().samples[0].reason == "fault: no AMD driver: AMDSMI_STATUS_34 - text"


def test_a_gpu_that_is_lost_is_looked_for_again_and_its_peer_goes_on(lib):
    clock = Clock()
    source = open_source(lib, clock)
    source.read()
    lib.broken[1] = NOT_FOUND
    reading = source.read()
    assert [row.power_w for row in reading.samples] == [698.0, None]
    assert reading.samples[1].reason == "fault: GPU not found"
    assert reading.faults == ("GPU 1: GPU not found",)
    del lib.broken[1]
    assert source.read().samples[1].power_w is None
    clock.now_s += RETRY_S
    assert source.read().samples[1].power_w == 698.0


def test_a_gpu_that_vanishes_from_the_list_stays_in_the_rows(lib):
    clock = Clock()
    source = open_source(lib, clock)
    source.read()
    lib.broken[1] = NOT_FOUND
    source.read()
    lib.broken, lib.order = {}, [0]
    clock.now_s += RETRY_S
    row = source.read().samples[1]
    assert (row.gpu_uuid, row.reason) == ("uuid-1", "fault: not listed by the driver any more")
    clock.now_s += RETRY_S
    lib.broken["handles"] = INTERNAL
    assert source.read().samples[1].reason == "fault: cannot be opened: AMDSMI_STATUS_16 - text"
    clock.now_s += RETRY_S
    lib.broken = {"handles": NO_DRIVER}
    assert source.read().samples[1].reason == "fault: AMD SMI failed: AMDSMI_STATUS_34 - text"
    lib.broken = {}
    clock.now_s += RETRY_S
    assert source.read().samples[1].reason == "fault: not listed by the driver any more"


def test_a_gpu_that_is_lost_while_it_is_looked_for_stays_lost(lib):
    clock = Clock()
    lib.broken[("uuid", 1)] = NOT_FOUND
    source = open_source(lib, clock)
    assert source.read().samples[1].reason == "fault: GPU not found"
    clock.now_s += RETRY_S
    assert source.read().samples[1].reason == "fault: GPU not found"


def test_a_session_that_cannot_be_ended_is_given_up(lib):
    source = open_source(lib)
    source.read()
    lib.broken["shut_down"] = INTERNAL
    source.close()
    source.close()
    assert lib.sessions == 1


def test_a_stuck_driver_is_named_for_what_it_is(lib):
    bounded = BoundedSource(open_source(lib), timeout_s=5.0, first_timeout_s=5.0)
    assert len(bounded.read().samples) == 2
    assert bounded._silence(2.0).faults == ("AMD SMI did not answer within 2 s",)
    bounded.close()
    assert lib.sessions == 0


def test_this_machine_without_the_package_is_told_so():
    try:
        load_amd_smi()
    except (ImportError, OSError):
        reading = AmdSmiSource("h").read()
        assert reading.samples == ()
        assert "AMD SMI" in reading.reason
    else:
        pytest.skip("the package amdsmi is installed here")
