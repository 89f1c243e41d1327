"""Shared fixtures: composed settings, valid records of a run, a cache folder that is nobody's."""

import dataclasses
import functools
import importlib.util
import os
from pathlib import Path

import hypothesis
import pytest

from harness.__main__ import compose
from harness.config import RunConfig
from harness.manifest import campaign_record
from harness.parse import parse, to_plain
from harness.plan import make_plan
from harness.record.run_dir import JsonlWriter, RunDir, write_json
from harness.record.schema import (
    SCHEMA_VERSION,
    CodeState,
    DataState,
    GpuInfo,
    HostInfo,
    Label,
    Manifest,
    Status,
    StepRecord,
    Summary,
    Trial,
)

# No test is timed: on a busy machine an example may take long.
# In CI the same examples every time; anywhere else new ones, which is where bugs are found.
hypothesis.settings.register_profile("wattline", deadline=None, derandomize="CI" in os.environ)
hypothesis.settings.load_profile("wattline")


@pytest.fixture(scope="session", autouse=True)
def own_cache_home(tmp_path_factory):
    """No test touches the tokenizers and stores of whoever runs it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache_home")))
        yield


@functools.cache
def _composed(overrides):
    return parse(RunConfig, compose(overrides))


@pytest.fixture(scope="session")
def compose_config():
    """The settings of a command line: ``compose_config("experiment=smoke", "gpus=1")``."""
    return lambda *overrides: _composed(overrides)


@pytest.fixture(scope="session")
def smoke_config(compose_config):
    return compose_config("experiment=smoke")


@pytest.fixture(scope="session")
def scaling_config(compose_config):
    return compose_config("experiment=scaling")


@pytest.fixture(scope="session")
def make_trial():
    """A trial of the smoke experiment, changed by keyword."""
    trial = Trial(
        run_id="smoke-g2-0123abcd-r0",
        experiment="smoke",
        arm="gpus=2",
        index=0,
        block=0,
        repeat=0,
        world_size=2,
        num_nodes=1,
        gradient_accumulation_steps=1,
        levels={"gpus": 2},
        spec_hash="0123abcd",
        expected_status=Status.FINISHED,
    )
    return lambda **changes: dataclasses.replace(trial, **changes)


@pytest.fixture(scope="session")
def make_code():
    code = CodeState(
        commit="c" * 40,
        dirty=False,
        diff_hash="d" * 64,
        lock_hash="1" * 64,
        source_hash="5" * 64,
        reason=None,
    )
    return lambda **changes: dataclasses.replace(code, **changes)


@pytest.fixture(scope="session")
def make_host():
    host = HostInfo(
        host="here",
        cpu_model="a CPU",
        num_cpus=2,
        affinity_cpus=2,
        memory_total_bytes=8_000_000_000,
        governor=None,
        numa_nodes=1,
        kernel="6.1",
        driver=None,
        gpus=(),
        mounts={"/": "ext4 /dev/sda1"},
    )
    return lambda **changes: dataclasses.replace(host, **changes)


@pytest.fixture(scope="session")
def make_manifest(smoke_config, make_trial, make_code, make_host):
    """The manifest of a trial of the smoke experiment, changed by keyword."""
    manifest = Manifest(
        schema_version=SCHEMA_VERSION,
        t_unix_s=1000.0,
        trial=make_trial(),
        config=to_plain(smoke_config),
        comparability={"world_size": 2},
        label=Label.REAL,
        argv=("experiment=smoke",),
        code=make_code(),
        packages={"torch": "2.13.0"},
        environment={},
        hosts=(make_host(),),
        data=DataState(
            store_path="/store",
            store_hash="a" * 64,
            corpus_hash="b" * 64,
            tokenizer_hash="e" * 64,
            num_blocks=100,
            num_tokens=25_600,
        ),
    )
    return lambda **changes: dataclasses.replace(manifest, **changes)


@pytest.fixture(scope="session")
def make_summary():
    summary = Summary(
        schema_version=SCHEMA_VERSION,
        run_id="smoke-g2-0123abcd-r0",
        status=Status.FINISHED,
        expected_status=Status.FINISHED,
        detail="every rank finished",
        t_start_unix_s=1000.0,
        t_end_unix_s=1010.0,
        num_steps_planned=12,
        last_step=12,
        num_ranks_finished=2,
        teardown_aborts=0,
        compile_time_s=None,
        peak_memory_bytes=None,
        torn_lines=0,
        tries=1,
        drift=(),
    )
    return lambda **changes: dataclasses.replace(summary, **changes)


@pytest.fixture(scope="session")
def make_step():
    """Step record ``step``, changed by keyword."""

    def make(step, **changes):
        record = StepRecord(
            step=step,
            t_end_unix_s=1000.0 + step,
            duration_s=1.0,
            data_wait_s=0.01,
            tokens=1024,
            padded_tokens=0,
            num_micro_batches=1,
            loss=8.0,
            grad_norm=1.0,
            peak_memory_bytes=None,
            alloc_retries=None,
            data_bytes_read=4096,
        )
        return dataclasses.replace(record, **changes)

    return make


@pytest.fixture
def write_run(tmp_path, make_manifest):
    """Write a run folder: manifest, steps by rank, events by writer."""

    def write(*, root=None, manifest=None, steps=None, events=None):
        run_dir = RunDir(root or tmp_path / "results" / "smoke" / "smoke-g2-0123abcd-r0")
        run_dir.create()
        write_json(run_dir.manifest, manifest or make_manifest())
        paths = {run_dir.steps(rank): records for rank, records in (steps or {}).items()}
        paths |= {run_dir.events(writer): records for writer, records in (events or {}).items()}
        for path, records in paths.items():
            with JsonlWriter(path) as writer:
                for record in records:
                    writer.append(record)
        return run_dir

    return write


def _data_module(name):
    path = Path(__file__).parent / "data" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def made_traces():
    """The makers of telemetry with a known course, tests/data/made_traces.py."""
    return _data_module("made_traces")


@pytest.fixture
def make_calibration(  # noqa: PLR0917 - fixtures
    tmp_path, compose_config, make_manifest, make_summary, make_host, make_code, make_gpu
):
    """Write the records of a calibration campaign that nobody ran; gives its folder.

    ``is_real`` makes them those of a node with H100s. See tests/data/made_calibration.py.
    """
    made = _data_module("made_calibration")

    def make(*overrides, is_real=False, root=None, leave_out=(), gpus=None):
        small = ("calibration.windows_per_phase=3", "calibration.window_s=2")
        where = () if is_real else ("on=laptop",)
        words = ("experiment=calibration", *where, *small, "calibration.settle_s=1.5", *overrides)
        config = compose_config(*words)
        plan = make_plan(config)
        folder = root or tmp_path / "results" / "calibration"
        known = (*(make_gpu(rank) for rank in range(config.gpus)),) if gpus is None else gpus
        host = make_host(host=made.HOST, driver="580.1" if is_real else None)
        host = dataclasses.replace(host, gpus=known if is_real else ())
        write_json(folder / "campaign.json", campaign_record(config, plan, host, make_code()))
        for trial in plan.trials:
            manifest = make_manifest(
                trial=trial,
                config=to_plain(config),
                label=Label.REAL if is_real else Label.REPLAY,
                hosts=(host,),
                data=None,
            )
            run_dir = made.make_run(
                folder / trial.run_id,
                manifest,
                config,
                repeat=trial.repeat,
                is_real=is_real,
                leave_out=leave_out,
            )
            summary = make_summary(run_id=trial.run_id, num_steps_planned=21, last_step=21)
            write_json(run_dir.summary, summary)
        return folder

    return make


@pytest.fixture(scope="session")
def make_gpu():
    """GPU ``index`` of a node, changed by keyword."""

    def make(index, **changes):
        gpu = GpuInfo(
            index=index,
            name="NVIDIA H100 80GB HBM3",
            uuid=f"GPU-{index}",
            pci_bus_id=None,
            enforced_limit_w=1000.0,
            default_limit_w=None,
            max_sm_clock_mhz=None,
            memory_total_bytes=None,
            mig_enabled=None,
            ecc_enabled=None,
            power_smoothing=None,
            reason=None,
        )
        return dataclasses.replace(gpu, **changes)

    return make
