"""Defines the verbs about messages: sends, pulls, queries, transactions, replies, staged writes."""

from __future__ import annotations

from cluster.broker.rights import PUB, READ, SUB
from cluster.requests import answer_sizes
from cluster.requests.named_rights import GET, named, nothing, of_reply, on_cluster
from cluster.requests.verb import Cost, Repeats, Serves, Verb
from cluster.runtime.request_limits import STAGED_BYTES_MAX

OF_WRITE = named(groups="name", on=PUB)
"""The rights that a request about a staged write needs: to publish in the group of the field `name`. So a user without
the right cannot commit or discard what another user has staged under that name."""

MESSAGES = (
    Verb(
        10,
        "SEND_MESSAGE",
        named(topics="topic", on=PUB),
        page="long names, see below",
        fields=(
            "producerGroup topic defaultTopic defaultTopicQueueNums queueId sysFlag bornTimestamp flag properties "
            "reconsumeTimes maxReconsumeTimes batch raftmqPid raftmqSeq raftmqLow"
        ),
        serves=Serves.LEADER,
        in_line=True,
        repeats=Repeats.RECOGNISED,
        is_send=True,
        body_bytes_max=None,
    ),
    Verb(
        310,
        "SEND_MESSAGE_V2",
        named(topics="b", on=PUB),
        page="letters, see below",
        fields="a b c d e f g h i j l m raftmqPid raftmqSeq raftmqLow",
        serves=Serves.LEADER,
        in_line=True,
        repeats=Repeats.RECOGNISED,
        is_send=True,
        body_bytes_max=None,
    ),
    Verb(
        320,
        "SEND_BATCH_MESSAGE",
        named(topics="b", on=PUB),
        page='letters; body see "Batch body"',
        fields="a b c d e f g h i j l m raftmqPid raftmqSeq raftmqLow",
        serves=Serves.LEADER,
        in_line=True,
        repeats=Repeats.RECOGNISED,
        is_send=True,
        body_bytes_max=None,
    ),
    Verb(
        11,
        "PULL_MESSAGE",
        named(topics="topic", groups="consumerGroup", on=SUB),
        page='see "Pulls"',
        fields=(
            "consumerGroup topic queueId queueOffset maxMsgNums sysFlag commitOffset suspendTimeoutMillis subVersion "
            "subscription expressionType maxMsgBytes"
        ),
        serves=Serves.PULLS,
    ),
    Verb(
        361,
        "LITE_PULL_MESSAGE",
        named(topics="topic", groups="consumerGroup", on=SUB),
        page="like 11",
        fields=(
            "consumerGroup topic queueId queueOffset maxMsgNums sysFlag commitOffset suspendTimeoutMillis subVersion "
            "subscription expressionType maxMsgBytes"
        ),
        serves=Serves.PULLS,
    ),
    Verb(
        12,
        "QUERY_MESSAGE",
        named(topics="topic", on=READ),
        page='{fields} → messages, or 22; see "Queries"',
        fields="topic! key! maxNum! beginTimestamp! endTimestamp! _UNIQUE_KEY_QUERY indexType",
        serves=Serves.OWN_ROWS,
        may_hand_over=True,
        cost=Cost.READS_MUCH,
        answer_bytes=answer_sizes.found_messages,
    ),
    Verb(
        33,
        "VIEW_MESSAGE_BY_ID",
        nothing,
        page='{fields} → the message, or 1; see "Queries"',
        fields="offset! topic",
        stored="Sub or Get on the topic of the message's row",
        serves=Serves.OWN_ROWS,
        may_hand_over=True,
        answer_bytes=answer_sizes.one_message,
    ),
    Verb(
        36,
        "CONSUMER_SEND_MSG_BACK",
        named(groups="group", on=SUB),
        page='{fields} → 0; see "Sent back"',
        fields="offset! group! delayLevel originMsgId originTopic unitMode maxReconsumeTimes",
        stored="Sub on the topic of the message's row",
        serves=Serves.LEADER,
        may_hand_over=True,
        repeats=Repeats.HARMS_LESS,
    ),
    Verb(
        370,
        "RECALL_MESSAGE",
        named(topics="topic", on=PUB),
        page='{fields} → 0 with `msgId` = UNIQ_KEY; see "Delayed"',
        fields="producerGroup topic! recallHandle!",
        stored="Pub on the topic of the message's row",
        serves=Serves.LEADER,
        repeats=Repeats.RECOGNISED,
    ),
    Verb(
        37,
        "END_TRANSACTION",
        nothing,
        page='{fields} → 0, `raftmqEnd`; see "Transactions"',
        fields=(
            "producerGroup! tranStateTableOffset! commitLogOffset! commitOrRollback! msgId! transactionId "
            "fromTransactionCheck"
        ),
        stored="the user who sent the half message, or Pub on the topic of its row",
        serves=Serves.LEADER,
        may_hand_over=True,
        repeats=Repeats.RECOGNISED,
        is_kept=True,
    ),
    Verb(
        324,
        "SEND_REPLY_MESSAGE",
        of_reply,
        page=(
            "like 10, to the topic `<cluster>_REPLY_TOPIC`; the properties `REPLY_TO_CLIENT` and `CORRELATION_ID` "
            'name the client that the reply is pushed to (326), and its request, see "Request and reply" → `msgId=0 '
            "queueId queueOffset=0`; 1 if that client is not connected to any node, cannot be told from others, or "
            "does not confirm it; 2 if a node that may know it does not answer. Not stored"
        ),
        fields=(
            "producerGroup topic defaultTopic defaultTopicQueueNums queueId sysFlag bornTimestamp flag properties "
            "reconsumeTimes maxReconsumeTimes batch raftmqPid raftmqSeq raftmqLow"
        ),
        body_bytes_max=None,
        asks_client=True,
    ),
    Verb(
        325,
        "SEND_REPLY_MESSAGE_V2",
        of_reply,
        page="the same with letters",
        fields="a b c d e f g h i j l m raftmqPid raftmqSeq raftmqLow",
        body_bytes_max=None,
        asks_client=True,
    ),
    Verb(
        700_001,
        "OPEN_ATTEMPT",
        OF_WRITE,
        page=(
            '{fields} → `attempt`, its number; or `committed`, if that write of the name is committed; see "Staged '
            'writes"'
        ),
        fields="name! write!",
        serves=Serves.LEADER,
        repeats=Repeats.RECOGNISED,
        body_bytes_max=0,
    ),
    Verb(
        700_002,
        "STAGE_MESSAGES",
        named(topics="topic", on=PUB),
        page="{fields}, body as 320 → 0",
        fields="attempt! sequence! topic! queueId bornTimestamp",
        serves=Serves.LEADER,
        repeats=Repeats.RECOGNISED,
        body_bytes_max=STAGED_BYTES_MAX,
    ),
    Verb(
        700_003,
        "COMMIT_WRITE",
        OF_WRITE,
        page=(
            "{fields}, body `[[attempt, messages], ...]` → `committed`, the newest write of the name, and `earlier`, "
            "whether it was before"
        ),
        fields="name! write!",
        serves=Serves.LEADER,
        repeats=Repeats.RECOGNISED,
    ),
    Verb(
        700_004,
        "ABORT_WRITE",
        OF_WRITE,
        page="{fields} → `attempts`, how many were discarded",
        fields="name! write!",
        serves=Serves.LEADER,
        repeats=Repeats.RECOGNISED,
        body_bytes_max=0,
    ),
    Verb(
        700_007,
        "PREPARE_WRITE",
        OF_WRITE,
        page=(
            "{fields}, body as 700003 → `messages`, how many the part of this group of brokers has; or `committed`, if "
            "that write of the name is committed here"
        ),
        fields="name! write! decider!",
        serves=Serves.LEADER,
        repeats=Repeats.RECOGNISED,
    ),
    Verb(
        700_008,
        "COMMIT_GROUPS",
        OF_WRITE,
        page="{fields}, body as 700003 → as 700003; `groups`: numbers of groups of brokers, with commas",
        fields="name! write! decider! groups!",
        serves=Serves.LEADER,
        repeats=Repeats.RECOGNISED,
    ),
    Verb(
        700_005,
        "ENTRIES_AT",
        on_cluster(GET),
        page=(
            "body: at most 1,024 positions of stored messages, u64 each, ascending → for each run of positions in "
            "one entry of the Raft log: index u64, term u64, and u32, how many positions these are; 22 if the node's "
            "log does not reach down so far, 14 if the node has not applied so much, 2 if 256 such requests wait"
        ),
    ),
)
