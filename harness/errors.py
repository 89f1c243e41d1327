"""Errors meant for people: what is wrong, where, and how to fix it.

Everything here is caught once, at a front door, and printed as one line with exit code 2.
Invariants use ``assert``; everything else keeps its traceback.
"""

from __future__ import annotations


class HarnessError(Exception):
    """A mistake the user can mend; the message says what, where and how."""


class ConfigError(HarnessError):
    """A setting is unknown, of the wrong type, or contradicts another."""


class DataError(HarnessError):
    """A corpus, tokenizer or block store cannot be used as it is."""


class RecordError(HarnessError):
    """A run record is unreadable, of another schema version, or cannot be written."""


class LaunchError(HarnessError):
    """A trial cannot be started on this machine."""


class MetricError(HarnessError):
    """A figure cannot be computed from these values, or comes out impossible."""


class FormatError(HarnessError):
    """A telemetry file cannot be read, or holds nothing that can be judged by watts."""


class MissingExtraError(HarnessError):
    """An optional dependency is not installed; the message names the extra."""

    def __init__(self, package: str, extra: str) -> None:
        """Name the missing ``package`` and the ``extra`` of this project that brings it."""
        super().__init__(f"{package} is not installed; pip install 'wattline[{extra}]'")
        self.package = package
        self.extra = extra
