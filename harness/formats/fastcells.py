"""Cells of a whole block at once, as numpy operations on its bytes.

Nothing here decides what a cell means: a cell that is not plainly ``digits[.digits]`` with the
block's usual unit, or a time exactly like the block's first, is handed to ``cells`` as text. So the
results are those of reading cell by cell, bit for bit, or the block is given back unread (None).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.formats.cells import (
    MAX_POWER_W,
    NAN,
    UNITS,
    CellError,
    Clock,
    Quantity,
    TimeKind,
    is_fault,
    read,
)

MAX_DIGITS = 15
"""Mantissas below 2**53 divide exactly, so the quotient is what ``float`` reads."""

_SPACE, _DOT, _ZERO, _NEWLINE = 32, 46, 48, 10
_MAX_TEXT = 128
_MIX = 0x9E3779B97F4A7C15  # 2**64 over the golden ratio, the usual multiplier of such hashes

Bytes = NDArray[np.uint8]
Positions = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A block cut into rows of equally many cells: ``start[row, column]`` to ``end[row, column]``.

    ``data`` carries a margin of 8 zero bytes at either end, so that cells can be looked at beyond
    their ends.
    """

    data: Bytes
    start: Positions
    end: Positions

    @property
    def num_rows(self) -> int:
        """Rows of the block."""
        return self.start.shape[0]

    def text(self, row: int, column: int) -> str:
        """One cell as the careful path sees it."""
        raw = self.data[self.start[row, column] : self.end[row, column]].tobytes()
        return raw.decode("utf-8", errors="replace")


def cut(block: bytes, delimiter: str, width: int) -> Grid | None:
    """The cells of a block of whole lines, or None where a line has not ``width`` cells."""
    if b'"' in block or b"\0" in block:
        return None
    if b"\r" in block:
        block = block.replace(b"\r\n", b"\n")
        if b"\r" in block:
            return None
    if not block.endswith(b"\n"):
        return None
    data = np.frombuffer(bytes(8) + block + bytes(8), dtype=np.uint8)
    ends = np.flatnonzero(data == _NEWLINE)
    stops = ends[:, None]
    if width > 1:
        commas = np.flatnonzero(data == ord(delimiter))
        if commas.size != ends.size * (width - 1):
            return None
        stops = np.concatenate((commas.reshape(ends.size, width - 1), stops), axis=1)
        first = np.concatenate(([7], ends[:-1]))
        if not ((stops[:, 0] > first).all() and (stops[:, -2] < ends).all()):
            return None
    start = np.empty_like(stops)
    start[1:, 0] = ends[:-1] + 1
    start[0, 0] = 8
    start[:, 1:] = stops[:, :-1] + 1
    return Grid(data=data, start=start, end=stops)


def numbers(grid: Grid, column: int, quantity: Quantity, unit: str) -> NDArray[np.float64]:
    """A column of readings in SI units.

    Raises:
        CellError: some cell is no reading; the careful path then says which.
    """
    start, end = _strip(grid, column)
    suffix, bare = _strip_suffix(grid.data, start, end)
    factor = UNITS[quantity].get(suffix.strip().lower() or unit)
    if factor is None:
        # Not a unit: no cell ends plainly, and each is read as text.
        factor = 1.0
    else:
        end = bare
    value, plain = _decimal(grid.data, start, end)
    value *= factor
    plain &= value <= _safe_limit(quantity)

    def careful(text: str) -> float:
        if is_fault(text):
            raise CellError("a fault, which the careful path counts")
        return read(text, quantity, unit)

    _by_text(grid, column, ~plain, value, careful)
    return value


def times(grid: Grid, column: int, clock: Clock) -> NDArray[np.float64]:
    """A column of times, read as ``clock`` would.

    Raises:
        CellError: some cell is no time of the file's kind.
    """
    start, end = _strip(grid, column)
    first = clock.read(grid.text(0, column))
    if clock.kind is TimeKind.TIME_OF_DAY:
        raise CellError("the time of day depends on the rows before")
    if clock.kind is not None and clock.factor is not None:
        value, plain = _decimal(grid.data, start, end)
        low, high = clock.bounds
        plain &= (value >= low) & (value < high)
        value *= clock.factor
    else:
        value, plain = _calendar(grid, column, start, end, clock)
        value[0], plain[0] = first, True
    _by_text(grid, column, ~plain, value, clock.read)
    return value


