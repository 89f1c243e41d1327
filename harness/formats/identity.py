"""Which GPU a row is, from what the row says: host, index, UUID, bus id, name.

An index repeats across hosts and two writers may share a file, so what a row says is taken whole.
A row that contradicts what is known (a known index under another name or UUID) is believed only
when it comes a third time: two writers persist, a damaged cell does not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from harness.formats.cells import CellError, is_missing, read_index
from harness.formats.layout import IDENTITY, Column, Role
from harness.formats.ticks import GpuTable, Ledger
from harness.samples import GpuId

DOUBTED = "a known GPU under another name"
_SIGHTINGS = 3


class Identities:
    """The words of identity columns -> position in the stream's GPUs."""

    def __init__(self, table: GpuTable, ledger: Ledger) -> None:
        self._table = table
        self._ledger = ledger
        self._known: dict[tuple[str, ...], int] = {}
        self._doubted: Counter[tuple[str, ...]] = Counter()

    def known(self, words: tuple[str, ...]) -> int | None:
        """The position of words that were met before."""
        return self._known.get(words)

    def position(self, roles: Sequence[Role], words: tuple[str, ...]) -> int | None:
        """The position, or None for a row that is not believed yet.

        Raises:
            CellError: the index is no index, or nothing names the GPU.
        """
        found = self._known.get(words)
        if found is not None:
            return found
        gpu = _identify(dict(zip(roles, words, strict=True)))
        rival = self._rival(gpu)
        if rival is not None:
            self._doubted[words] += 1
            if self._doubted[words] < _SIGHTINGS:
                return None
            self._ledger.note(
                f"two devices under one index or UUID ({rival.label}):"
                f" {rival.name or rival.uuid} and {gpu.name or gpu.uuid}; kept apart"
            )
        position = self._known[words] = self._table.position(gpu)
        return position

    def _rival(self, gpu: GpuId) -> GpuId | None:
        for other in self._table.gpus:
            if other == gpu or other.host != gpu.host:
                continue
            same_index = gpu.index is not None and other.index == gpu.index
            same_uuid = gpu.uuid is not None and other.uuid == gpu.uuid
            if same_index or same_uuid:
                return other
        return None


def identity_columns(shared: Mapping[Role, Column]) -> tuple[Role, ...]:
    """The roles that name a GPU here; empty where rows can only be told by position."""
    roles = tuple(role for role in IDENTITY if role in shared)
    names_gpu = any(role in (Role.INDEX, Role.UUID, Role.PCI) for role in roles)
    return roles if names_gpu else ()


def _identify(words: Mapping[Role, str]) -> GpuId:
    known = {role: word for role, word in words.items() if not is_missing(word)}
    index = _index(known[Role.INDEX]) if Role.INDEX in known else None
    uuid = known.get(Role.UUID) or known.get(Role.PCI)
    if index is None and uuid is None:
        raise CellError("nothing names the GPU")
    return GpuId(host=known.get(Role.HOST, ""), index=index, uuid=uuid, name=known.get(Role.NAME))


def _index(word: str) -> int:
    """``0``, and ``GPU 0``, ``gpu0``, ``nvidia0`` or ``cuda:0`` as other tools write it."""
    lowered = word.lower()
    for prefix in ("gpu", "nvidia", "cuda:", "card"):
        if lowered.startswith(prefix):
            return read_index(lowered.removeprefix(prefix))
    return read_index(word)
