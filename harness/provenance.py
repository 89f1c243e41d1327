"""What ran, and on what: code, packages, environment and host, for manifest and campaign.

Reads only. What cannot be found out is null or left out; nothing here fails for a missing file of
the system, a missing git or a missing driver.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import re
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from harness.power.nvml import Description, describe_gpus
from harness.record.schema import CodeState, HostInfo

TRACKED = ("harness", "experiments", "pyproject.toml", "requirements.lock")
"""What can change a result: a change elsewhere does not make the code dirty."""

REDACTED = "<redacted>"

_PACKAGES = (
    "wattline",
    "torch",
    "transformers",
    "accelerate",
    "tokenizers",
    "safetensors",
    "numpy",
    "scipy",
    "pyarrow",
    "hydra-core",
    "omegaconf",
    "nvidia-ml-py",
    "psutil",
    "triton",
    "nvidia-nccl-cu12",
    "nvidia-nccl-cu13",
    "nvidia-cudnn-cu12",
    "nvidia-cudnn-cu13",
)
_ENVIRONMENT = re.compile(
    r"(NCCL|TORCH|TORCHELASTIC|PYTORCH|CUDA|CUBLAS|CUDNN|NVIDIA|NVTE|OMP|MKL|KMP|GLOO|UCX|FI|TP"
    r"|HF|TRANSFORMERS|TOKENIZERS|ACCELERATE|MASTER)(_|$).*"
    r"|SLURM_JOB.*|TORCH.*|RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|NODE_RANK|LD_PRELOAD"
)
_SECRET = re.compile(r"KEY|TOKEN(?!IZERS)|SECRET|PASSW|CREDENTIAL|AUTH", re.IGNORECASE)
_URL_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_URL_SECRET = re.compile(
    r"([?&;][^=&;\s]*(?:key|token|secret|passw|credential|auth|signature)[^=&;\s]*=)[^&;\s]+",
    re.IGNORECASE,
)
# Settings of a user's git that would change the text of a diff are pinned.
_DIFF = (
    "diff",
    "--binary",
    "--full-index",
    "--no-color",
    "--no-ext-diff",
    "--no-textconv",
    "--no-renames",
    "--no-indent-heuristic",
    "--diff-algorithm=myers",
    "--unified=3",
    "--inter-hunk-context=0",
    "--src-prefix=a/",
    "--dst-prefix=b/",
    "-O/dev/null",
    "HEAD",
    "--",
)
_GIT_TIMEOUT_S = 30.0

RunGit = Callable[[Path, Sequence[str]], bytes]


class GitError(Exception):
    """Git gave no answer; the text says why in one line."""


def run_git(root: Path, arguments: Sequence[str]) -> bytes:
    """Give what git prints for ``root``.

    Raises:
        GitError: there is no git, it failed, or it took longer than 30 s.
    """
    # Inside a hook git points every other git at the hook's repository and index.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    environment |= {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            ["git", "-c", "core.quotePath=true", "-C", str(root), *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GitError(f"git could not be run: {error}") from error
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        raise GitError(f"git {arguments[0]}: {lines[0]}")
    return done.stdout


def collect_code_state(root: Path, git: RunGit = run_git) -> CodeState:
    """Identify the code under ``root``, the folder that holds ``harness/``.

    Args:
        root: A checkout, or the site-packages folder of an installed wheel.
        git: Runs git; a repository that merely contains ``root`` is not taken for ours.

    Returns:
        ``diff_hash`` is the SHA-256 over the uncommitted changes, untracked files included, in what
        can change a result (that of nothing when clean); ``source_hash`` identifies the code with
        or without git.
    """
    reasons: list[str] = []
    commit: str | None = None
    is_dirty: bool | None = None
    diff_hash: str | None = None
    try:
        commit = _commit(root, git)
        is_dirty, diff_hash = _uncommitted(root, git)
    except GitError as error:
        reasons.append(f"commit: {error}")
    lock_hash = _file_hash(root / "requirements.lock")
    if lock_hash is None:
        reasons.append("lock_hash: no requirements.lock")
    return CodeState(
        commit=commit,
        dirty=is_dirty,
        diff_hash=diff_hash,
        lock_hash=lock_hash,
        source_hash=source_hash(root),
        reason="; ".join(reasons) or None,
    )


def source_hash(root: Path) -> str:
    """Hash paths and contents of the package's Python files and the experiments' YAML files."""
    files = [*(root / "harness").rglob("*.py"), *(root / "experiments").rglob("*.yaml")]
    digest = hashlib.sha256()
    for path in sorted(files, key=lambda p: p.relative_to(root).as_posix()):
        digest.update(_entry(path.relative_to(root).as_posix(), path))
    return digest.hexdigest()


def collect_packages() -> dict[str, str]:
    """Give the versions of Python and of the installed packages that matter; imports none."""
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def collect_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Give the variables that steer NCCL, torch, CUDA, threads and the job, secrets redacted."""
    return {
        name: _redact(name, value)
        for name, value in sorted(environment.items())
        if _ENVIRONMENT.fullmatch(name)
    }


