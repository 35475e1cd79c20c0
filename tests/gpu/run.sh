#!/bin/bash
# The run on real GPUs: tests/gpu/run.sh STAGE [STAGE...]      stages: prove, measure, steps, sweep, profile, negatives
#
# On a machine with 1, 2, 4 or 8 GPUs and Python 3.12 with torch, without network, after tests/gpu/pack.py has filled .gpu/ .
# Tensor parallel is the number of GPUs. Records go to $OUT (default: results/gpu) as records.tar.gz, with run.log and, to be
# packed the next time, SGLang's built kernels. Each stage ends inside its limit; RUN_LIMIT_S ends the whole run.
# /etc/nccl.conf and ~/.nccl.conf are never written, NVLink multicast stays off, and the GPUs' settings are as they are.
set -u -o pipefail
here=$(cd "$(dirname "$0")" && pwd)
project=$(cd "$here/../.." && pwd)
work=${GPU_WORK:-/var/tmp/plumbline-gpu}
out=${OUT:-$project/results/gpu}
results=$work/results
limit=${RUN_LIMIT_S:-540}
began=$(date +%s)
machine_python=${GPU_PYTHON:-$(command -v python3)}
# What keeps NVLink multicast off: for everything that is started from here.
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1
export LC_ALL=C.UTF-8 PYTHONUNBUFFERED=1 ANSIBLE_HOME=$work/ansible ANSIBLE_CONFIG=$project/ansible.cfg ANSIBLE_NOCOLOR=1
mkdir -p "$work" "$out" "$results"

since() { echo $(($(date +%s) - began)); }
say() { echo "[+$(since)s] $*"; }
left() { echo $((limit - $(since))); }

gpus() { nvidia-smi --query-gpu=index --format=csv,noheader 2>/dev/null | wc -l; }

prepare() {
  if [ ! -f "$work/carried.json" ]; then
    mkdir -p "$work/jit"
    xz -T0 -dc "$project/.gpu/carried.tar.xz" | tar x -C "$work" || return 1
    say "unpacked"
  fi
  count=$(gpus)
  case $count in 1 | 2 | 4 | 8) ;; *) say "found $count GPUs; allowed: 1, 2, 4, 8"; return 1 ;; esac
  (cd "$project" && "$machine_python" "$here/assemble.py" "$work") || return 1
  say "build and controller made"
  python=$work/root/builds/current/venv/bin/python
  # One after the other these would be the first server's first minute.
  TVM_FFI_CACHE_DIR=$work/jit SGLANG_IS_FLASHINFER_AVAILABLE=false \
    timeout 120 "$python" "$here/kernels.py" $((8 / count)) &
  [ -f "$work/vars.json" ] && [ -f "$project/.gpu/prompts/long.jsonl" ] || CUDA_VISIBLE_DEVICES="" "$python" "$here/models.py" "$work" "$count" || return 1
  wait
  say "models and kernels made, $count GPUs"
}

# One playbook under what is left of the run. Its output goes into the log; a failed one does not end the run.
play() {
  local most=$1 allowed
  shift
  allowed=$(left)
  [ "$allowed" -gt "$most" ] && allowed=$most
  if [ "$allowed" -lt 45 ]; then say "left out for lack of time: $*"; return 1; fi
  say "$*"
  (cd "$project" && timeout -k 20 "$allowed" "$work/controller-venv/bin/ansible-playbook" -i inventory/gpu-local \
    -e "@$work/vars.json" -e "results_root=$results" "$@")
  local rc=$?
  say "rc $rc: $*"
  # What a playbook that ran out of time has left running is its own to clear.
  [ $rc -eq 124 ] && (cd "$project" && timeout 60 "$work/controller-venv/bin/ansible-playbook" -i inventory/gpu-local \
    -e "@$work/vars.json" -e "results_root=$results" playbooks/stop.yml)
  return $rc
}

experiment() { play "$1" playbooks/matrix.yml -e "experiment=$here/experiments/$2.yml" "${@:3}"; }

stage_prove() {
  for delivery in env_file sitecustomize nccl_conf; do
    play 170 playbooks/nccl.yml -e profile=pcie-ll-ring -e "delivery=$delivery"
  done
}
stage_measure() {
  experiment 520 gpu-measure
}
stage_steps() {
  experiment 400 gpu-steps
}
stage_sweep() {
  play 240 playbooks/nccl.yml -e sweep=true -e profiles=none,pcie-ll-ring,ll-small-simple-large -e modes=as-is,no-p2p -e sweep_name=gpu
}
stage_profile() {
  experiment 300 gpu-profile
  experiment 300 gpu-profile-no-p2p -e gpu_no_p2p=true
}
stage_negatives() {
  timeout 150 "$work/controller-venv/bin/python" "$here/negatives.py" "$work" "$results/negatives"
}

bring_back() {
  say "packing the records"
  for boot in "$work"/root/boots/*/; do
    [ -f "$boot/server.log" ] || continue
    mkdir -p "$results/boots/$(basename "$boot")"
    grep -v "Ignore import error" "$boot/server.log" | tail -c 200000 >"$results/boots/$(basename "$boot")/server.log"
    cp "$boot"/exit.json "$results/boots/$(basename "$boot")/" 2>/dev/null
  done
  if [ -d "$work/negatives" ]; then mkdir -p "$results/negatives" && cp -r "$work"/negatives/* "$results/negatives/" && find "$results/negatives" -name store -delete; fi
  { nvidia-smi; nvidia-smi topo -m; nvidia-smi topo -p2p r; } >"$results/machine.txt" 2>&1
  tar czf "$out/records.tar.gz" -C "$results" .
  tar czf "$out/jit.tar.gz" --exclude='*.o' -C "$work/jit" . 2>/dev/null
  ls -la "$out"
}

run() {
  prepare || return 1
  for stage in "$@"; do
    say "== $stage"
    "stage_$stage"
    say "== $stage: over"
  done
}

for stage in "$@"; do
  case $stage in prove | measure | steps | sweep | profile | negatives) ;; *) echo "unknown stage $stage; allowed: prove, measure, steps, sweep, profile, negatives" >&2; exit 2 ;; esac
done
[ $# -gt 0 ] || { sed -n 2,4p "$0"; exit 2; }
{ run "$@"; rc=$?; bring_back; exit $rc; } 2>&1 | tee "$out/run.log"
