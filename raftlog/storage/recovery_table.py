"""Every state in which a start may find the disk, and what is done about it: docs/disk-format.md shows this table.

`RecoveryReport.rows` names the rows that applied. Rows that refuse raise an error that says what to type.
"""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """One state. `name` is what reports say."""

    name: str
    found: str
    done: str
    safe: str
    """Why that loses nothing that was acknowledged, and lets no entry of another history in."""
    votes: str = "yes"
    """Whether the node votes then; "-" where it does not open."""
    campaigns: str = "yes"


ROWS = (
    # How the last stop went
    Row(
        "clean stop", "CLEAN equals the newest mark of the last segment, its sidecar agrees",
        "the last frame is checked, nothing is scanned; CLEAN is removed",
        "an orderly stop marks everything as on disk before it writes CLEAN, and any append outdates it",
    ),
    Row(
        "unclean stop", "no CLEAN, or one that does not fit",
        "frames are read from the newest `active.idx` that fits, else from the segment's base, up to zeroes",
        "below `active.idx` everything was on disk when it was written, and headers are chained to its last frame",
    ),
    Row(
        "complete above the mark", "good frames above the newest mark, a whole torn batch among them",
        "accepted: written again and synced before they count",
        "after a killed process or a failed sync they may be in the page cache only, and the node is about to vouch "
        "for them; no frame that a leader did not stamp can follow the chain",
    ),
    Row(
        "torn tail", "a bad header, payload or chain at or above the mark, or bytes after zeroes",
        "copied to trash/, zeroed, synced",
        "a sync that returned is followed by a mark within one batch or 10 ms: nobody was told of these frames",
    ),
    Row(
        "last file without a frame", "the last segment's mark stands at its base, and no frame is whole",
        "moved to trash/; the segment before is active again",
        "a file gets its name only when the one before it is complete and synced",
    ),
    Row(
        "leftover temporary file", "`*.tmp` in log/",
        "left; overwritten by whoever writes it next",
        "a file counts from its rename on",
    ),
    # Damage of frames
    Row(
        "damage below the mark", "bad headers or payloads below the mark, and frames beyond whose chain leads to it "
        "or that follow it",
        "kept as a damaged range, to be fetched; the log goes on behind it",
        "the mark or the frame after it names the true last entry; nothing damaged is served, and a copy must fit the "
        "chain on both sides", campaigns="after the repair",
    ),
    Row(
        "unreadable tail below the mark", "damage or zeroes below the mark, and nothing beyond leads to it",
        "VOTE_WITHHELD is written, then the bytes are copied to trash/, the marks lowered, the range zeroed",
        "entries that it acknowledged may be gone: it helps nobody to be elected until it holds what a leader of the "
        "present term had committed", "no", "no",
    ),
    Row(
        "damage in a sealed segment", "a bad frame below the active segment, or below `active.idx`",
        "nothing on the way up; whoever reads it records a damaged range, to be fetched",
        "the sidecar tells where every other frame is; nothing damaged is served", campaigns="after the repair",
    ),
    Row(
        "damaged headers in a sealed segment", "the sidecar is lost too, and the headers cannot be walked to the end",
        "the frames behind are found again by their chain to the next file; the rest is a damaged range, to be fetched",
        "the next file names the last frame of this one", campaigns="after the repair",
    ),
    Row(
        "GENESIS damaged", "the frame at index 0 is bad",
        "its copy in DATA/GENESIS is believed; the frame is a damaged range, to be fetched",
        "the copy proves itself by its own checksums", campaigns="after the repair",
    ),
    # Damage of what is local
    Row(
        "one mark damaged", "one of the two sync marks is bad",
        "the other counts",
        "it is one batch older at most: frames above it are still complete and are accepted",
    ),
    Row(
        "both marks damaged", "neither sync mark is good, and there is no CLEAN",
        "VOTE_WITHHELD is written; what lies behind the last good frame is copied to trash/, then zeroed",
        "how far the log was durable is not known, so neither is what this node acknowledged", "no", "no",
    ),
    Row(
        "both marks damaged, CLEAN is there", "neither sync mark is good, CLEAN is",
        "the marks are written again from CLEAN",
        "CLEAN is a copy of the newest mark",
    ),
    Row(
        "local header of the active segment", "sector 0 of the last file is bad",
        "copied to trash/, written again from the end of the file before and its own first frame",
        "it holds nothing that those do not hold, and both must agree",
    ),
    Row(
        "local header of a sealed segment", "sector 0 of another file is bad",
        "the same",
        "the same",
    ),
    Row(
        "sidecar", "the index of a sealed segment is missing, damaged, or from before a conflict",
        "the headers of that segment are walked, the sidecar is written again",
        "a sidecar counts only if it ends where the next file begins",
    ),
    Row(
        "kept index damaged", "`active.idx` is missing, damaged, of another segment, or of another history",
        "the active segment is scanned from its base",
        "it only says where a scan may begin",
    ),
    # Missing files
    Row(
        "missing middle segment", "a file's local header names a file before it that is not there",
        "one damaged range from the end of the file before to the beginning of the file after, to be fetched",
        "both neighbours name the frames at the edges", campaigns="after the repair",
    ),
    Row(
        "missing first segment", "the log begins above `FIRST`, without one above 0",
        "the same, from there",
        "`FIRST` names the frame before, as the end of a file before it would; what the cluster is, DATA/GENESIS tells",
        campaigns="after the repair",
    ),
    Row(
        "trimmed", "the log begins where `FIRST` says, or lower",
        "used as it is",
        "what is missing below was trimmed everywhere: `FIRST` is on disk before a trimmed file is unlinked",
    ),
    Row(
        "leftovers of a trim", "files below `FIRST`, and a gap between them and the log",
        "removed; files without a gap count, and are trimmed again",
        "trimmed files are unlinked oldest first, after `FIRST` is on disk: what lies below a gap was given up too",
    ),
    Row(
        "FIRST damaged", "`FIRST` cannot be read",
        "the log begins with its first file; the next trim writes it again",
        "a lost first file shows in the state, which knows up to where the log was trimmed; nothing is removed",
    ),
    Row(
        "missing last segment", "CLEAN or RUN tells of an entry above the end of the log",
        "VOTE_WITHHELD is written; nothing is cut",
        "entries that it acknowledged are gone", "no", "no",
    ),
    Row(
        "no segment file", "log/ is empty, whatever rows RocksDB still has",
        "refused (LogGoneError): restore it, or `raftmq rebuild --plan`",
        "rows without their log prove nothing", "-", "-",
    ),
    # A log that was fetched to replace the one here
    Row(
        "INSTALL", "`INSTALL`, and install/log is whole",
        "log/ is moved to trash/, install/log becomes log/, `INSTALL` is removed; after a crash from where it was",
        "the new log ends with a committed entry that the old one does not hold, so nothing in the old one "
        "above it can ever be committed, and the checkpoint covers what is below",
        campaigns="after the older segments are back",
    ),
    Row(
        "INSTALL, and the log went on", "`INSTALL`, and log/ holds the last entry of install/log",
        "log/ stays, `INSTALL` and install/ are removed",
        "a leader brought it forward after the decision: what it acknowledged since is kept",
    ),
    Row(
        "INSTALL, and the log does not open", "`INSTALL`, and log/ would be refused",
        "VOTE_WITHHELD is written, then as with `INSTALL`",
        "what it had acknowledged above the new log is not known", "no", "no",
    ),
    Row(
        "INSTALL damaged", "`INSTALL` cannot be read",
        "log/ stays; if it was moved already, install/log becomes log/",
        "a build that is removed is made again; once log/ was moved the decision had been read",
    ),
    Row(
        "install/ without INSTALL", "a log under construction",
        "left; built upon, or overwritten, by whoever fetches the next one",
        "it counts from `INSTALL` on",
    ),
    # Refusals
    Row(
        "newer format", "an intact frame, file or slot of a format this release does not know",
        "refused, naming the format",
        "cutting it would lose it", "-", "-",
    ),
    Row(
        "not of one history", "the frames go on past the mark or the next file and are others than those name, or a "
        "file is of another group or another name",
        "refused, naming the file",
        "files of two logs were mixed: which is right is not for a program to say", "-", "-",
    ),
    # Term and vote, and the rest of the directory
    Row(
        "hard state, one slot", "one slot is damaged or older",
        "the other counts; both are written again",
        "every save writes both",
    ),
    Row(
        "hard state, both slots", "both slots are damaged, or the file is missing",
        "refused: replace the node",
        "it may have forgotten a vote, and would vote twice in a term", "-", "-",
    ),
    Row(
        "hard state older than the log", "the log has an entry of a later term than was saved",
        "refused: put back the one that belongs here, or replace the node",
        "a term is on disk before its entries: this file is from another time", "-", "-",
    ),
    Row(
        "RUN", "missing, or both slots damaged",
        "the last run counts as stopped out of order",
        "nothing in it is needed to be safe",
    ),
    Row(
        "VOTE_WITHHELD", "there, whether it can be read or not",
        "the vote stays withheld until the node has caught up with a leader",
        "it is removed only when nothing that the node acknowledged is missing any more", "no", "no",
    ),
)  # fmt: skip

BY_NAME = {row.name: row for row in ROWS}


def markdown() -> str:
    """The table as docs/disk-format.md shows it."""
    lines = [
        "| state | found | done | why it is safe | votes | campaigns |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in ROWS]) + "\n"
