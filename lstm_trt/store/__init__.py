"""What is in a file of trials, and files on disk.

A recording is one self-contained Parquet file; a long recording is a series of such files, its
parts; a campaign is a folder of recordings, which can be consolidated into two files. Read in this
order:

    schema        the columns of the trials, `Recording` and `Failure`
    provenance    what a recording states besides: each fact, its type, how those of parts join
    files         a recording is written and read
    folders       the recordings, parts and failures of a folder; the parts become one recording
    consolidated  many recordings as two tables

Beside them: `joins` of facts, `whole` (a recording too long for memory, as counts), `locks` of
folders, cores and devices, `temporary` files, and the `cache` of what takes long to make.
"""
