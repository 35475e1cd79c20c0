#!/bin/bash
# The run on real GPUs: tests/gpu/run.sh STAGE [STAGE...]      stages: prove, sweep, negatives, measure, steps, cycle, profile, profile_no_p2p
#
# On a machine with 1, 2, 4 or 8 GPUs and Python 3.12 with torch, without network, after tests/gpu/pack.py has filled .gpu/ .
# Tensor parallel is the number of GPUs that nvidia-smi shows. Records go to $OUT (default: results/gpu) as records.tar.gz, brought up to
# date every ten seconds, with run.log and SGLang's built kernels (jit.tar.gz: put into .gpu/, it saves the next run half a minute).
# A start that is made again goes on.
# Each stage ends inside its limit, the whole run inside RUN_LIMIT_S. STAGE_LIMIT_S, if set, is every stage's limit; GPU_EXTRA are
# further words for every playbook, like "-e gpu_check=false" (no data check before an experiment's first boot).
# /etc/nccl.conf and ~/.nccl.conf are never written, NVLink multicast stays off, and the GPUs' settings are as they are.
set -u -o pipefail
here=$(cd "$(dirname "$0")" && pwd)
project=$(cd "$here/../.." && pwd)
work=${GPU_WORK:-/var/tmp/plumbline-gpu}
carried=${GPU_CARRIED:-$project/.gpu}
out=${OUT:-$project/results/gpu}
results=$work/results
limit=${RUN_LIMIT_S:-510}
began=$(date +%s)
machine_python=${GPU_PYTHON:-$(command -v python3)}
# The most that each stage takes, in seconds. In six calls (the first three together), the first of them with 40 s for the build, which a
# machine that is held keeps for the others, all of them take less than 28 minutes.
declare -A most=([prove]=160 [sweep]=78 [negatives]=60 [measure]=300 [steps]=260 [cycle]=240 [profile]=240 [profile_no_p2p]=240)
stage_until=0
# What keeps NVLink multicast off: for everything that is started from here.
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1
export LC_ALL=C.UTF-8 PYTHONUNBUFFERED=1 ANSIBLE_HOME=$work/ansible ANSIBLE_CONFIG=$project/ansible.cfg ANSIBLE_NOCOLOR=1

now() { echo $(($(date +%s) - began)); }
say() { echo "[+$(now)s] $*"; }
gpus() { nvidia-smi --query-gpu=index --format=csv,noheader 2>/dev/null | grep -c '^[0-9]'; }
built() { compgen -G "$work/root/builds/*/plumbline-build.json" >/dev/null && [ -x "$work/controller-venv/bin/ansible-playbook" ]; }

# Seconds that the run and its stage have left.
left() {
  local run=$((limit - $(now))) stage=$((stage_until - $(now)))
  echo $((run < stage ? run : stage))
}

# What a start that was cut off has left half-made is made again, from the archive on.
unpack() {
  rm -rf "$work/root/builds" "$work/site" "$work/controller" "$work/controller-venv" "$work/locks" "$work/carried.json" "$work/new"
  mkdir -p "$work/new" "$work/jit"
  xz -T0 -dc "$carried/carried.tar.xz" | tar x -C "$work/new" || return 1
  if [ -d "$work/new/jit" ]; then cp -r "$work/new/jit/." "$work/jit/" && rm -rf "$work/new/jit"; fi
  if [ -f "$carried/jit.tar.gz" ]; then tar xzf "$carried/jit.tar.gz" -C "$work/jit"; fi
  mkdir "$work/new/tokenizing" && cp -r "$work/new/site/"tokenizers* "$work/new/tokenizing/"
  rm -rf "$work/tokenizing"
  mv "$work/new/"* "$work/" && rmdir "$work/new"
}

prepare() {
  count=$(gpus)
  case $count in 1 | 2 | 4 | 8) ;; *) say "found $count GPUs; allowed: 1, 2, 4, 8"; return 1 ;; esac
  say "$count GPUs"
  if ! built; then
    unpack || return 1
    say "unpacked"
  fi
  local models=""
  if [ ! -f "$work/vars.json" ] || [ ! -f "$project/.gpu/prompts/long.jsonl" ]; then
    CUDA_VISIBLE_DEVICES="" PYTHONPATH=$work/tokenizing "$machine_python" "$here/models.py" "$work" "$count" &
    models=$!
  fi
  (cd "$project" && "$machine_python" "$here/assemble.py" "$work") || return 1
  say "build and controller made"
  # Carried kernels are found by the digest of their sources; others would be the first server's first minute, one after the other.
  if ! compgen -G "$work/jit/*kvcache_$((256 * 8 / count))_*/*.so" >/dev/null; then
    TVM_FFI_CACHE_DIR=$work/jit SGLANG_IS_FLASHINFER_AVAILABLE=false \
      timeout 120 "$work/root/builds/current/venv/bin/python" "$here/kernels.py" $((8 / count))
    say "kernels made"
  fi
  if [ -n "$models" ]; then wait "$models" || return 1; fi
  say "ready"
}

