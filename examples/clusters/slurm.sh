#!/bin/bash
# rolltape in front of one engine on each node of a job: docs/clusters.md.
#
#   sbatch slurm.sh python train.py
#
# The command runs on the first node beside rolltape, with ROLLTAPE_PROXY and ROLLTAPE_CONTROL_URL
# as its addresses and the token's file in ROLLTAPE_CONTROL_TOKEN_FILE.
#SBATCH --job-name=rolltape
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --gpus-per-node=1
#SBATCH --time=08:00:00
#SBATCH --signal=B:TERM@600
#SBATCH --output=rolltape-%j.log
set -euo pipefail

ENGINE_PORT=${ENGINE_PORT:-8000}
ENGINE=${ENGINE:-vllm serve Qwen/Qwen3-0.6B --host 0.0.0.0 --port $ENGINE_PORT}
PORT=${PORT:-8080}
CONTROL_PORT=${CONTROL_PORT:-8081}
DRAIN_WAIT_S=${DRAIN_WAIT_S:-300}
# A disk of the node: see the note on network file systems.
export ROLLTAPE_STORE=${ROLLTAPE_STORE:-${TMPDIR:-/tmp}/rolltape-$SLURM_JOB_ID.db}
KEEP=${KEEP:-$SLURM_SUBMIT_DIR}

nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
upstreams=upstreams-$SLURM_JOB_ID.txt
: > "$upstreams"
for node in $nodes; do
  echo "http://$node:$ENGINE_PORT name=$node" >> "$upstreams"
done

# One engine a node. One that ends is started again; rolltape gives it no calls until then, nor
# while its weights are old.
srun --ntasks-per-node=1 --overlap bash -c \
  "while true; do $ENGINE; echo \"engine on \$(hostname) ended\" >&2; sleep 5; done" &
engines=$!

rolltape serve --upstreams-file "$upstreams" --listen "0.0.0.0:$PORT" \
  --control "127.0.0.1:$CONTROL_PORT" --drain-wait-s "$DRAIN_WAIT_S" &
recorder=$!

# Slurm sends TERM to this shell 10 minutes before the time is over (B: the shell alone). The
# trainer stops first, then rolltape lets calls in flight end, then the engines go.
worker=
stop() {
  trap '' TERM
  [ -n "$worker" ] && kill -TERM "$worker" 2>/dev/null && wait "$worker" || true
  kill -TERM "$recorder" 2>/dev/null && wait "$recorder" || true
  kill -TERM "$engines" 2>/dev/null || true
  # The store leaves the node whole, without a WAL.
  cp "$ROLLTAPE_STORE" "$KEEP/rolltape-$SLURM_JOB_ID.db"
}
trap 'stop; exit 143' TERM

export ROLLTAPE_PROXY=http://$(hostname):$PORT ROLLTAPE_CONTROL_URL=http://127.0.0.1:$CONTROL_PORT
export ROLLTAPE_CONTROL_TOKEN_FILE=$ROLLTAPE_STORE-token
ready() {
  printf 'header = "authorization: Bearer %s"' "$(cat "$ROLLTAPE_CONTROL_TOKEN_FILE")" |
    curl -sf -K - "$ROLLTAPE_CONTROL_URL/ready" > /dev/null
}
until ready 2>/dev/null; do
  kill -0 "$recorder"
  sleep 2
done

"$@" &
worker=$!
status=0
wait "$worker" || status=$?
worker=
stop
exit "$status"
