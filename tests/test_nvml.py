import math
import threading
from types import SimpleNamespace

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.parse import parse, to_plain
from harness.power.bounded import BoundedSource
from harness.power.nvml import describe_gpus, load_nvml
from harness.power.nvml_gpu import clock_event_names
from harness.power.nvml_source import RETRY_S, NvmlSource
from harness.samples import GpuSample, PowerKind, PowerScope

AVERAGE, INSTANT, SMOOTHING = 185, 186, 251
NOT_SUPPORTED, FUNCTION_NOT_FOUND, UNKNOWN = 3, 13, 999
DRIVER_NOT_LOADED, UNINITIALIZED = 9, 1
GPU_IS_LOST, RESET_REQUIRED = 15, 16
MEASUREMENTS = (
    "power_w",
    "enforced_limit_w",
    "energy_j",
    "utilization_pct",
    "memory_used_bytes",
    "sm_clock_mhz",
    "temperature_c",
    "clock_event_reasons",
    "gpm",
)


class FakeNvml:
    """NVML with GPUs that misbehave on demand; constants, structs and errors are the real ones.

    ``broken`` maps a function, a field id, a GPU (its index) or (function, index) to an error code.
    """

    def __init__(self, num_gpus=2):
        self.order = list(range(num_gpus))
        self.broken = {}
        self.fields = {AVERAGE: 400_000, INSTANT: 450_000, SMOOTHING: 0}
        self.scope = 0
        self.values = {}
        self.capability = (9, 0)
        self.name = "NVIDIA H100 80GB HBM3"
        self.mig = 0
        self.inits = 0
        self.open_sessions = 0
        self.calls = []
        self.gpm_value = 50.0
        self.gpm_return = 0
        self.live_gpm_samples = 0

    def __getattr__(self, name):
        if name.startswith(("nvmlGpm", "nvmlDevice", "nvmlSystem", "nvmlInit", "nvmlShut")):
            raise AttributeError(name)
        return getattr(pynvml, name)

    def check(self, function, gpu=None):
        self.calls.append((function, gpu))
        for key in (function, gpu, (function, gpu)):
            if key is not None and key in self.broken:
                raise pynvml.NVMLError(self.broken[key])
        if self.open_sessions == 0 and function != "nvmlInit":
            raise pynvml.NVMLError(UNINITIALIZED)

    def value(self, function, handle, default):
        self.check(function, handle)
        return self.values.get(function, default)

    def nvmlInit(self):  # noqa: N802
        self.inits += 1
        self.check("nvmlInit")
        self.open_sessions += 1

    def nvmlShutdown(self):  # noqa: N802
        self.check("nvmlShutdown")
        self.open_sessions -= 1

    def nvmlSystemGetDriverVersion(self):  # noqa: N802
        self.check("nvmlSystemGetDriverVersion")
        return b"580.65.06"

    def nvmlDeviceGetCount(self):  # noqa: N802
        self.check("nvmlDeviceGetCount")
        return len(self.order)

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        self.check("nvmlDeviceGetHandleByIndex", self.order[index])
        return self.order[index]

    def nvmlDeviceGetHandleByUUID(self, uuid):  # noqa: N802
        gpu = int(uuid.removeprefix("GPU-"))
        self.check("nvmlDeviceGetHandleByUUID", gpu)
        if gpu not in self.order:
            raise pynvml.NVMLError(6)
        return gpu

    def nvmlDeviceGetUUID(self, handle):  # noqa: N802
        return self.value("nvmlDeviceGetUUID", handle, f"GPU-{handle}")

    def nvmlDeviceGetName(self, handle):  # noqa: N802
        return self.value("nvmlDeviceGetName", handle, self.name)

    def nvmlDeviceGetMigMode(self, handle):  # noqa: N802
        return self.value("nvmlDeviceGetMigMode", handle, [self.mig, 0])

    def nvmlDeviceGetEccMode(self, handle):  # noqa: N802
        return self.value("nvmlDeviceGetEccMode", handle, [1, 1])

    def nvmlDeviceGetCudaComputeCapability(self, handle):  # noqa: N802
        return self.value("nvmlDeviceGetCudaComputeCapability", handle, self.capability)

    def nvmlDeviceGetPciInfo(self, handle):  # noqa: N802
        return self.value(
            "nvmlDeviceGetPciInfo", handle, SimpleNamespace(busId=b"00000000:19:00.0")
        )

    def nvmlDeviceGetFieldValues(self, handle, field_ids):  # noqa: N802
        self.check("nvmlDeviceGetFieldValues", handle)
        answers = (pynvml.c_nvmlFieldValue_t * len(field_ids))()
        for answer, field_id in zip(answers, field_ids, strict=True):
            answer.fieldId, answer.scopeId = field_id, self.scope
            answer.valueType = pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
            answer.nvmlReturn = self.broken.get(field_id, 0)
            answer.value.uiVal = self.fields[field_id]
        return answers

    def nvmlDeviceGetPowerUsage(self, handle):  # noqa: N802
        return self.value("nvmlDeviceGetPowerUsage", handle, 410_000)

    def nvmlDeviceGetEnforcedPowerLimit(self, handle):  # noqa: N802
        return self.value("nvmlDeviceGetEnforcedPowerLimit", handle, 700_000)

    def nvmlDeviceGetPowerManagementDefaultLimit(self, handle):  # noqa: N802
        return self.value("nvmlDeviceGetPowerManagementDefaultLimit", handle, 700_000)

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):  # noqa: N802
        return self.value("nvmlDeviceGetTotalEnergyConsumption", handle, 1_234_567)

    def nvmlDeviceGetUtilizationRates(self, handle):  # noqa: N802
        gpu = self.value("nvmlDeviceGetUtilizationRates", handle, 97)
        return SimpleNamespace(gpu=gpu, memory=3)

    def nvmlDeviceGetMemoryInfo(self, handle):  # noqa: N802
        used = self.value("nvmlDeviceGetMemoryInfo", handle, 60 * 2**30)
        return SimpleNamespace(used=used, total=80 * 2**30)

    def nvmlDeviceGetClockInfo(self, handle, kind):  # noqa: N802
        assert kind == pynvml.NVML_CLOCK_SM
        return self.value("nvmlDeviceGetClockInfo", handle, 1980)

    def nvmlDeviceGetMaxClockInfo(self, handle, kind):  # noqa: N802
        assert kind == pynvml.NVML_CLOCK_SM
        return self.value("nvmlDeviceGetMaxClockInfo", handle, 1980)

    def nvmlDeviceGetTemperature(self, handle, sensor):  # noqa: N802
        assert sensor == pynvml.NVML_TEMPERATURE_GPU
        return self.value("nvmlDeviceGetTemperature", handle, 61)

    def nvmlDeviceGetTemperatureV(self, handle, sensor):  # noqa: N802
        assert sensor == pynvml.NVML_TEMPERATURE_GPU
        return self.value("nvmlDeviceGetTemperatureV", handle, 62)

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle):  # noqa: N802
        return self.value("nvmlDeviceGetCurrentClocksEventReasons", handle, 0b100)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle):  # noqa: N802
        return self.value("nvmlDeviceGetCurrentClocksThrottleReasons", handle, 0b1000)

    def nvmlGpmQueryDeviceSupport(self, handle):  # noqa: N802
        supported = self.value("nvmlGpmQueryDeviceSupport", handle, 1)
        return SimpleNamespace(isSupportedDevice=supported)

    def nvmlGpmSampleAlloc(self):  # noqa: N802
        self.live_gpm_samples += 1
        return pynvml.c_nvmlGpmSample_t()

    def nvmlGpmSampleFree(self, _):  # noqa: N802
        self.check("nvmlGpmSampleFree")
        self.live_gpm_samples -= 1

    def nvmlGpmSampleGet(self, handle, buffer):  # noqa: N802
        self.check("nvmlGpmSampleGet", handle)
        return buffer

    def nvmlGpmMetricsGet(self, request):  # noqa: N802
        self.check("nvmlGpmMetricsGet")
        for metric in request.metrics[: request.numMetrics]:
            metric.value, metric.nvmlReturn = self.gpm_value, self.gpm_return
        return request


