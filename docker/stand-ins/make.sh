#!/bin/sh
# Makes images of the public names that docker-compose.yml and the Dockerfiles use, out of package registries: for a
# machine that reaches no registry of images.  Usage: make.sh FOLDER COMMAND...
#
# COMMAND is podman or docker with its options. FOLDER keeps what was downloaded and built. As root; needs mmdebstrap and
# go; DEBIAN_MIRROR names a mirror other than mmdebstrap's own. The bases and Prometheus come from Debian, versitygw from
# the Go module proxy. Grafana cannot be made in this way.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
work=$(cd "$1" && pwd)
shift
registry=docker.io
python_packages=python3,ca-certificates
compiler_packages=python3,python3-venv,python3-dev,python3-pip,gcc,g++,libc6-dev,make,ca-certificates

missing() { ! "$@" image inspect "$image" >/dev/null 2>&1; }

debian() { # NAME PACKAGES: a root file system in $work/NAME.tar
    [ -s "$work/$1.tar" ] && return
    mmdebstrap --quiet --variant=minbase --include="$2" bookworm "$work/$1.new.tar" ${DEBIAN_MIRROR:+"$DEBIAN_MIRROR"}
    mv "$work/$1.new.tar" "$work/$1.tar"
}

debian slim "$python_packages"
debian full "$compiler_packages"

image=$registry/library/debian:bookworm-slim
if missing "$@"; then "$@" import "$work/slim.tar" "$image" >/dev/null; fi

# Python where the image of that name has it. A registry of packages may have a certificate of its own.
mkdir -p "$work/context"
cp /etc/ssl/certs/ca-certificates.crt "$work/context/"
for kind in slim full; do
    image=$registry/library/python:3.11
    [ $kind = full ] || image=$image-slim
    if missing "$@"; then
        "$@" import "$work/$kind.tar" "localhost/debian-$kind" >/dev/null
        printf 'FROM localhost/debian-%s\nRUN ln -s /usr/bin/python3.11 /usr/local/bin/python && ln -s python /usr/local/bin/python3\nCOPY ca-certificates.crt /etc/ssl/certs/\nENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt\n' \
            $kind >"$work/context/$kind.Dockerfile"
        "$@" build --quiet --network none --file "$work/context/$kind.Dockerfile" --tag "$image" "$work/context" >/dev/null
    fi
done

named() { sed -n "s|^ *image: \($1:.*\)|\1|p" "$here/../../docker-compose.yml"; }

image=$registry/$(named prom/prometheus)
if missing "$@"; then
    "$@" build --quiet --network host --file "$here/prometheus.Dockerfile" --tag "$image" "$here" >/dev/null
fi

image=$registry/$(named versity/versitygw)
if missing "$@"; then
    [ -x "$work/context/versitygw" ] \
        || CGO_ENABLED=0 GOFLAGS=-buildvcs=false GOBIN=$work/context \
            go install "github.com/versity/versitygw/cmd/versitygw@${image##*:}"
    "$@" build --quiet --network none --file "$here/store.Dockerfile" --tag "$image" "$work/context" >/dev/null
fi