playbook() {
  (cd "$project" && timeout -k 20 "$1" "$work/controller-venv/bin/ansible-playbook" -i inventory/gpu-local \
    -e "@$work/vars.json" -e "results_root=$results" ${GPU_EXTRA:-} "${@:2}")
}

# One playbook under what is left. A failed one does not end the run.
play() {
  local allowed
  allowed=$(left)
  if [ "$allowed" -lt "${LEAST_S:-25}" ]; then say "left out for lack of time: $*"; return 1; fi
  say "$* (at most $allowed s)"
  playbook "$allowed" "$@"
  local rc=$?
  say "rc $rc: $*"
  # What a playbook that ran out of time has left running is its own to clear.
  [ $rc -eq 124 ] && playbook 60 playbooks/stop.yml
  return $rc
}

prove() { play playbooks/nccl.yml -e profile=pcie-ll-ring "$@"; }
experiment() { play playbooks/matrix.yml -e "experiment=$here/experiments/$1.yml" "${@:2}"; }

stage_prove() {
  for delivery in env_file sitecustomize nccl_conf; do prove -e "delivery=$delivery"; done
}
stage_measure() { experiment gpu-measure; }
stage_steps() { experiment gpu-steps; }
stage_cycle() { experiment gpu-cycle; }
stage_sweep() {
  play playbooks/nccl.yml -e sweep=true -e profiles=none,pcie-ll-ring,ll-small-simple-large -e modes=as-is,no-p2p -e sweep_name=gpu
}
# The proof is of the state that the boots after it have: they name it.
stage_profile() {
  prove -e delivery=env_file
  experiment gpu-profile
}
stage_profile_no_p2p() {
  prove -e delivery=env_file -e gpu_no_p2p=true
  experiment gpu-profile-no-p2p -e gpu_no_p2p=true
}
stage_negatives() {
  if [ "$count" -lt 2 ]; then say "left out: negatives need two GPUs"; return; fi
  timeout "$(left)" "$work/controller-venv/bin/python" "$here/negatives.py" "$work" "$results/negatives"
}

# Everything so far, whole or not at all: whoever ends this run in the middle has the records of up to now.
bring_back() {
  for boot in "$work"/root/boots/*/; do
    [ -f "$boot/server.log" ] || continue
    mkdir -p "$results/boots/$(basename "$boot")"
    grep -v "Ignore import error" "$boot/server.log" | tail -c 200000 >"$results/boots/$(basename "$boot")/server.log"
    cp "$boot"/exit.json "$results/boots/$(basename "$boot")/" 2>/dev/null
    find "$boot/profile" -name '*TP-0*' -size -6000k -exec cp {} "$results/boots/$(basename "$boot")/" \; 2>/dev/null
  done
  # Measurements that no task has recorded yet.
  if compgen -G "$work/root/spool/*.json" >/dev/null; then mkdir -p "$results/spool" && cp "$work"/root/spool/*.json "$results/spool/" 2>/dev/null; fi
  if [ -d "$work/negatives" ]; then
    mkdir -p "$results/negatives" && cp -r "$work"/negatives/* "$results/negatives/" && find "$results/negatives" -name store -delete
  fi
  local new=$out/.records.$RANDOM
  tar czf "$new" --ignore-failed-read -C "$results" . 2>/dev/null
  # 1: a file changed while it was read.
  if [ $? -le 1 ]; then mv "$new" "$out/records.tar.gz"; fi
}

run() {
  prepare || return 1
  { nvidia-smi; nvidia-smi topo -m; nvidia-smi topo -p2p r; } >"$results/machine.txt" 2>&1
  for stage in "$@"; do
    say "== $stage"
    stage_until=$(($(now) + ${STAGE_LIMIT_S:-${most[$stage]}}))
    "stage_$stage"
    say "== $stage: over"
  done
}

[ $# -gt 0 ] || { sed -n 2,11p "$0"; exit 2; }
for stage in "$@"; do
  [ -n "${most[$stage]:-}" ] || { echo "unknown stage $stage; allowed: ${!most[*]}" >&2; exit 2; }
done
mkdir -p "$work" "$out" "$results"
(while sleep "${KEEP_S:-10}"; do bring_back; done) >/dev/null 2>&1 &
keeper=$!
{ run "$@"; rc=$?; say "packing the records"; exit $rc; } 2>&1 | tee "$out/run.log"
rc=${PIPESTATUS[0]}
kill $keeper
wait $keeper 2>/dev/null
rm -f "$out"/.records.*
bring_back
tar czf "$out/jit.tar.gz" --exclude='*.o' -C "$work/jit" . 2>/dev/null
exit "$rc"