class Clock:
    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


def make(nvml, clock=None):
    clock = clock or Clock()
    return NvmlSource("node7", load=lambda: nvml, wall=lambda: 1e9, monotonic=clock)


def first_row(nvml):
    return make(nvml).read().samples[0]


def null_fields(row):
    return {name for name in MEASUREMENTS if getattr(row, name) is None}


def test_a_healthy_gpu_gives_a_full_row_in_si_units():
    nvml = FakeNvml()
    source = make(nvml)
    source.read()
    reading = source.read()
    row = reading.samples[1]
    assert (row.gpu, row.gpu_uuid, row.host, row.t_unix_s) == (1, "GPU-1", "node7", 1e9)
    assert row.power_w == pytest.approx(400.0)
    assert (row.power_kind, row.power_scope) == (PowerKind.AVERAGE, PowerScope.GPU)
    assert row.enforced_limit_w == pytest.approx(700.0)
    assert row.energy_j == pytest.approx(1234.567)
    assert (row.utilization_pct, row.memory_used_bytes) == (97.0, 60 * 2**30)
    assert (row.sm_clock_mhz, row.temperature_c) == (1980, 61.0)
    assert row.clock_event_reasons == ("sw_power_cap",)
    assert row.gpm is not None
    assert (row.gpm.sm, row.gpm.tensor, row.gpm.dram) == (0.5, 0.5, 0.5)
    assert row.gpm.nvlink_bytes_per_s == 100 * 2**20
    assert row.reason is None
    assert (reading.faults, reading.reason) == ((), None)


