"""The front door: ``python -m harness experiment=NAME [key=value ...]``.

Composes the settings with Hydra, parses them strictly, and plans or runs. A size is a list of
overrides that the experiment brings along; whatever the command line says beats it. A user's
mistake is one line on standard error and exit code 2.
"""

from __future__ import annotations

import difflib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, cast

from harness.errors import ConfigError, HarnessError

USAGE = """\
usage: python -m harness experiment=NAME [key=value ...]

  python -m harness experiment=smoke fresh=true           the whole path on a laptop CPU, a minute
  python -m harness experiment=scaling gpus=16            strong scaling on 4, 8 and 16 GPUs
  python -m harness experiment=scaling gpus=2 on=laptop   the same on 1 and 2 CPU ranks
  python -m harness experiment=calibration gpus=8         the power table of these GPUs
  python -m harness experiment=scaling gpus=16 plan=true  what it would do, without doing it

experiments  {experiments}
on           gpus (NCCL) or laptop (CPU ranks, gloo)       model   {models}
size         full, laptop or ci: the experiment's own presets; the command line beats them

gpus=N             the largest world size              points=[4,16]    only these world sizes
results_dir=DIR    where records go (results)           cache_dir=DIR    tokenizers, stores, saves
plan=true          print the plan and stop              fresh=true       set the old campaign aside
retry_failed=true  run failed trials again              accept_drift=true  go on after code changed
corpus=folder corpus.path=DIR [corpus.tokenizer=PATH]   your own text
model.weights=DIR  a local Hugging Face folder          train.KEY=VALUE  data.KEY=VALUE  power=nvml

Running the same command again resumes it. Exit codes: 0 fine, 1 a trial ended otherwise than
declared, 2 wrong usage. Afterwards: python -m analysis.tables
"""


_RATE = "experiment.expected_tokens_per_second_per_gpu"
_OTHER_SPEED = {"model", "train.strategy", "train.precision", "train.activation_checkpointing"}
"""Settings under which a preset's expected rate says nothing."""


def main(argv: Sequence[str]) -> int:
    """Plan or run what ``argv`` declares; gives the exit code."""
    if any(word in {"-h", "--help", "help"} for word in argv):
        sys.stdout.write(_usage())
        return 0
    try:
        return _run(argv)
    except HarnessError as error:
        sys.stderr.write(f"wattline: {error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("wattline: interrupted\n")
        return 1
    except BrokenPipeError:
        # The reader (head, less) has seen enough; Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def compose(overrides: Sequence[str]) -> dict[str, Any]:
    """Compose the settings: defaults, then the experiment's size, then ``overrides``.

    Args:
        overrides: ``key=value`` words as on the command line.

    Returns:
        Plain nested data, ready for :func:`harness.parse.parse`.

    Raises:
        ConfigError: an unknown key or group option, or a word that is no override.
    """
    root = config_root()
    keys = [_key(word) for word in overrides]
    base = _hydra(root, _group_choices(root, overrides))
    for key, word in zip(keys, overrides, strict=True):
        _check_key(root, base, key, word)
    first = _hydra(root, overrides)
    on = cast("Mapping[str, Any]", first["on"])
    size = first["size"] or on["default_size"]
    said = set(keys)
    if "gpus" in said:
        said.add("points")  # a preset's points are those of the preset's gpus
    preset = [w for w in _preset(first["experiment"]["sizes"], size) if _key(w) not in said]
    final = _hydra(root, [*preset, *overrides])
    final["size"] = size
    if said & _OTHER_SPEED and _RATE not in said:
        final["experiment"]["expected_tokens_per_second_per_gpu"] = None
    return final


def config_root() -> Path:
    """The folder of the experiment files, in a checkout and in an installed package alike."""
    return Path(str(resources.files("experiments")))


def _run(argv: Sequence[str]) -> int:
    from rich.console import Console

    from harness import plan as planning
    from harness.checks import check
    from harness.config import RunConfig, Task
    from harness.parse import parse

    config = parse(RunConfig, compose(argv))
    check(config)
    plan = planning.make_plan(config)
    console = Console(stderr=False)
    if config.plan:
        from harness.show_plan import show_plan

        show_plan(console, config, plan)
        return 0
    from harness.execute import run_campaign
    from harness.progress import View

    code = run_campaign(config, plan, argv, View(console, len(plan.trials)))
    _show_table(config.results_dir, "power" if config.task is Task.CALIBRATE else "scaling")
    return code


def _show_table(results_dir: str, name: str) -> None:
    """Print the table of what was just measured; analysis is a command, never an import here."""
    command = [sys.executable, "-m", "analysis.tables", "--results", results_dir]
    sys.stdout.flush()
    subprocess.run([*command, "--no-figures", "--only", name], check=False)


def _hydra(root: Path, overrides: Sequence[str]) -> dict[str, Any]:
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        with initialize_config_dir(str(root), version_base="1.3"):
            config = hydra_compose("config", overrides=list(overrides))
        return cast("dict[str, Any]", OmegaConf.to_container(config, resolve=True))
    except (HydraException, OmegaConfBaseException) as error:
        reason = " ".join(str(error).split()).partition(" See https")[0]
        raise ConfigError(
            f"{' '.join(overrides)}: {reason[:300]}; a value with =, ~, blanks or commas goes in"
            " quotes of its own: 'key=\"VALUE\"'"
        ) from error


def _preset(sizes: Mapping[str, Any], size: object) -> list[str]:
    """The overrides of ``size``; what is not well formed is left to the strict parse to name."""
    words = sizes.get(size) if isinstance(size, str) else None
    return [str(word) for word in cast("list[Any]", words)] if isinstance(words, list) else []


def _group_choices(root: Path, overrides: Sequence[str]) -> list[str]:
    chosen: list[str] = []
    for word in overrides:
        key, _, value = word.partition("=")
        if not (root / key).is_dir() or not key:
            continue
        options = _options(root, key)
        if value not in options:
            near = difflib.get_close_matches(value, options, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(f"{key}={value}: there is {', '.join(options)}{hint}")
        chosen.append(word)
    return chosen


def _key(word: str) -> str:
    key, equals, _ = word.partition("=")
    if not equals or not key or key.startswith(("-", "+", "~")):
        raise ConfigError(
            f"{word}: expected key=value, for example gpus=2; python -m harness --help"
        )
    return key


def _check_key(root: Path, config: Mapping[str, Any], key: str, word: str) -> None:
    """Name the nearest known key; Hydra's own message does not."""
    node: Any = config
    walked: list[str] = []
    for part in key.split("."):
        known = sorted(cast("Mapping[str, Any]", node)) if isinstance(node, Mapping) else []
        if part not in known:
            near = difflib.get_close_matches(part, known, n=1)
            at = ".".join([*walked, near[0]]) if near else ""
            hint = f"did you mean {at}?" if near else f"known here: {', '.join(known) or 'none'}"
            raise ConfigError(f"{word}: unknown key {key}; {hint}")
        node = cast("Mapping[str, Any]", node)[part]
        walked.append(part)
    if isinstance(node, Mapping) and not (root / key).is_dir():
        inside = ", ".join(f"{key}.{name}" for name in cast("Mapping[str, Any]", node))
        raise ConfigError(f"{word}: {key} is a group of settings; set one of {inside}")


def _options(root: Path, group: str) -> list[str]:
    return sorted(path.stem for path in (root / group).glob("*.yaml"))


def _usage() -> str:
    root = config_root()
    return USAGE.format(
        experiments=", ".join(_options(root, "experiment")),
        models=", ".join(_options(root, "model")),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
