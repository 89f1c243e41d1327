"""Readers of telemetry files that people already have; one module per format, one sniffer.

A format module exports three names and nothing else is asked of it:

    NAME: str                                        # as --format and the account say it
    def claims(head: Head) -> Claim | None           # from the first 64 KiB alone; None: not mine
    def open_file(source: TextSource, options: Options, why: str) -> ReaderStream

``claims`` gives a score (90 a signature nothing else has, 70 a header of known names, 40 a guess)
and the reason in words, which becomes ``Account.why``. ``open_file`` makes a ``GpuTable`` and a
``Ledger``, says in the ledger what it uses (``columns``, ``power_kind``, ``power_scope``,
``is_relative``, ``absent``), and returns ``ReaderStream(table, ledger, chunks())``, where
``chunks`` is a generator of ``SampleBatch``. Row by row: ``rows.add(t_s, gpu, power_w, ...)`` on a
``Rows``, and ``yield rows.take()`` whenever ``rows.is_full`` and once at the end. Whatever is not
delivered goes through ``ledger.drop(reason, count)``; whatever a reader of the account should know
is one sentence to ``ledger.note``. The stream itself drops rows that go back in time, finds gaps
and the period, and refuses a file that gave no sample. A file that cannot be triaged is
``refusal(path, why)``, which adds the recipe; raise it as early as the header allows.
A line of ``source.lines()`` is ``torn`` where the bytes around it are missing (no final newline, a
run of NULs): it may still be a header, never a data row. JSON documents come from
``source.read_all()``. Numbers, units, missing markers and times are read by ``cells`` alone.
To add a format, list its module in ``sniff.READERS``.
"""
