#!/bin/sh
# Gives Prometheus a user and a token, then has the cluster judge every request. It may run any number of times; what it
# makes goes into volumes and not into a log.
set -eu
umask 077
export RAFTMQ_ADMIN=n1:9644,n2:9644,n3:9644 RAFTMQ_SECRET_FILE=/secrets/peers

until raftmq user list >/dev/null 2>&1; do sleep 1; done

if [ ! -s /secrets/scrape-token ]; then
    raftmq user list --json | grep -q '"prometheus"' || raftmq user create prometheus --generate >/dev/null
    raftmq acl set prometheus 'Cluster:*' Get >/dev/null
    raftmq user token prometheus --label scrape --days 3650 --json \
        | python -c 'import json, sys; print(json.load(sys.stdin)["token"], end="")' >/secrets/scrape-token.new
    mv /secrets/scrape-token.new /secrets/scrape-token
fi
# Prometheus runs as another user; the volume is mounted there and in Grafana's container only.
if [ ! -s /handed/metrics/scrape-token ]; then
    cp /secrets/scrape-token /handed/metrics/scrape-token.new
    chmod 444 /handed/metrics/scrape-token.new
    mv /handed/metrics/scrape-token.new /handed/metrics/scrape-token
fi

# The first Super comes out of /secrets/first-user as soon as a node leads. Once only: who changes the mode later has a
# reason.
if [ ! -e /secrets/judged ]; then
    until raftmq auth mode enforce --yes; do sleep 1; done
    : >/secrets/judged
fi
echo "every request is judged; this container is idle from now on"
trap 'exit 0' TERM INT
sleep infinity &
wait
