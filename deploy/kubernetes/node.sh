#!/bin/sh
# The commands of one pod: node.sh make | serve | drain. The pod's ordinal says which node it is: NODE_IDS has their ids
# in order, FIRST_VOTERS those that the cluster began with.
#
# `make` runs before every start and does nothing where the node is there. A voter of the beginning is made once: on an
# emptied volume it is refused, by the node that made the cluster, and the pod does not start. The first node itself is
# refused only while another member runs. A node with another id is added as a learner, and becomes a voter when it has
# caught up. docs/kubernetes.md says how a node is replaced.
set -eu
name=${POD_NAME:-$(hostname)}
config=${CONFIG:-/etc/raftmq/raftmq.toml}
admin_of() { echo "${SET_NAME:-raftmq}-$1.${SERVICE:-raftmq}:9644"; }

at=0
for id in $NODE_IDS; do
    [ "$at" != "${name##*-}" ] || RAFTMQ_NODE__ID=$id
    at=$((at + 1))
done
: "${RAFTMQ_NODE__ID:?NODE_IDS has no id for the ordinal of $name}"
export RAFTMQ_NODE__ID

others() {
    i=0
    while [ "$i" -lt "$at" ]; do
        [ "$i" = "${name##*-}" ] || admin_of "$i"
        i=$((i + 1))
    done
}

secrets() { # The node refuses secrets that others can read; those of a mounted Secret are readable by its group.
    for file in /secret/*; do
        install -m 600 "$file" "/run/raftmq/${file##*/}"
    done
}

make() {
    case " $FIRST_VOTERS " in
        "  ") echo "FIRST_VOTERS is empty" >&2; exit 2 ;;
        " $RAFTMQ_NODE__ID "*) raftmq init --first --config "$config" ;;
        *" $RAFTMQ_NODE__ID "*) raftmq init --join "$(admin_of 0)" --wait 600 --config "$config" ;;
        *) add ;;
    esac
}

add() {
    [ ! -e "$DATA/added" ] || return 0
    for each in $(others); do
        if raftmq node add --config "$config" --via "http://$each"; then
            : >"$DATA/added"
            return 0
        fi
    done
    exit 1
}

DATA=${DATA:-/data}
case $1 in
    make) [ ! -d /secret ] || secrets; make ;;
    serve) exec raftmq serve --config "$config" ;;
    drain) exec raftmq node drain "$RAFTMQ_NODE__ID" --grace "${DRAIN_S:-35}" ;;
esac