def texts(grid: Grid, columns: tuple[int, ...]) -> tuple[NDArray[np.int64], list[tuple[str, ...]]]:
    """Columns of words as codes and the distinct tuples of words they stand for.

    Raises:
        CellError: cells longer than any word that belongs there.
    """
    parts: list[NDArray[np.uint64]] = []
    for column in columns:
        start, end = _strip(grid, column)
        parts.append(_words(grid.data, start, end))
    words = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
    firsts, codes = _distinct(words)
    found = [tuple(grid.text(row, c).strip() for c in columns) for row in firsts.tolist()]
    return codes, found


def _distinct(words: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The first row of each distinct row of words, and which of them every row is."""
    key: NDArray[np.uint64] = words[:, 0]
    if words.shape[1] > 1:
        odd = np.array([_MIX * (2 * k + 1) % 2**64 | 1 for k in range(words.shape[1])], np.uint64)
        key = np.asarray(words @ odd, dtype=np.uint64)
    if words.shape[1] == 1 and int(key.max()) < 65536:
        seen = np.full(65536, -1, dtype=np.int64)
        seen[key[::-1]] = np.arange(key.size - 1, -1, -1)
        firsts = seen[seen >= 0]
        rank = np.zeros(65536, dtype=np.int64)
        rank[key[firsts]] = np.arange(firsts.size)
        return firsts, rank[key]
    _, firsts, codes = np.unique(key, return_index=True, return_inverse=True)
    if not np.array_equal(words, words[firsts][codes]):
        raise CellError("two words share a hash")
    return firsts, codes


def _words(data: Bytes, start: Positions, end: Positions) -> NDArray[np.uint64]:
    """Cells as rows of 8-byte words, zero beyond their ends."""
    length = end - start
    width = int(length.max(initial=1))
    if width > _MAX_TEXT:
        raise CellError("a cell is too long")
    padded = -(-max(width, 1) // 8) * 8
    at = np.minimum(start[:, None] + np.arange(padded), data.size - 1)
    cells = data[at]
    cells[np.arange(padded) >= length[:, None]] = 0
    return cells.view(np.uint64)


def _strip(grid: Grid, column: int) -> tuple[Positions, Positions]:
    """A column's cells without blanks around them."""
    start, end = grid.start[:, column].copy(), grid.end[:, column].copy()
    while (blank := (grid.data[start] == _SPACE) & (start < end)).any():
        start += blank
    while (blank := (grid.data[end - 1] == _SPACE) & (start < end)).any():
        end -= blank
    return start, end


def _strip_suffix(data: Bytes, start: Positions, end: Positions) -> tuple[str, Positions]:
    """The unit of the first cell that starts with a digit, taken off wherever it stands."""
    head = data[start] - _ZERO < 10
    row = int(np.argmax(head))
    if not head[row]:
        return "", end
    raw = data[start[row] : end[row]].tobytes()
    suffix = raw.lstrip(b"0123456789.")
    size = len(suffix)
    if not size or size > 8:
        return "", end
    has = end - start > size
    for k, byte in enumerate(reversed(suffix)):
        has &= data[end - 1 - k] == byte
    # Without the unit a cell is not plain any more: it must not be taken for one of this unit.
    return suffix.decode("utf-8", errors="replace"), np.where(has, end - size, start)


def _decimal(
    data: Bytes, start: Positions, end: Positions
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """``digits[.digits]`` of at most ``MAX_DIGITS`` digits, and which cells are that."""
    length = end - start
    plain = (length > 0) & (length <= MAX_DIGITS + 1)
    width = int(length[plain].max(initial=0))
    mantissa = np.zeros(length.size, dtype=np.int64)
    weight = np.ones(length.size, dtype=np.int64)
    scale = np.ones(length.size, dtype=np.int64)
    seen_dot = np.zeros(length.size, dtype=np.bool_)
    at = np.maximum(end - 1, 0)
    for k in range(width):
        inside = length > k
        byte = data[at]
        digit = (byte - _ZERO).astype(np.int64)
        is_dot = (byte == _DOT) & inside
        is_digit = (digit < 10) & inside
        if is_dot.any():
            # A leading or a trailing dot is left to the careful reader.
            plain &= ~(is_dot & (seen_dot | (k == 0) | (length == k + 1)))
            scale[is_dot] = weight[is_dot]
            seen_dot |= is_dot
        plain &= is_digit | is_dot | ~inside
        mantissa += np.where(is_digit, digit, 0) * weight
        weight[is_digit] *= 10
        at = np.maximum(at - 1, 0)
    plain &= weight <= 10**MAX_DIGITS
    value = mantissa.astype(np.float64)
    np.divide(value, scale, out=value, where=seen_dot)
    return value, plain


def _calendar(
    grid: Grid, column: int, start: Positions, end: Positions, clock: Clock
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """``YYYY-MM-DD HH:MM:SS[.fff]`` with the first cell's separators, length and zone."""
    model = grid.data[start[0] : end[0]]
    length = model.size
    value = np.full(start.size, NAN)
    plain = end - start == length
    fraction = _fraction_digits(model)
    if length < 19 or fraction is None:
        return value, ~plain & plain
    rows = start if plain.all() else np.where(plain, start, start[0])
    cells = grid.data[rows[:, None] + np.arange(length)]
    digit = cells - _ZERO
    places = np.array([*_CALENDAR_DIGITS, *range(20, 20 + fraction)])
    literal = np.setdiff1d(np.arange(length), places)
    plain &= (digit[:, places] < 10).all(axis=1)
    plain &= (cells[:, literal] == model[literal]).all(axis=1)
    two = digit[:, [11, 14, 17]].astype(np.int64) * 10 + digit[:, [12, 15, 18]]
    plain &= (two[:, 0] <= 23) & (two[:, 1] <= 59) & (two[:, 2] <= 60)
    of_day = (two[:, 0] * 3600 + two[:, 1] * 60 + two[:, 2]).astype(np.float64)
    if fraction:
        parts = digit[:, 20 : 20 + fraction] @ (10 ** np.arange(fraction - 1, -1, -1))
        of_day = of_day + parts / 10**fraction
    date = digit[:, [0, 1, 2, 3, 5, 6, 8, 9]] @ (10 ** np.arange(7, -1, -1))
    changes = np.flatnonzero(np.concatenate(([True], date[1:] != date[:-1])))
    if changes.size > 64:
        return value, ~plain & plain
    zone = model[length if fraction == 0 and length == 19 else _zone_at(fraction) :]
    for first, last in zip(changes, [*changes[1:], start.size], strict=True):
        day = clock.day_start(grid.text(int(first), column).strip())
        value[first:last] = (day + of_day[first:last]) - clock.offset_s(zone.tobytes().decode())
    return value, plain


_CALENDAR_DIGITS = (0, 1, 2, 3, 5, 6, 8, 9, 11, 12, 14, 15, 17, 18)


def _zone_at(fraction: int) -> int:
    return 20 + fraction if fraction else 19


def _fraction_digits(model: Bytes) -> int | None:
    """Digits after the second's point; None where the fraction is longer than the clock takes."""
    text = model.tobytes().decode("ascii", errors="replace")
    if len(text) <= 19 or text[19] not in ".,":
        return 0
    digits = len(text[20:]) - len(text[20:].lstrip("0123456789"))
    return digits if 1 <= digits <= 9 else None


def _by_text(
    grid: Grid,
    column: int,
    which: NDArray[np.bool_],
    value: NDArray[np.float64],
    reader: Callable[[str], float],
) -> None:
    """Read the cells that are not plain one by one; equal words only once."""
    known: dict[str, float] = {}
    for row in np.flatnonzero(which).tolist():
        text = grid.text(row, column)
        found = known.get(text)
        if found is None:
            found = known[text] = reader(text)
        value[row] = found


def _safe_limit(quantity: Quantity) -> float:
    """Values up to here are in range without asking; the rest is asked."""
    if quantity is Quantity.POWER:
        return MAX_POWER_W
    if quantity in (Quantity.PERCENT, Quantity.TEMPERATURE_C):
        return 100.0
    return np.inf
