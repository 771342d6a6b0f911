"""The recovery table: every state in which a start may find the disk, and what it does then. docs/disk-format.md shows
it.

`RecoveryReport.rows` names the rows that applied. Rows that refuse the start raise an error with the command that
helps.
"""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """One row of the recovery table: a state of the disk and its handling. `name` is the word that reports use."""

    name: str
    found: str
    done: str
    safe: str
    """The reason why the handling loses nothing that was acknowledged, and lets in no entry of another history."""
    votes: str = "yes"
    """The node's right to vote afterwards: "yes" or "no"; "-" if the node does not start."""
    campaigns: str = "yes"


ROWS = (
    # States that tell how the last run ended
    Row(
        "clean stop", "CLEAN equals the newest mark of the last segment, its sidecar agrees",
        "the last frame is checked, nothing is scanned; CLEAN is removed",
        "an orderly stop marks everything as on disk before it writes CLEAN, and any append makes CLEAN obsolete",
    ),
    Row(
        "unclean stop", "no CLEAN, or one that does not match",
        "frames are read from the newest `active.idx` that matches, else from the segment's base, up to the zeroes",
        "when `active.idx` was written, everything below it was on disk; later headers are chained to its last frame",
    ),
    Row(
        "complete above the mark", "intact frames above the newest mark, possibly a whole unmarked batch",
        "accepted: written again, synced and marked before they count",
        "after a killed process or a failed sync they may be in the page cache only, and the node is about to "
        "acknowledge them; only frames that a leader stamped can continue the chain",
    ),
    Row(
        "torn tail", "a bad header, payload or chain at or above the mark, or bytes after zeroes",
        "copied to trash/, zeroed, synced",
        "a sync that returned is followed by a mark within one batch or 10 ms, so these frames were never acknowledged",
    ),
    Row(
        "last file without a frame", "the last segment's mark is at its base, and no frame is complete",
        "moved to trash/; the segment before is active again",
        "a file gets its name only when the one before it is complete and synced",
    ),
    Row(
        "leftover temporary file", "`*.tmp` in log/",
        "left in place; the next writer overwrites it",
        "a file counts only once it has been renamed",
    ),
    # Damaged frames
    Row(
        "damage below the mark", "bad headers or payloads below the mark, and intact frames behind them whose chain "
        "leads to the mark or that follow it",
        "recorded as a damaged range, to be fetched; the log continues behind it",
        "the mark or the frame after it names the true last entry; nothing damaged is served, and a copy must match "
        "the chain on both sides", campaigns="after the repair",
    ),
    Row(
        "unreadable tail below the mark", "damage or zeroes below the mark, and no chain behind them leads to it",
        "VOTE_WITHHELD is written, then the bytes are copied to trash/, the marks lowered, the range zeroed",
        "entries that the node acknowledged may be gone: it votes for no candidate until it holds what a leader of the "
        "current term has committed", "no", "no",
    ),
    Row(
        "damage in a sealed segment", "a bad frame below the active segment, or below `active.idx`",
        "nothing during the start; the first read of the frame records a damaged range, to be fetched",
        "the sidecar says where every other frame is; nothing damaged is served", campaigns="after the repair",
    ),
    Row(
        "damaged headers in a sealed segment", "the sidecar is lost too, and the headers cannot be read to the end",
        "the frames behind the damage are found by their chain to the next file; the rest is a damaged range, to be "
        "fetched",
        "the next file names the last frame of this one", campaigns="after the repair",
    ),
    Row(
        "GENESIS damaged", "the frame at index 0 is bad",
        "the copy in DATA/GENESIS is used; the frame is a damaged range, to be fetched",
        "the copy has its own checksums", campaigns="after the repair",
    ),
    # Damaged files and headers of this node alone, which no peer has
    Row(
        "one mark damaged", "one of the two sync marks is bad",
        "the other mark is used",
        "it is at most one batch older: the frames above it are still complete and are accepted",
    ),
    Row(
        "both marks damaged", "neither sync mark is good, and there is no CLEAN",
        "VOTE_WITHHELD is written; what lies behind the last intact frame is copied to trash/, then zeroed",
        "it is unknown how far the log was durable, and so what this node acknowledged", "no", "no",
    ),
    Row(
        "both marks damaged, CLEAN is there", "neither sync mark is good, but CLEAN is",
        "the marks are written again from CLEAN",
        "CLEAN is a copy of the newest mark",
    ),
    Row(
        "local header of the active segment", "sector 0 of the last file is bad",
        "copied to trash/, written again from the end of the file before and its own first frame",
        "the header contains nothing that those two do not contain, and both must agree",
    ),
    Row(
        "local header of a sealed segment", "sector 0 of any other file is bad",
        "the same",
        "the same",
    ),
    Row(
        "sidecar", "the index of a sealed segment is missing, damaged, or from before a conflict",
        "the headers of that segment are read, and the sidecar is written again",
        "a sidecar counts only if it ends where the next file begins",
    ),
    Row(
        "kept index damaged", "`active.idx` is missing, damaged, of another segment, or of another history",
        "the active segment is scanned from its base",
        "the file only says where a scan may begin",
    ),
    # Missing files
    Row(
        "missing middle segment", "a file's local header names a file before it that is not there",
        "one damaged range from the end of the file before to the beginning of the file after, to be fetched",
        "both neighbours name the frames at the edges of the gap", campaigns="after the repair",
    ),
    Row(
        "missing first segment", "the log begins above `FIRST`; without `FIRST`, above 0",
        "one damaged range from `FIRST`, or 0, to the beginning of the log, to be fetched",
        "`FIRST` names the frame before the range, as the end of the previous file would; DATA/GENESIS identifies the "
        "cluster", campaigns="after the repair",
    ),
    Row(
        "trimmed", "the log begins where `FIRST` says, or lower",
        "used as it is",
        "what is missing below was trimmed on every replica: `FIRST` is on disk before a trimmed file is unlinked",
    ),
    Row(
        "leftovers of a trim", "files below `FIRST`, and a gap between them and the log",
        "removed; files without a gap before the log are kept, and trimmed again",
        "trimmed files are unlinked oldest first, after `FIRST` is on disk, so what lies below a gap was trimmed too",
    ),
    Row(
        "FIRST damaged", "`FIRST` cannot be read",
        "the log begins with its first file; the next trim writes it again",
        "nothing is removed; the state records how far the log was trimmed, so a lost first file still shows",
    ),
    Row(
        "missing last segment", "CLEAN or RUN names an entry above the end of the log",
        "VOTE_WITHHELD is written; nothing is cut",
        "entries that the node acknowledged are gone", "no", "no",
    ),
    Row(
        "no segment file", "log/ is empty, whatever rows RocksDB still has",
        "refused (LogGoneError): restore it, or `raftmq rebuild --plan`",
        "rows without their log prove nothing", "-", "-",
    ),
    # A log that was fetched to replace this node's log
    Row(
        "INSTALL", "`INSTALL`, and install/log is whole",
        "log/ is moved to trash/, install/log becomes log/, `INSTALL` is removed; after a crash this resumes",
        "the new log ends with a committed entry that the old one does not hold, so nothing in the old log "
        "above that entry can ever be committed, and the checkpoint covers what is below",
        campaigns="after the older segments are back",
    ),
    Row(
        "INSTALL, and the log went on", "`INSTALL`, and log/ holds the last entry of install/log",
        "log/ stays; `INSTALL` and install/ are removed",
        "after the decision a leader brought this log up to date, so what the node has acknowledged since is kept",
    ),
    Row(
        "INSTALL, and the log does not open", "`INSTALL`, and log/ would be refused",
        "VOTE_WITHHELD is written, then the same as for `INSTALL`",
        "it is unknown what the node had acknowledged above the new log", "no", "no",
    ),
    Row(
        "INSTALL damaged", "`INSTALL` cannot be read",
        "log/ stays; if it was already moved, install/log becomes log/",
        "a new log that is removed can be fetched again; if log/ was moved, the decision had been read intact",
    ),
    Row(
        "install/ without INSTALL", "a log under construction",
        "left in place; the next fetch continues or overwrites it",
        "it counts only once `INSTALL` exists",
    ),
    # States in which the node does not start
    Row(
        "another format", "an intact frame, file or slot of a format that this release does not read",
        "refused, naming the format",
        "cutting it would lose data", "-", "-",
    ),
    Row(
        "not of one history", "the frames continue past the mark or into the next file but differ from what "
        "those name, or a file belongs to another group or another name",
        "refused, naming the file",
        "files of two logs were mixed; a program cannot decide which log is right", "-", "-",
    ),
    # Term and vote, and the rest of the directory
    Row(
        "hard state, one slot", "one slot is damaged or older",
        "the other slot is used; both are written again",
        "every save writes both",
    ),
    Row(
        "hard state, both slots", "both slots are damaged, or the file is missing",
        "refused: replace the node",
        "the node may have forgotten a vote and could vote twice in a term", "-", "-",
    ),
    Row(
        "hard state older than the log", "the log has an entry of a later term than was saved",
        "refused: put back the file that belongs here, or replace the node",
        "a term is on disk before its entries, so this file is from an earlier time", "-", "-",
    ),
    Row(
        "RUN", "missing, or both slots damaged",
        "the last stop counts as unclean",
        "safety depends on nothing in it",
    ),
    Row(
        "VOTE_WITHHELD", "the file exists, readable or not",
        "the vote stays withheld until the node has caught up with a leader",
        "it is removed only when nothing that the node acknowledged is missing any longer", "no", "no",
    ),
)  # fmt: skip

BY_NAME = {row.name: row for row in ROWS}


def markdown() -> str:
    """Returns the table in Markdown, as docs/disk-format.md shows it."""
    lines = [
        "| state | found | done | why it is safe | votes | campaigns |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in ROWS]) + "\n"