def test_a_row_survives_the_way_to_disk_and_back():
    row = first_row(FakeNvml())
    assert parse(GpuSample, to_plain(row)) == row


@pytest.mark.parametrize(
    "place",
    [
        ("nvmlDeviceGetEnforcedPowerLimit", "enforced_limit_w", "enforced_limit"),
        ("nvmlDeviceGetTotalEnergyConsumption", "energy_j", "energy"),
        ("nvmlDeviceGetUtilizationRates", "utilization_pct", "utilization"),
        ("nvmlDeviceGetMemoryInfo", "memory_used_bytes", "memory_used"),
        ("nvmlDeviceGetClockInfo", "sm_clock_mhz", "sm_clock"),
        ("nvmlDeviceGetTemperature", "temperature_c", "temperature"),
        ("nvmlDeviceGetCurrentClocksEventReasons", "clock_event_reasons", "clock_event_reasons"),
        ("nvmlGpmSampleGet", "gpm", "gpm"),
    ],
)
@pytest.mark.parametrize(
    "failure",
    [
        (NOT_SUPPORTED, "not supported", False),
        (4, "Insufficient Permissions", False),
        (UNKNOWN, "Unknown Error (ERR!)", True),
    ],
)
def test_one_failing_field_is_null_with_its_reason_and_the_rest_goes_on(place, failure):
    function, field, word = place
    code, text, is_fault = failure
    nvml = FakeNvml()
    source = make(nvml)
    source.read()
    nvml.broken[function] = code
    reading = source.read()
    row = reading.samples[0]
    assert null_fields(row) == {field}
    assert row.reason == (f"fault: {word}: {text}" if is_fault else f"{word}: {text}")
    assert bool(reading.faults) == is_fault


def test_a_function_that_the_bindings_lack_is_an_absence(monkeypatch):
    monkeypatch.delattr(FakeNvml, "nvmlDeviceGetTotalEnergyConsumption")
    row = first_row(FakeNvml())
    assert row.energy_j is None
    assert "energy: not offered by these bindings" in row.reason


@pytest.mark.parametrize("garbage", [None, "text", float("nan"), float("inf")])
def test_a_reading_that_is_no_number_is_null(garbage):
    nvml = FakeNvml()
    nvml.values["nvmlDeviceGetClockInfo"] = garbage
    row = first_row(nvml)
    assert row.sm_clock_mhz is None
    assert "sm_clock: " in row.reason


@pytest.mark.parametrize(
    ("function", "value", "field", "text"),
    [
        ("nvmlDeviceGetClockInfo", 2**32 - 1, "sm_clock_mhz", "not available"),
        ("nvmlDeviceGetMemoryInfo", 2**64 - 1, "memory_used_bytes", "not available"),
        ("nvmlDeviceGetUtilizationRates", 137, "utilization_pct", "reads 137, which cannot be"),
        ("nvmlDeviceGetClockInfo", -1, "sm_clock_mhz", "reads -1, which cannot be"),
        ("nvmlDeviceGetTotalEnergyConsumption", 0, "energy_j", "reads 0, taken as missing"),
        ("nvmlDeviceGetEnforcedPowerLimit", 0, "enforced_limit_w", "reads 0, taken as missing"),
    ],
)
def test_a_disguised_absence_is_null(function, value, field, text):
    nvml = FakeNvml()
    nvml.values[function] = value
    row = first_row(nvml)
    assert getattr(row, field) is None
    assert text in row.reason


def test_true_zeros_stay_zeros():
    nvml = FakeNvml()
    nvml.values |= {
        "nvmlDeviceGetUtilizationRates": 0,
        "nvmlDeviceGetTemperature": 0,
        "nvmlDeviceGetCurrentClocksEventReasons": 0,
    }
    row = first_row(nvml)
    assert (row.utilization_pct, row.temperature_c, row.clock_event_reasons) == (0.0, 0.0, ())


