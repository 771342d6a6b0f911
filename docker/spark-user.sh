#!/bin/sh
# Gives Spark a user that may read every topic; its secret goes into a volume and not into a log.
set -eu
umask 077
export RAFTMQ_ADMIN=n1:9644,n2:9644,n3:9644 RAFTMQ_SECRET_FILE=/secrets/peers

until raftmq user list >/dev/null 2>&1; do sleep 1; done

if [ ! -s /handed/spark/secret ]; then
    python -c 'import secrets; print(secrets.token_hex(20), end="")' >/handed/spark/secret.new
    if raftmq user list --json | grep -q '"spark"'; then
        raftmq user password spark --secret-file /handed/spark/secret.new >/dev/null
    else
        raftmq user create spark --secret-file /handed/spark/secret.new >/dev/null
    fi
    mv /handed/spark/secret.new /handed/spark/secret
fi
raftmq acl set spark 'Topic:*' Sub Get List >/dev/null
raftmq acl set spark Group:TOOLS_CONSUMER Sub >/dev/null # in its name all reads without a group are made
raftmq acl set spark 'Cluster:*' Get List >/dev/null
