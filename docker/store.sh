#!/bin/sh
# The S3 server of docker-compose.yml: versitygw on the folder /store; the bucket is a folder in it.
set -eu
value() { sed -n "s/^$1 = //p" /handed/store/credentials; }
ROOT_ACCESS_KEY=$(value aws_access_key_id)
ROOT_SECRET_KEY=$(value aws_secret_access_key)
export ROOT_ACCESS_KEY ROOT_SECRET_KEY
mkdir -p /store/raftmq
exec versitygw --port 0.0.0.0:7070 posix /store