def collect_host(
    paths: Sequence[Path],
    *,
    proc: Path = Path("/proc"),
    sys: Path = Path("/sys"),
    describe: Callable[[], Description] = describe_gpus,
) -> HostInfo:
    """Describe this host.

    Args:
        paths: Folders whose file system is of interest; they need not exist yet.
        proc: Where the proc file system is.
        sys: Where the sys file system is.
        describe: Gives driver and GPUs.
    """
    driver, gpus, _ = describe()
    mountinfo = _read_text(proc / "self" / "mountinfo")
    governors = {
        text
        for path in (sys / "devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
        if (text := _read_text(path).strip())
    }
    num_cpus = os.cpu_count() or 1
    return HostInfo(
        host=socket.gethostname(),
        cpu_model=cpu_model(_read_text(proc / "cpuinfo")),
        num_cpus=num_cpus,
        affinity_cpus=len(os.sched_getaffinity(0)),
        memory_total_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        governor=",".join(sorted(governors)) or None,
        numa_nodes=len(list((sys / "devices/system/node").glob("node[0-9]*"))) or None,
        kernel=platform.release(),
        driver=driver,
        gpus=gpus,
        mounts={str(path): mount_of(path.resolve(), mountinfo) or "unknown" for path in paths},
    )


def cpu_model(cpuinfo: str) -> str | None:
    """Give the model of the first CPU of a ``/proc/cpuinfo``; Arm names only part numbers."""
    fields: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    if fields.get("model name"):
        return fields["model name"]
    if fields.get("CPU part"):
        return f"implementer {fields.get('CPU implementer', '?')} part {fields['CPU part']}"
    return None


def mount_of(path: Path, mountinfo: str) -> str | None:
    """Give ``<type> <source>`` of the file system at an absolute ``path``.

    Args:
        path: Resolved; it need not exist.
        mountinfo: Text of ``/proc/self/mountinfo``; of mounts on one point the last is on top.
    """
    best: tuple[int, str] | None = None
    for line in mountinfo.splitlines():
        before, separator, after = line.partition(" - ")
        left, right = before.split(), after.split()
        if not separator or len(left) < 5 or len(right) < 2:
            continue
        point = Path(_unescape(left[4]))
        if path.is_relative_to(point) and (best is None or len(point.parts) >= best[0]):
            best = len(point.parts), f"{right[0]} {_unescape(right[1])}"
    return None if best is None else best[1]


def _commit(root: Path, git: RunGit) -> str:
    top = Path(git(root, ["rev-parse", "--show-toplevel"]).decode(errors="replace").rstrip("\n"))
    if top.resolve() != root.resolve():
        raise GitError(f"{root} is not the top of a git checkout")
    return git(root, ["rev-parse", "HEAD"]).decode().strip()


def _uncommitted(root: Path, git: RunGit) -> tuple[bool, str]:
    diff = git(root, [*_DIFF, *TRACKED])
    listed = git(root, ["ls-files", "--others", "--exclude-standard", "-z", "--", *TRACKED])
    untracked = sorted(name for name in listed.split(b"\0") if name)
    digest = hashlib.sha256(diff)
    for raw in untracked:
        name = os.fsdecode(raw)
        digest.update(_entry(name, root / name))
    return bool(diff or untracked), digest.hexdigest()


def _entry(name: str, path: Path) -> bytes:
    return os.fsencode(f"\0{name}\0{_file_hash(path) or 'unreadable'}")


def _file_hash(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def _read_text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _redact(name: str, value: str) -> str:
    if _SECRET.search(name):
        return REDACTED
    return _URL_SECRET.sub(rf"\1{REDACTED}", _URL_CREDENTIALS.sub(REDACTED, value))


def _unescape(text: str) -> str:
    # The kernel writes space, tab, newline and backslash as three octal digits.
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), text)