@given(
    values=st.dictionaries(
        st.sampled_from(
            [
                "nvmlDeviceGetEnforcedPowerLimit",
                "nvmlDeviceGetTotalEnergyConsumption",
                "nvmlDeviceGetUtilizationRates",
                "nvmlDeviceGetMemoryInfo",
                "nvmlDeviceGetClockInfo",
                "nvmlDeviceGetTemperature",
                "nvmlDeviceGetCurrentClocksEventReasons",
            ]
        ),
        st.one_of(st.none(), st.integers(-(2**64), 2**65), st.floats(), st.text(max_size=3)),
    ),
    broken=st.dictionaries(
        st.sampled_from(["nvmlDeviceGetPowerUsage", "nvmlDeviceGetClockInfo", AVERAGE, INSTANT, 0]),
        st.sampled_from([2, 3, 4, 10, 13, 15, 16, 17, 21, 999, 12345]),
    ),
    milliwatts=st.integers(0, 2**32 - 1),
)
def test_whatever_the_driver_says_every_null_has_a_reason_and_every_number_is_finite(
    values, broken, milliwatts
):
    nvml = FakeNvml()
    nvml.values, nvml.broken = values, broken
    nvml.fields |= {AVERAGE: milliwatts, INSTANT: milliwatts}
    reading = make(nvml).read()
    assert [row.gpu for row in reading.samples] == [0, 1]
    for row in reading.samples:
        assert bool(null_fields(row)) == (row.reason is not None)
        assert row.power_w is None or row.power_w > 0
        numbers = [getattr(row, name) for name in MEASUREMENTS[:7]]
        assert all(math.isfinite(number) for number in numbers if number is not None)


def test_without_the_average_field_the_instant_one_is_read_and_named():
    nvml = FakeNvml()
    nvml.broken[AVERAGE] = NOT_SUPPORTED
    row = first_row(nvml)
    assert (row.power_w, row.power_kind) == (pytest.approx(450.0), PowerKind.INSTANT)
    assert "power" not in row.reason


@pytest.mark.parametrize(
    ("capability", "kind"),
    [
        ((7, 0), PowerKind.INSTANT),
        ((8, 0), PowerKind.INSTANT),
        ((8, 6), PowerKind.AVERAGE),
        ((9, 0), PowerKind.AVERAGE),
        ((10, 3), PowerKind.AVERAGE),
    ],
)
def test_without_power_fields_the_architecture_says_the_kind(capability, kind):
    nvml = FakeNvml()
    nvml.capability = capability
    nvml.broken["nvmlDeviceGetFieldValues"] = FUNCTION_NOT_FOUND
    row = first_row(nvml)
    assert (row.power_w, row.power_kind) == (pytest.approx(410.0), kind)


def test_without_an_architecture_the_kind_is_unknown():
    nvml = FakeNvml()
    nvml.broken |= {
        "nvmlDeviceGetFieldValues": FUNCTION_NOT_FOUND,
        "nvmlDeviceGetCudaComputeCapability": NOT_SUPPORTED,
    }
    row = first_row(nvml)
    assert (row.power_w, row.power_kind) == (pytest.approx(410.0), PowerKind.UNKNOWN)


def test_a_kind_that_was_chosen_is_never_swapped_for_the_other():
    nvml = FakeNvml()
    source = make(nvml)
    source.read()
    nvml.broken[AVERAGE] = NOT_SUPPORTED
    row = source.read().samples[0]
    assert (row.power_w, row.power_kind) == (None, PowerKind.AVERAGE)
    assert row.reason == "power (field 185): not supported"


def test_a_passing_fault_at_the_first_tick_does_not_choose_the_lesser_kind():
    nvml = FakeNvml()
    source = make(nvml)
    nvml.broken[AVERAGE] = UNKNOWN
    row = source.read().samples[0]
    assert row.power_w is None
    assert "fault: power (field 185): Unknown Error (ERR!)" in row.reason
    del nvml.broken[AVERAGE]
    assert source.read().samples[0].power_kind is PowerKind.AVERAGE


def test_zero_watts_from_a_sensor_polled_too_fast_is_missing():
    nvml = FakeNvml()
    source = make(nvml)
    source.read()
    nvml.fields[AVERAGE] = 0
    row = source.read().samples[0]
    assert row.power_w is None
    assert row.reason == "power (field 185): reads 0, taken as missing"


