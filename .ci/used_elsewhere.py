"""Names that look unused and are not: `make dead-code` (vulture) takes each name below for a use. Never imported.

Add a name only with the reason for which nothing in the tree uses it. Patterns of names are in pyproject.toml.
"""

# ruff: noqa: B018, F821

# Fields of JSON that the HTTP API or `--json` shows, or that is read by another process.
_.bytes_done  # cluster/repair/progress.py
_.lag_bytes  # cluster/admin/node_interface.py
_.refused_ms_ago, _.waiting_bytes  # cluster/admin/handlers/quotas.py
send_messages, pull_messages, pull_bytes, new_topics, new_groups, backlog_bytes  # the same: fields of a request
_.limit_messages, _.limit_bytes  # cluster/admin/handlers/learnt_limits.py
_.committed_offset, _.set_ms, _.body_base64, _.waiting_for, _.durability, _.next_check_ms  # cluster/admin
# cluster/admin/figure_history.py: the names of the series
_.messages_in_per_s, _.messages_out_per_s, _.bytes_in_per_s, _.bytes_out_per_s, _.commit_p50_ms, _.commit_p99_ms
_.append_p99_ms, _.apply_lag_entries, _.loop_lag_ms, _.demand_bytes_per_s, _.decided_bytes_per_s
_.admission_limit_bytes, _.refused_overload_per_s, _.refused_busy_per_s, _.refused_other_per_s
_.body_cut  # cluster/admin/handlers/messages.py
_.xxh3  # cluster/tier/manifest_format.py
_.bytes_exact, _.bytes_applied_index  # cluster/admin/handlers/topics.py
_.members_total  # cluster/admin/handlers/groups.py
_.queues_in_groups  # cluster/admin/handlers/topics.py
_.topics_alone, _.topics_alone_total, _.order_topics, _.order_topics_total  # cluster/admin/drain_plan.py
_.topics_shared, _.unread_groups, _.unread_messages, _.topics_read_by_nobody  # cluster/admin/drain_plan.py
_.groups_with_dead_letters, _.next_due_ms, _.tier_segments  # cluster/admin/drain_plan.py
_.would_remove  # cluster/admin/handlers/backup.py
_.broadcast_groups  # cluster/admin/handlers/upgrade.py
_.damaged_bytes, _.finished_ms  # cluster/repair
(
    _.held_by,
    _.pinned_position,
    _.pinned_since_ms,
    _.pinned_halves,
    _.carrying,
    _.trim_index,
    _.trimmed_at_index,
    _.trimmed_ms,
)  # cluster/retention/views.py
# cluster/replication
_.loss_window_entries_max, _.loss_window_bytes_max, _.loss_window_messages, _.loss_window_messages_seen
_.lost_messages, _.lost_entries
_.secret_key, _.found_by, _.not_found_by  # cluster/members/views.py
_.seconds_per_row  # raftmq/commands/bench_modes.py
# cluster/remoting/handlers/pull.py: fields of clients that are taken and mean nothing here
_.requestSource, _.proxyFrowardClientId, _.bname, _.lo, _.ns, _.nsd, _.oway
_.used_percent  # cluster/retention/disk_space.py
_.brokerDatas, _.default_topic  # RocketMQ's names; decoded and passed on whole

# Read by name: configuration keys, tables that become a page of docs/, and methods that a table of names calls.
_.topics_max, _.groups_max  # cluster/replication/pending_requests.py
_.safe  # raftlog/storage/recovery/recovery_table.py, printed in docs/disk-format.md
_.pedigree  # of a planted bug: for the readers of its file
_._crash, _._power_failure, _._pause, _._isolate, _._halves, _._one_way  # kinds of jepsen_like/core_sim/faults.py
_._loss, _._duplicate, _._slow_link, _._slow_disk, _._clock, _._transfer, _._campaign, _._closed
_._figure_8, _._stale_vote, _._stale_ack  # jepsen_like/core_sim/staged_faults.py
_._double_vote, _._late_handover, _._stale_read

# Called or read by the standard library.
_.msg, _.exc_text  # of a log record
_._write_to_self, _._timer_handle_cancelled, _._run_once  # of an event loop
_.get_protocol, _.get_write_buffer_limits, _.start_serving, _.get_loop, _.is_serving  # of transports and servers
_.close_connection  # of a http.server handler
_.gid, _.uid, _.gname, _.uname, _.mtime  # of a tar member

# Read by clients of the HTTP API.
_.runbook, _.passes  # cluster/admin/findings/finding.py, cluster/members/checks.py
(
    _.received_bytes_per_s,
    _.sent_bytes_per_s,
    _.disconnected,
)  # cluster/admin/node_interface.py, cluster/admin/handlers/node_reports.py

# Called by Spark: pyspark_raftmq/source.py, pyspark_raftmq/stream.py.
_.streamReader, _.streamWriter, _.initialOffset, _.latestOffset, _.reportLatestOffset, _.pushFilters
_.getDefaultReadLimit, _.prepareForTriggerAvailableNow
_.p50_bytes, _.p99_bytes, _.of_mean  # pyspark_raftmq/jobs: printed

# cluster/registry/hardened.py, hardened_transport.py: names of pysyncobj, which calls and reads them.
_.onOneSecondTimer, _.setCurrentTerm, _._destroy, _.getTransmissionData, _.cancelTransmisstion, _.destroy
_._SyncObj__votedForNodeId, _._SyncObj__serializer, _._SyncObj__needLoadDumpFile, _._SyncObj__doApplyCommand
_._SyncObj__raftElectionDeadline, _._SyncObj__leaderCommitIndex, _._SyncObj__tryLogCompaction
_._TcpConnection__writeBuffer, _._TcpConnection__processParseMessage

# Called by the native kernel.
origin_of  # cluster/remoting/handlers/send.py

# Kept for what they say: numbers of the disk format and of RocketMQ, and an object that must not be collected.
_.DELIVERED, _.HALF  # statemachine/payload.py
_.PERM_PRIORITY  # statemachine/topics/topics.py
_._removal  # cluster/repair/install_service.py: the task of a thread

# Of tests: a fixture that is asked for its effect, and a field that a failed assertion prints.
_.all_released, _.after_s
_.loadscopereorder  # tests/conftest.py: an option of pytest-xdist
_.__signature__  # tests/support/rows.py: pytest reads which fixtures a test wants
_.dont_write_bytecode  # tests/conftest.py: the interpreter does

_.tier_begins, _.pending_age_ms, _.manifest_version, _.copying_state  # cluster/tier/tier_service.py
_.pending_upload_bytes  # cluster/members/checks.py: a field of an answer
_.no_slowdown  # statemachine/rows/rocksdb_store.py: an option of RocksDB
_.num_tickets  # cluster/runtime/tls/contexts.py: an option of OpenSSL
_.journal_operations, _.child_restarts  # cluster/admin/handlers/registry.py: fields of an answer
