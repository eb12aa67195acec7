#!/usr/bin/env bash
# The whole path through a bucket: parquet in s3://tables -> shards in s3://shards -> training on two nodes of two ranks
# each, which stream the shards and keep them on a disk of their own. Run by `make demo-s3` beside an S3 server:
#
#     python examples/with_s3.py DIR/buckets examples/demo_s3.sh DIR EPOCHS
#
# Needs wdsplit[demo,s3] on the PATH. DIR/buckets is the folder of the server's buckets.
set -euo pipefail

dir=$1
epochs=$2
cd "$(dirname "${BASH_SOURCE[0]}")/.."
mkdir -p "$dir/buckets/shards"
python examples/make_digits.py "$dir/buckets/tables"

wdsplit convert 's3://tables/train-*.parquet' s3://shards/train --world-size 4 --workers 2
wdsplit convert 's3://tables/test-*.parquet' s3://shards/test --world-size 4 --workers 2
wdsplit verify s3://shards/train --jobs 2
wdsplit inspect s3://shards/train

# On a cluster, these two commands run on two machines; --master-addr names the first.
export OMP_NUM_THREADS=1
port=$(python -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
for node in 0 1; do
	torchrun --nnodes 2 --node-rank $node --nproc-per-node 2 --master-addr 127.0.0.1 --master-port "$port" \
		examples/train_images.py s3://shards/train s3://shards/test --epochs "$epochs" --cache-dir "$dir/node-$node" &
	nodes[node]=$!
done
for node in 0 1; do
	wait "${nodes[node]}"
done

du -sh "$dir/node-0"