def test_power_of_a_module_has_no_limit_of_the_gpu_beside_it():
    nvml = FakeNvml()
    nvml.scope = 1
    row = first_row(nvml)
    assert (row.power_w, row.power_scope) == (pytest.approx(400.0), PowerScope.MODULE)
    assert row.enforced_limit_w is None
    assert "enforced_limit: of the GPU, power is of scope module" in row.reason


def test_the_plain_reading_of_a_superchip_has_an_unknown_scope():
    nvml = FakeNvml()
    nvml.name = "NVIDIA GH200 480GB"
    nvml.broken["nvmlDeviceGetFieldValues"] = FUNCTION_NOT_FOUND
    row = first_row(nvml)
    assert (row.power_scope, row.enforced_limit_w) == (PowerScope.UNKNOWN, None)


def test_mig_has_no_utilization_power_or_energy_and_says_so():
    nvml = FakeNvml()
    nvml.mig = 1
    row = first_row(nvml)
    assert null_fields(row) == {"power_w", "energy_j", "utilization_pct", "gpm"}
    assert "utilization: none while MIG is enabled" in row.reason
    assert "power: of the whole GPU only while MIG is enabled" in row.reason


def test_gpm_needs_two_samples_and_a_failed_one_starts_again():
    nvml = FakeNvml()
    source = make(nvml)
    assert source.read().samples[0].reason == "gpm: needs two samples"
    assert source.read().samples[0].gpm is not None
    nvml.broken["nvmlGpmSampleGet"] = UNKNOWN
    assert source.read().samples[0].gpm is None
    del nvml.broken["nvmlGpmSampleGet"]
    assert source.read().samples[0].reason == "gpm: needs two samples"
    assert source.read().samples[0].gpm is not None


def test_gpm_is_absent_before_hopper_and_asked_for_once():
    nvml = FakeNvml()
    nvml.values["nvmlGpmQueryDeviceSupport"] = 0
    source = make(nvml)
    source.read()
    row = source.read().samples[0]
    assert (row.gpm, row.reason) == (None, "gpm: not supported")
    assert nvml.calls.count(("nvmlGpmQueryDeviceSupport", 0)) == 1


@pytest.mark.parametrize(("value", "code"), [(math.nan, 0), (250.0, 0), (50.0, NOT_SUPPORTED)])
def test_a_gpm_metric_that_cannot_be_is_null(value, code):
    nvml = FakeNvml()
    nvml.gpm_value, nvml.gpm_return = value, code
    source = make(nvml)
    source.read()
    row = source.read().samples[0]
    assert (row.gpm.sm, row.gpm.tensor, row.gpm.dram) == (None, None, None)
    assert row.reason == "gpm: some metrics are not available"


def test_an_old_driver_names_clock_reasons_by_the_older_function():
    nvml = FakeNvml()
    nvml.broken["nvmlDeviceGetCurrentClocksEventReasons"] = FUNCTION_NOT_FOUND
    assert first_row(nvml).clock_event_reasons == ("hw_slowdown",)


def test_bindings_without_the_older_temperature_function_use_the_newer(monkeypatch):
    monkeypatch.delattr(FakeNvml, "nvmlDeviceGetTemperature")
    assert first_row(FakeNvml()).temperature_c == 62.0


@given(st.integers(0, 2**64 - 1))
def test_every_set_bit_of_the_clock_mask_has_one_name(mask):
    names = clock_event_names(mask)
    assert len(set(names)) == len(names) == mask.bit_count()


def test_a_bit_newer_than_this_code_keeps_its_number():
    assert clock_event_names(1 << 40 | 0b1000000) == ("hw_thermal_slowdown", "bit_40")


@pytest.mark.parametrize(
    ("code", "text"),
    [(GPU_IS_LOST, "GPU is lost"), (RESET_REQUIRED, "GPU requires reset"), (28, "GPU not found")],
)
def test_a_gpu_that_vanishes_is_a_row_of_nulls_and_the_others_go_on(code, text):
    nvml, clock = FakeNvml(num_gpus=3), Clock()
    source = make(nvml, clock)
    source.read()
    nvml.broken[1] = code
    reading = source.read()
    lost, others = reading.samples[1], (reading.samples[0], reading.samples[2])
    assert null_fields(lost) == set(MEASUREMENTS)
    assert (lost.gpu, lost.gpu_uuid, lost.reason) == (1, "GPU-1", f"fault: {text}")
    assert lost.power_kind is PowerKind.AVERAGE
    assert all(row.reason is None for row in others)
    assert reading.faults == (f"GPU 1: {text}",)


