import hashlib
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.parse import parse, to_plain
from harness.provenance import (
    REDACTED,
    GitError,
    collect_code_state,
    collect_environment,
    collect_host,
    collect_packages,
    cpu_model,
    mount_of,
    run_git,
    source_hash,
)
from harness.record.schema import CodeState, GpuInfo, HostInfo

EMPTY_SHA256 = hashlib.sha256().hexdigest()
MOUNTINFO = """\
22 1 0:21 / / rw,relatime - ext4 /dev/vda rw
23 22 0:22 / /proc rw,relatime - proc proc rw
30 22 0:40 / /data rw,relatime shared:7 - nfs4 10.0.0.2:/export/my\\040data rw,vers=4.2
31 22 0:41 / /data/with\\040space rw - tmpfs tmpfs rw
32 22 0:42 / /twice rw - ext4 /dev/below rw
33 22 0:43 / /twice rw - xfs /dev/above rw
a line that is cut
"""


def git(root, *arguments):
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", *identity, *arguments], cwd=root, check=True, capture_output=True)


@pytest.fixture(name="checkout")
def _checkout(tmp_path, monkeypatch):
    """A committed checkout, with git's variables as a hook would set them."""
    for name in ("GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE"):
        monkeypatch.delenv(name, raising=False)
    root = tmp_path / "checkout"
    (root / "harness").mkdir(parents=True)
    (root / "experiments").mkdir()
    (root / "harness" / "a.py").write_text("A = 1\n")
    (root / "experiments" / "e.yaml").write_text("gpus: 4\n")
    (root / "requirements.lock").write_text("torch==2.13.0\n")
    (root / "README.md").write_text("hello\n")
    (root / ".gitignore").write_text("*.log\n")
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "x")
    return root


def test_a_clean_checkout_is_its_commit(checkout):
    state = collect_code_state(checkout)
    assert state.commit is not None
    assert len(state.commit) == 40
    assert (state.dirty, state.diff_hash, state.reason) == (False, EMPTY_SHA256, None)
    assert state.lock_hash == hashlib.sha256(b"torch==2.13.0\n").hexdigest()
    assert parse(CodeState, to_plain(state)) == state


def change_source(root):
    (root / "harness" / "a.py").write_text("A = 2\n")


def change_staged(root):
    change_source(root)
    git(root, "add", ".")


def add_untracked(root):
    (root / "harness" / "new.py").write_text("B = 1\n")


def add_untracked_with_an_odd_name(root):
    (root / "experiments" / "n\u00e4w \n.yaml").write_text("x: 1\n")


def add_dangling_link(root):
    (root / "harness" / "gone.txt").symlink_to("nowhere")


def delete_source(root):
    (root / "harness" / "a.py").unlink()


def change_pins(root):
    (root / "requirements.lock").write_text("torch==2.12.0\n")


@pytest.mark.parametrize(
    "change",
    [
        change_source,
        change_staged,
        add_untracked,
        add_untracked_with_an_odd_name,
        add_dangling_link,
        delete_source,
        change_pins,
    ],
)
def test_an_uncommitted_change_makes_another_diff_hash(checkout, change):
    clean = collect_code_state(checkout)
    change(checkout)
    changed = collect_code_state(checkout)
    assert changed.dirty is True
    assert changed.commit == clean.commit
    assert changed.diff_hash != clean.diff_hash
    assert collect_code_state(checkout) == changed


def test_the_content_of_an_untracked_file_counts(checkout):
    add_untracked(checkout)
    before = collect_code_state(checkout)
    (checkout / "harness" / "new.py").write_text("B = 2\n")
    assert collect_code_state(checkout).diff_hash != before.diff_hash


def test_what_cannot_change_a_result_does_not_make_the_code_dirty(checkout):
    (checkout / "README.md").write_text("bye\n")
    (checkout / "notes.txt").write_text("n\n")
    (checkout / "harness" / "run.log").write_text("ignored\n")
    assert collect_code_state(checkout).dirty is False


def test_settings_of_a_users_git_do_not_change_the_hash(checkout):
    change_source(checkout)
    plain = collect_code_state(checkout)
    for key, value in {
        "diff.noprefix": "true",
        "diff.context": "9",
        "diff.algorithm": "patience",
        "color.ui": "always",
        "diff.external": "false",
        "core.quotePath": "false",
    }.items():
        git(checkout, "config", key, value)
    assert collect_code_state(checkout) == plain


