"""Takes out of records what names a person, a folder or a host, and nothing else. Pure.

An absolute path becomes its last component, a host becomes the name given for it. Environment
variables that hold paths, addresses or accounts are dropped; where the comparability key holds one,
a hash stands for it, so that runs which differed still differ. Numbers are never touched.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, cast

# A slash that begins a path: not within a word or after one (tokens/s, ./here), not that of a URL.
_BEGIN = r"(?<![\w./~])(?!(?<=:)//)(?:~[\w.-]*)?/"
_BODY = r"[^\s\"'<>|,;()\[\]{}:=`]+"
ABSOLUTE_PATH = re.compile(_BEGIN + _BODY)
_FILE_URL = re.compile(r"file://(?=/)")
_PATH_KEY = re.compile(r"(?:^|[._])(?:path|dir|file|folder|root)$")
_IPV4 = r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])"
_IPV6 = r"(?<![\w:.])(?=[0-9a-fA-F:]*::|(?:[0-9a-fA-F]+:){4})[0-9a-fA-F:]{3,}(?![\w:])"
IP_ADDRESS = re.compile(f"{_IPV4}|{_IPV6}")
# Words of a variable's name that promise a path or an address, whatever the value is.
_PRIVATE_WORDS = frozenset(
    {"ADDR", "HOST", "HOSTS", "HOSTNAME", "PATH", "DIR", "FILE", "HOME", "USER", "SLURM"}
)
_ENVIRONMENT_KEY = "environment."
ADDRESS = "ADDRESS"  # a word, so that no slash after it begins a path
PATH = "<path>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrubber:
    """What stands for each host. ``hosts`` maps a host's name to its new one."""

    hosts: Mapping[str, str]

    def text(self, text: str) -> str:
        """Free text: paths reduced, hosts renamed."""
        reduced = ABSOLUTE_PATH.sub(lambda m: _last(m[0]), _FILE_URL.sub("", text))
        return host_pattern(self.hosts).sub(lambda m: self._name(m[0]), reduced)

    def value(self, value: Any, key: str = "") -> Any:
        """Anything that JSON holds; under a key that names a path the whole text is one path."""
        if isinstance(value, str):
            if _PATH_KEY.search(key) and value.startswith(("/", "~")):
                return self.text(_last(value))
            return self.text(value)
        if isinstance(value, Mapping):
            items = cast("Mapping[str, Any]", value).items()
            return {self.text(k): self.value(v, k) for k, v in items}
        if isinstance(value, list | tuple):
            return [self.value(item, key) for item in cast("Sequence[Any]", value)]
        return value

    def messages(self, value: Any, key: str = "") -> Any:
        """As :meth:`value`, without addresses: errors of collectives name them."""
        return _map_text(self.value(value, key), lambda text: IP_ADDRESS.sub(ADDRESS, text))

    def manifest(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """A manifest; its environment, command line, mounts and comparability have own rules."""
        special = {
            "environment": self._environment(record["environment"]),
            "argv": [self._argument(word) for word in record["argv"]],
            "comparability": self._comparability(record["comparability"]),
        }
        plain = self.value({k: v for k, v in record.items() if k not in {*special, "hosts"}})
        hosts = [self.value(host | {"mounts": _mounts(host["mounts"])}) for host in record["hosts"]]
        scrubbed = plain | special | {"hosts": hosts}
        return {key: scrubbed[key] for key in record}

    def _environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        return {k: v for k, v in environment.items() if not self._is_private(k, v)}

    def _comparability(self, key: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: _digest(value)
            if name.startswith(_ENVIRONMENT_KEY)
            and self._is_private(name.removeprefix(_ENVIRONMENT_KEY), str(value))
            else self.value(value, name)
            for name, value in key.items()
        }

    def _is_private(self, name: str, value: str) -> bool:
        """Whether a variable holds a path, an address or a host, or tells of a cluster's job."""
        return (
            bool(_PRIVATE_WORDS & set(name.split("_")))
            or "/" in value
            or value.startswith("~")
            or bool(host_pattern(self.hosts).search(value) or IP_ADDRESS.search(value))
        )

    def _name(self, found: str) -> str:
        """The new name of a host, found whole, cut short, or with a domain."""
        folded = found.casefold()
        for host, name in self.hosts.items():
            if folded == host.casefold():
                return name
        short = folded.partition(".")[0]
        return next(n for h, n in self.hosts.items() if h.casefold().partition(".")[0] == short)

    def _argument(self, word: str) -> str:
        """One word of the command line: a setting keeps its name, never a path as its value."""
        setting, equals, value = word.partition("=")
        if equals and value.strip("'\"").startswith(("/", "~", "./", "../")):
            return f"{self.text(setting)}={PATH}"
        return self.text(_last(word) if word.startswith(("/", "~/")) else word)


@functools.cache
def _host_pattern(hosts: tuple[str, ...]) -> re.Pattern[str]:
    short = {host.partition(".")[0] for host in hosts}
    names = {*hosts, *(name for name in short if not name.isdigit())}
    either = "|".join(re.escape(name) for name in sorted(names, key=lambda n: (-len(n), n)))
    domain = r"(?:\.[A-Za-z][A-Za-z0-9-]*)*"
    bounded = rf"(?<![A-Za-z0-9])(?:{either}){domain}(?![A-Za-z0-9])"
    return re.compile(bounded if names else r"(?!)", re.IGNORECASE)


def host_pattern(hosts: Iterable[str]) -> re.Pattern[str]:
    """Any of the hosts in a text: whole, its first part alone, or with a domain."""
    return _host_pattern(tuple(hosts))


def _mounts(mounts: Mapping[str, str]) -> dict[str, str]:
    """Kind of file system by the end of its path, as much of it as tells the paths apart.

    Where a file system comes from is left out: a network one names its server.
    """
    parts = {path: PurePosixPath(path).parts[1:] or ("root",) for path in mounts}
    depth = 1
    longest = max((len(p) for p in parts.values()), default=1)
    while depth < longest and len({p[-depth:] for p in parts.values()}) < len(parts):
        depth += 1
    return {"/".join(parts[path][-depth:]): kind.partition(" ")[0] for path, kind in mounts.items()}


def _last(path: str) -> str:
    return PurePosixPath(path).name


def _digest(value: Any) -> str:
    return "private:" + hashlib.sha256(str(value).encode()).hexdigest()[:12]


def _map_text(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: _map_text(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [_map_text(item, change) for item in value]
    return value