def test_a_lost_gpu_is_looked_for_at_a_bounded_rate_and_comes_back():
    nvml, clock = FakeNvml(), Clock()
    source = make(nvml, clock)
    source.read()
    nvml.broken[1] = GPU_IS_LOST
    source.read()
    nvml.calls.clear()
    for _ in range(10):
        clock.now_s += RETRY_S / 20
        source.read()
    assert not [call for call in nvml.calls if call[1] == 1]
    clock.now_s += RETRY_S
    assert source.read().samples[1].reason == "fault: GPU is lost"
    assert [call for call in nvml.calls if call[1] == 1] == [("nvmlDeviceGetHandleByUUID", 1)]
    del nvml.broken[1]
    clock.now_s += RETRY_S
    assert source.read().samples[1].power_w == pytest.approx(400.0)


def test_a_gpu_that_cannot_be_opened_at_the_start_is_a_row_of_nulls_from_the_first_tick():
    nvml = FakeNvml()
    nvml.broken["nvmlDeviceGetHandleByIndex", 0] = RESET_REQUIRED
    rows = make(nvml).read().samples
    assert (rows[0].gpu, rows[0].gpu_uuid) == (0, None)
    assert rows[0].reason == "fault: GPU requires reset"
    assert rows[1].power_w == pytest.approx(400.0)


def test_a_gpu_that_no_user_may_open_keeps_its_reason():
    nvml = FakeNvml()
    nvml.broken["nvmlDeviceGetHandleByIndex", 0] = 4
    assert (
        make(nvml).read().samples[0].reason == "fault: cannot be opened: Insufficient Permissions"
    )


@pytest.mark.parametrize("code", [DRIVER_NOT_LOADED, UNINITIALIZED, 18])
def test_a_driver_unloaded_mid_run_is_rows_of_nulls_until_it_is_back(code):
    nvml, clock = FakeNvml(), Clock()
    source = make(nvml, clock)
    source.read()
    nvml.broken |= {
        "nvmlDeviceGetFieldValues": code,
        "nvmlShutdown": code,
        "nvmlInit": DRIVER_NOT_LOADED,
    }
    reading = source.read()
    nvml.open_sessions = 0
    assert [null_fields(row) for row in reading.samples] == [set(MEASUREMENTS)] * 2
    assert all(row.reason.startswith("fault: NVML failed: ") for row in reading.samples)
    assert len(reading.faults) == 1
    clock.now_s += RETRY_S
    again = source.read()
    assert [row.gpu_uuid for row in again.samples] == ["GPU-0", "GPU-1"]
    assert again.samples[0].reason == "fault: no NVIDIA driver: Driver Not Loaded"
    nvml.broken.clear()
    clock.now_s += RETRY_S
    assert source.read().samples[1].power_w == pytest.approx(400.0)


def test_initialisation_is_tried_again_at_a_bounded_rate():
    nvml, clock = FakeNvml(), Clock()
    source = make(nvml, clock)
    source.read()
    nvml.broken |= {"nvmlDeviceGetFieldValues": DRIVER_NOT_LOADED, "nvmlInit": DRIVER_NOT_LOADED}
    before = nvml.inits
    for _ in range(200):
        clock.now_s += 0.1
        source.read()
    assert nvml.inits - before <= 20.0 / RETRY_S + 1


def test_a_session_lost_between_two_gpus_keeps_what_was_read():
    nvml = FakeNvml(num_gpus=3)
    source = make(nvml)
    source.read()
    nvml.broken["nvmlDeviceGetFieldValues", 1] = UNINITIALIZED
    rows = source.read().samples
    assert [row.power_w is None for row in rows] == [False, True, True]


def test_gpus_keep_their_uuid_and_kind_when_the_driver_numbers_them_anew():
    nvml, clock = FakeNvml(num_gpus=3), Clock()
    source = make(nvml, clock)
    source.read()
    nvml.broken["nvmlDeviceGetFieldValues"] = UNINITIALIZED
    source.read()
    nvml.broken.clear()
    nvml.broken[AVERAGE] = NOT_SUPPORTED
    nvml.order = [2, 0]
    clock.now_s += RETRY_S
    rows = source.read().samples
    assert [(row.gpu, row.gpu_uuid) for row in rows] == [(0, "GPU-2"), (1, "GPU-0"), (1, "GPU-1")]
    assert {row.power_kind for row in rows} == {PowerKind.AVERAGE}
    assert rows[2].reason == "fault: not listed by the driver any more"
    clock.now_s += RETRY_S
    assert source.read().samples[2].reason == "fault: cannot be opened: Not Found"