def test_a_hooks_variables_do_not_point_git_elsewhere(checkout, tmp_path, monkeypatch):
    expected = collect_code_state(checkout)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert collect_code_state(checkout) == expected


def test_an_installed_wheel_inside_somebodys_repository_has_not_their_commit(checkout):
    site = checkout / "venv" / "site-packages"
    (site / "harness").mkdir(parents=True)
    (site / "harness" / "a.py").write_text("A = 1\n")
    state = collect_code_state(site)
    assert (state.commit, state.dirty, state.diff_hash) == (None, None, None)
    assert state.reason is not None
    assert "is not the top of a git checkout" in state.reason
    assert state.source_hash == source_hash(site)


def test_without_git_the_sources_still_have_an_identity(checkout):
    def no_git(_root, _arguments):
        raise GitError("git could not be run: not there")

    state = collect_code_state(checkout, git=no_git)
    assert (state.commit, state.dirty, state.diff_hash) == (None, None, None)
    assert state.reason == "commit: git could not be run: not there"
    assert len(state.source_hash) == 64


def test_a_folder_that_is_no_checkout_says_so(tmp_path):
    state = collect_code_state(tmp_path)
    assert state.reason is not None
    assert state.reason.startswith("commit: git rev-parse: fatal: not a git repository")
    assert state.reason.endswith("lock_hash: no requirements.lock")


def test_a_repository_without_a_commit_has_a_reason(tmp_path):
    git(tmp_path, "init", "-q")
    state = collect_code_state(tmp_path)
    assert state.commit is None
    assert "commit: git rev-parse: fatal" in str(state.reason)


def test_a_machine_without_git_is_a_reason(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GitError, match="git could not be run"):
        run_git(tmp_path, ["status"])


def test_the_source_hash_follows_paths_and_contents_and_nothing_else(checkout):
    first = source_hash(checkout)
    (checkout / "README.md").write_text("bye\n")
    (checkout / "harness" / "__pycache__").mkdir()
    (checkout / "harness" / "__pycache__" / "a.pyc").write_bytes(b"x")
    assert source_hash(checkout) == first
    (checkout / "harness" / "a.py").rename(checkout / "harness" / "b.py")
    renamed = source_hash(checkout)
    assert renamed != first
    (checkout / "experiments" / "e.yaml").write_text("gpus: 8\n")
    assert source_hash(checkout) != renamed


def test_packages_that_matter_have_their_versions_and_missing_ones_no_entry():
    packages = collect_packages()
    assert packages["python"].count(".") == 2
    assert packages["nvidia-ml-py"]
    assert all(packages.values())


def test_the_environment_keeps_what_steers_a_run_and_nothing_else():
    kept = {
        "NCCL_DEBUG": "INFO",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "TORCHELASTIC_RUN_ID": "x",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "eth0",
        "UCX_TLS": "rc",
        "FI_PROVIDER": "efa",
        "MASTER_ADDR": "10.0.0.1",
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_JOBID": "7",
        "TOKENIZERS_PARALLELISM": "false",
    }
    others = {"PATH": "/bin", "HOME": "/root", "FIRST": "x", "SLURM_CONF": "x", "XNCCL_DEBUG": "x"}
    environment = collect_environment(others | kept)
    assert environment == kept
    assert list(environment) == sorted(kept)


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "NCCL_API_KEY", "SLURM_JOB_SECRET", "CUDA_Password", "HF_CREDENTIALS", "UCX_AUTH"],
)
def test_secrets_are_redacted_by_their_name(name):
    assert collect_environment({name: "hunter2"}) == {name: REDACTED}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("https://me:hunter2@hub.example.org/x", f"https://{REDACTED}@hub.example.org/x"),
        ("https://hunter2@hub.example.org", f"https://{REDACTED}@hub.example.org"),
        ("http://h/x?user=a&api_key=hunter2&b=1", f"http://h/x?user=a&api_key={REDACTED}&b=1"),
        ("http://h/x?token=hunter2", f"http://h/x?token={REDACTED}"),
        ("http://h:80/x?a=1", "http://h:80/x?a=1"),
        ("me@example.org", "me@example.org"),
    ],
)
def test_credentials_in_a_url_are_redacted(value, expected):
    assert collect_environment({"HF_ENDPOINT": value}) == {"HF_ENDPOINT": expected}


