#!/bin/sh
# Makes what other containers need before they start: the keys of the object store and Grafana's password. Files that
# are there stay. Nothing is printed into a log.
set -eu
umask 077

random() { python -c 'import secrets; print(secrets.token_hex(20), end="")'; }

if [ ! -s /handed/store/credentials ]; then
    printf '[default]\naws_access_key_id = raftmq\naws_secret_access_key = %s\n' "$(random)" >/handed/store/credentials.new
    mv /handed/store/credentials.new /handed/store/credentials
fi
# Only Grafana and Prometheus mount this volume; they run as users of their own, which must be able to read it.
if [ ! -s /handed/metrics/grafana-password ]; then
    random >/handed/metrics/grafana-password.new
    chmod 444 /handed/metrics/grafana-password.new
    mv /handed/metrics/grafana-password.new /handed/metrics/grafana-password
fi