def test_a_gpu_unreadable_after_the_driver_came_back_is_not_counted_twice():
    nvml, clock = FakeNvml(), Clock()
    source = make(nvml, clock)
    source.read()
    nvml.broken["nvmlDeviceGetFieldValues"] = UNINITIALIZED
    source.read()
    nvml.broken = {"nvmlDeviceGetHandleByIndex": GPU_IS_LOST}
    clock.now_s += RETRY_S
    rows = source.read().samples
    assert [(row.gpu, row.gpu_uuid) for row in rows] == [(0, "GPU-0"), (1, "GPU-1")]


def test_no_driver_is_a_reason_and_no_rows():
    nvml = FakeNvml()
    nvml.broken["nvmlInit"] = 12
    reading = make(nvml).read()
    assert reading.samples == ()
    assert reading.reason == "no NVIDIA driver: NVML Shared Library Not Found"


def test_missing_bindings_are_a_reason():
    def load():
        raise ImportError

    source = NvmlSource("h", load=load)
    assert source.open() == "no NVML bindings: install the package nvidia-ml-py"


def test_a_driver_without_gpus_is_a_reason_and_leaves_no_session():
    nvml = FakeNvml(num_gpus=0)
    assert make(nvml).open() == "the NVIDIA driver lists no GPU"
    assert nvml.open_sessions == 0


def test_a_driver_that_fails_while_its_gpus_are_listed_is_a_reason():
    nvml = FakeNvml()
    nvml.broken["nvmlDeviceGetUUID"] = DRIVER_NOT_LOADED
    assert make(nvml).open() == "NVML failed: Driver Not Loaded"
    assert nvml.open_sessions == 0


def test_a_driver_that_dies_when_a_lost_gpu_is_looked_for_takes_the_session_along():
    nvml, clock = FakeNvml(), Clock()
    source = make(nvml, clock)
    source.read()
    nvml.broken[1] = GPU_IS_LOST
    source.read()
    nvml.broken = {"nvmlDeviceGetHandleByUUID": DRIVER_NOT_LOADED}
    clock.now_s += RETRY_S
    assert source.read().samples[1].reason == "fault: NVML failed: Driver Not Loaded"


def test_a_gpu_without_a_uuid_says_so():
    nvml = FakeNvml()
    nvml.broken["nvmlDeviceGetUUID"] = NOT_SUPPORTED
    row = first_row(nvml)
    assert row.gpu_uuid is None
    assert "gpu_uuid: unknown" in row.reason


def test_closing_gives_back_the_session_and_the_samples():
    nvml = FakeNvml()
    source = make(nvml)
    source.read()
    assert (nvml.open_sessions, nvml.live_gpm_samples) == (1, 4)
    source.close()
    source.close()
    assert (nvml.open_sessions, nvml.live_gpm_samples) == (0, 0)


def test_the_real_bindings_are_loaded_only_when_asked_for():
    assert load_nvml() is pynvml


class Stuck:
    """A source whose driver blocks until it is released."""

    source = NvmlSource.source

    def __init__(self):
        self.inner = make(FakeNvml())
        self.release = threading.Event()
        self.release.set()
        self.num_reads = 0
        self.is_closed = False

    def read(self):
        self.num_reads += 1
        self.release.wait(30)
        return self.inner.read()

    def close(self):
        self.is_closed = True


def test_a_driver_that_blocks_is_rows_of_nulls_and_is_asked_only_once():
    stuck = Stuck()
    source = BoundedSource(stuck, timeout_s=0.05, first_timeout_s=30, wall=lambda: 7.0)
    assert source.read().samples[0].power_w == pytest.approx(400.0)
    stuck.release.clear()
    for _ in range(3):
        reading = source.read()
        row = reading.samples[1]
        assert null_fields(row) == set(MEASUREMENTS)
        assert (row.gpu_uuid, row.t_unix_s) == ("GPU-1", 7.0)
        assert row.reason == "fault: NVML did not answer within 0.05 s"
        assert reading.faults == ("NVML did not answer within 0.05 s",)
    assert stuck.num_reads == 2
    source.close()
    assert not stuck.is_closed
    stuck.release.set()


