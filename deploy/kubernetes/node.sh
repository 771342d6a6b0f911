#!/bin/sh
# The commands of one pod: node.sh make | serve | drain. The pod's ordinal says which node it is: NODE_IDS has their ids
# in order, FIRST_VOTERS those that the cluster began with.
#
# `make` runs before every start and does nothing where the node is there. The first voter makes the cluster only until
# the time in the secret's `new-until`; each other voter of the beginning is made once. On an emptied volume both are
# refused, and the pod does not start. A node with another id is added as a learner, and becomes a voter when it has
# caught up. docs/kubernetes.md says how a node is replaced.
set -eu
name=${POD_NAME:-$(hostname)}
config=${CONFIG:-/etc/raftmq/raftmq.toml}
secrets=${SECRETS:-/secret}
run=${RUN:-/run/raftmq}
data=${DATA:-/data}
admin_of() { echo "${SET_NAME:-raftmq}-$1.${SERVICE:-raftmq}:9644"; }

count=0
for id in $NODE_IDS; do
    [ "$count" != "${name##*-}" ] || RAFTMQ_NODE__ID=$id
    count=$((count + 1))
done
: "${RAFTMQ_NODE__ID:?NODE_IDS has no id for the ordinal of $name}"
export RAFTMQ_NODE__ID

others() {
    i=0
    while [ "$i" -lt "$count" ]; do
        [ "$i" = "${name##*-}" ] || admin_of "$i"
        i=$((i + 1))
    done
}

copy_secrets() { # The node refuses secrets that others can read; those of a mounted Secret are readable by its group.
    for file in "$secrets"/*; do
        install -m 600 "$file" "$run/${file##*/}"
    done
}

make() {
    case " $FIRST_VOTERS " in
        "  ") echo "FIRST_VOTERS is empty" >&2; exit 2 ;;
        " $RAFTMQ_NODE__ID "*) first ;;
        *" $RAFTMQ_NODE__ID "*) raftmq init --join "$(admin_of 0)" --wait 600 --config "$config" ;;
        *) add ;;
    esac
}

first() { # Without the file: a time that has passed, so that an empty volume is refused.
    until=$(cat "$secrets/new-until" 2>/dev/null || echo 2000-01-01T00:00:00Z)
    raftmq init --first --until "$until" --config "$config" || {
        code=$?
        echo "here: a new cluster needs a new-until in the secret, a lost volume a node with a new id (docs/kubernetes.md)" >&2
        exit "$code"
    }
}

add() {
    [ ! -e "$data/added" ] || return 0
    for each in $(others); do
        if raftmq node add --config "$config" --via "http://$each"; then
            : >"$data/added"
            return 0
        fi
    done
    exit 1
}

case $1 in
    make) [ ! -d "$secrets" ] || copy_secrets; make ;;
    serve) exec raftmq serve --config "$config" ;;
    drain) exec raftmq node drain "$RAFTMQ_NODE__ID" --grace "${DRAIN_S:-35}" ;;
    *) echo "usage: node.sh make | serve | drain" >&2; exit 2 ;;
esac