@given(
    secret=st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=8),
    user=st.sampled_from(["", "user:", "a.b-c:"]),
    scheme=st.sampled_from(["http", "https", "s3", "redis"]),
)
def test_no_password_of_a_url_survives(secret, user, scheme):
    url = f"{scheme}://{user}{secret}@host.example/path"
    assert secret not in collect_environment({"NCCL_X": url})["NCCL_X"].replace(REDACTED, "")


@given(st.dictionaries(st.text(max_size=12), st.text(max_size=20)))
def test_any_environment_can_be_collected(environment):
    assert set(collect_environment(environment)) <= set(environment)


def describe_one():
    gpu = GpuInfo(
        index=0,
        name="NVIDIA B300",
        uuid="GPU-0",
        pci_bus_id=None,
        enforced_limit_w=1100.0,
        default_limit_w=None,
        max_sm_clock_mhz=None,
        memory_total_bytes=None,
        mig_enabled=False,
        ecc_enabled=True,
        power_smoothing=None,
        reason="power_smoothing: not supported",
    )
    return "580.65.06", (gpu,), None


def describe_none():
    return None, (), "no NVIDIA driver: X"


def test_a_host_is_described_from_proc_and_sys(tmp_path):
    proc, sys = tmp_path / "proc", tmp_path / "sys"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "mountinfo").write_text(MOUNTINFO)
    (proc / "cpuinfo").write_text("processor\t: 0\nmodel name\t: AMD EPYC 9654\n")
    for cpu, governor in enumerate(["performance", "performance", "powersave"]):
        folder = sys / f"devices/system/cpu/cpu{cpu}/cpufreq"
        folder.mkdir(parents=True)
        (folder / "scaling_governor").write_text(governor + "\n")
    for node in range(2):
        (sys / f"devices/system/node/node{node}").mkdir(parents=True)
    host = collect_host((Path("/data/x"),), proc=proc, sys=sys, describe=describe_one)
    assert host.cpu_model == "AMD EPYC 9654"
    assert (host.governor, host.numa_nodes) == ("performance,powersave", 2)
    assert (host.driver, host.gpus[0].name) == ("580.65.06", "NVIDIA B300")
    assert host.mounts == {"/data/x": "nfs4 10.0.0.2:/export/my data"}
    assert 1 <= host.affinity_cpus <= host.num_cpus
    assert host.memory_total_bytes > 2**20
    assert parse(HostInfo, to_plain(host)) == host


def test_a_host_without_proc_and_sys_is_nulls_and_no_error(tmp_path):
    host = collect_host(
        (tmp_path,), proc=tmp_path / "none", sys=tmp_path / "none", describe=describe_none
    )
    assert (host.cpu_model, host.governor, host.numa_nodes) == (None, None, None)
    assert (host.driver, host.gpus) == (None, ())
    assert host.mounts == {str(tmp_path): "unknown"}


def test_this_host_can_be_described():
    host = collect_host((Path("/"), Path("/no/such/folder")), describe=describe_none)
    assert host.mounts["/no/such/folder"] == host.mounts["/"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/", "ext4 /dev/vda"),
        ("/database", "ext4 /dev/vda"),
        ("/data", "nfs4 10.0.0.2:/export/my data"),
        ("/data/with space/file", "tmpfs tmpfs"),
        ("/data/with", "nfs4 10.0.0.2:/export/my data"),
        ("/twice/x", "xfs /dev/above"),
    ],
)
def test_the_deepest_and_last_mount_holds_a_path(path, expected):
    assert mount_of(Path(path), MOUNTINFO) == expected


@given(st.text())
def test_any_mountinfo_is_read_without_an_error(text):
    found = mount_of(Path("/data/x"), text)
    assert found is None or " " in found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", None),
        ("model name\t:\n", None),
        ("model name : A\nmodel name : B\n", "A"),
        ("CPU implementer\t: 0x41\nCPU part\t: 0xd4f\n", "implementer 0x41 part 0xd4f"),
        ("CPU part\t: 0xd4f\n", "implementer ? part 0xd4f"),
    ],
)
def test_the_cpu_model_is_read_on_every_architecture(text, expected):
    assert cpu_model(text) == expected