def test_a_driver_that_answers_again_is_read_again():
    stuck = Stuck()
    stuck.release.clear()
    source = BoundedSource(stuck, timeout_s=30, first_timeout_s=0.01)
    reading = source.read()
    assert (reading.samples, reading.reason) == (
        (),
        "fault: NVML did not answer within 0.01 s",
    )
    stuck.release.set()
    rows = ()
    for _ in range(1000):
        rows = source.read().samples
        if rows:
            break
        threading.Event().wait(0.001)
    assert rows[0].power_w == pytest.approx(400.0)
    source.close()
    assert stuck.is_closed


def test_a_programming_error_behind_the_bound_is_not_swallowed():
    class Broken(Stuck):
        def read(self):
            raise KeyError("a bug")

    source = BoundedSource(Broken(), timeout_s=30, first_timeout_s=30)
    with pytest.raises(KeyError, match="a bug"):
        source.read()
    source.close()


def test_gpus_are_described_for_the_manifest():
    nvml = FakeNvml()
    driver, gpus, reason = describe_gpus(lambda: nvml)
    assert (driver, reason) == ("580.65.06", None)
    gpu = gpus[1]
    assert (gpu.index, gpu.name, gpu.uuid) == (1, "NVIDIA H100 80GB HBM3", "GPU-1")
    assert gpu.pci_bus_id == "00000000:19:00.0"
    assert (gpu.enforced_limit_w, gpu.default_limit_w) == (700.0, 700.0)
    assert (gpu.max_sm_clock_mhz, gpu.memory_total_bytes) == (1980, 80 * 2**30)
    assert (gpu.mig_enabled, gpu.ecc_enabled, gpu.power_smoothing) == (False, True, False)
    assert gpu.reason is None
    assert nvml.open_sessions == 0


def test_power_smoothing_that_is_on_is_seen():
    nvml = FakeNvml()
    nvml.fields[SMOOTHING] = 1
    assert describe_gpus(lambda: nvml)[1][0].power_smoothing is True


def test_what_a_gpu_does_not_tell_of_itself_is_null_with_the_reason():
    nvml = FakeNvml()
    nvml.broken |= {
        SMOOTHING: NOT_SUPPORTED,
        "nvmlDeviceGetMigMode": NOT_SUPPORTED,
        "nvmlDeviceGetPowerManagementDefaultLimit": UNKNOWN,
    }
    gpu = describe_gpus(lambda: nvml)[1][0]
    assert (gpu.power_smoothing, gpu.mig_enabled, gpu.default_limit_w) == (None, None, None)
    assert gpu.reason == (
        "fault: default_limit: Unknown Error (ERR!); mig: not supported;"
        " power_smoothing: not supported"
    )


@pytest.mark.parametrize(
    ("code", "reason"),
    [(GPU_IS_LOST, "fault: GPU is lost"), (4, "handle: Insufficient Permissions")],
)
def test_a_lost_gpu_is_described_by_its_reason(code, reason):
    nvml = FakeNvml()
    nvml.broken["nvmlDeviceGetHandleByIndex", 0] = code
    _, gpus, _ = describe_gpus(lambda: nvml)
    assert (gpus[0].index, gpus[0].uuid, gpus[0].reason) == (0, None, reason)
    assert gpus[1].uuid == "GPU-1"


def test_a_missing_driver_is_described_without_an_error():
    nvml = FakeNvml()
    nvml.broken["nvmlInit"] = 12
    assert describe_gpus(lambda: nvml) == (
        None,
        (),
        "no NVIDIA driver: NVML Shared Library Not Found",
    )


def test_a_driver_that_fails_while_it_describes_is_a_reason():
    nvml = FakeNvml()
    nvml.broken["nvmlDeviceGetCount"] = UNKNOWN
    assert describe_gpus(lambda: nvml) == (
        "580.65.06",
        (),
        "fault: NVML failed: Unknown Error (ERR!)",
    )


def test_a_driver_without_a_version_still_describes_its_gpus():
    nvml = FakeNvml()
    nvml.broken["nvmlSystemGetDriverVersion"] = NOT_SUPPORTED
    driver, gpus, reason = describe_gpus(lambda: nvml)
    assert (driver, len(gpus), reason) == (None, 2, "driver: not supported")


def test_a_driver_that_blocks_is_given_up():
    release = threading.Event()

    def load():
        release.wait(30)
        raise ImportError

    driver, gpus, reason = describe_gpus(load, timeout_s=0.01)
    release.set()
    assert (driver, gpus, reason) == (None, (), "fault: NVML did not answer within 0.01 s")
