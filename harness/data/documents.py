"""The documents inside one file: a text file is one, a line of .jsonl or a row of .parquet is one.

A file that cannot be read as what its suffix says is an error that names the place, never skipped.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

from harness.errors import DataError, MissingExtraError

_PARQUET_BATCH_ROWS = 1024
_NAMED_FIELDS = 8


def read_documents(path: Path, text_field: str) -> Iterator[str]:
    """Yield the documents of one file in order.

    Args:
        path: A .txt, .md, .rst, .py, .jsonl or .parquet file.
        text_field: The field or column that holds the text of .jsonl and .parquet.

    Raises:
        DataError: the suffix is not known, the file is unreadable, not UTF-8, or a line or row
            holds no text; names the file and the line, row or byte.
        MissingExtraError: .parquet without pyarrow.
    """
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise DataError(f"{path}: cannot read this suffix; accepted: {', '.join(_READERS)}")
    try:
        yield from reader(path, text_field)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error


def _read_text(path: Path, text_field: str) -> Iterator[str]:
    del text_field
    data = path.read_bytes()
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: not UTF-8 at byte {error.start} (0x{data[error.start]:02x});"
            f" convert it, say with: iconv -f latin1 -t utf-8"
        ) from error
    yield text.removeprefix("\ufeff")


def _read_jsonl(path: Path, text_field: str) -> Iterator[str]:
    offset = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            body = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
            offset += len(line) - len(body)
            if body.strip():
                yield _text_of_line(f"{path}:{number}", body, offset, text_field)
            offset += len(body)


def _text_of_line(where: str, line: bytes, offset: int, text_field: str) -> str:
    try:
        value = json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: not UTF-8 at byte {offset + error.start} of the file") from error
    except ValueError as error:
        raise DataError(f"{where}: not a line of JSON: {error}") from error
    if not isinstance(value, dict):
        raise DataError(
            f"{where}: expected an object with the field {text_field!r} (corpus.text_field),"
            f" found {type(value).__name__}"
        )
    record = cast("dict[str, object]", value)
    if text_field not in record:
        raise DataError(_no_field(where, text_field, list(record)))
    return _text(where, text_field, record[text_field])


def _read_parquet(path: Path, text_field: str) -> Iterator[str]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtraError("pyarrow", "train") from error
    try:
        # Opened here: pyarrow takes no name that is not UTF-8.
        with path.open("rb") as raw, parquet.ParquetFile(raw) as file:
            names = file.schema_arrow.names
            if text_field not in names:
                raise DataError(_no_field(f"{path}", text_field, list(names)))
            yield from _rows(path, text_field, file)
    except pyarrow.ArrowException as error:
        raise DataError(f"{path}: not a parquet file that can be read: {error}") from error


def _rows(path: Path, text_field: str, file: Any) -> Iterator[str]:
    row = 0
    batches = file.iter_batches(_PARQUET_BATCH_ROWS, columns=[text_field], use_threads=False)
    for batch in batches:
        for value in batch.column(0).to_pylist():
            row += 1
            yield _text(f"{path} row {row}", text_field, value)


def _text(where: str, text_field: str, value: object) -> str:
    if value is None:
        raise DataError(
            f"{where}: field {text_field!r} is null, and nothing is passed over silently;"
            f" take out every such line or row: jq -c 'select(.[\"{text_field}\"] != null)' for"
            f" .jsonl, pandas.DataFrame.dropna(subset=[{text_field!r}]) for .parquet"
        )
    if not isinstance(value, str):
        raise DataError(
            f"{where}: field {text_field!r} is {type(value).__name__}, expected text;"
            " name the one with the text: corpus.text_field=NAME"
        )
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where}: field {text_field!r} holds half a surrogate pair at character"
            f" {error.start}, which is no text"
        ) from error
    return value


def _no_field(where: str, text_field: str, fields: list[str]) -> str:
    named = ", ".join(fields[:_NAMED_FIELDS]) or "none"
    more = ", ..." if len(fields) > _NAMED_FIELDS else ""
    return (
        f"{where}: no field {text_field!r}; found {named}{more};"
        " name the one with the text: corpus.text_field=NAME"
    )


_READERS: dict[str, Callable[[Path, str], Iterator[str]]] = {
    ".txt": _read_text,
    ".md": _read_text,
    ".rst": _read_text,
    ".py": _read_text,
    ".jsonl": _read_jsonl,
    ".parquet": _read_parquet,
}
