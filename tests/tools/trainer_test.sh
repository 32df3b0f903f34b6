#!/usr/bin/env bash
# The trainer in one process, under mpirun, and with torchrun's variables: one loss, rank 0 speaks, and a rank that
# cannot begin ends all. Usage: trainer_test.sh ROOT BUILD
set -euo pipefail
build=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for i in $(seq 1 900); do echo "the stream $((i % 7)) waits for block $((i * i % 11))."; done > "$work/text"
export WEIR_DEVICES=sim:1:1
options=(--text "$work/text" --batch 48 --width 16 --layers 2 --context 16 --sample 0)
long=("${options[@]}" --steps 12)
fail() { echo "FAILED: $*"; exit 1; }
losses_agree() {  # losses_agree FILE: within 1e-4 of one process
  paste "$work/one" "$1" | awk '{ d = $1 - $2; if (NF != 2 || d > 1e-4 * $1 || -d > 1e-4 * $1) exit 1; n++ } END { exit n != 12 }' ||
    fail "$1: not the losses of one process"
}
"$build/bin/trainer" "${long[@]}" --losses "$work/one" > "$work/out"
# A screen with two losses leaves open which of them counts: the bar and the panel tell the same one.
script -qec "$build/bin/trainer ${long[*]}" /dev/null > "$work/terminal" || fail "on a terminal: $(cat "$work/terminal")"
for screen in out terminal; do
  said=$(grep -oE "[a-z]* loss" "$work/$screen" | sort | uniq -c)
  [[ $said =~ ^\ *1\ validation\ loss$ ]] || fail "the losses of a run ($screen): $said"
done

# Mistakes are usage errors, which name the option.
wrong() {  # wrong WORDS OPTION...: status 2, with these words
  local words=$1 rc=0
  shift
  "$build/bin/trainer" "$@" > /dev/null 2> "$work/err" || rc=$?
  [ $rc = 2 ] && grep -q -e "$words" "$work/err" || fail "$*: status $rc, $(cat "$work/err")"
}
wrong "--text FILE is missing"
wrong "--optimizer is no option" "${options[@]}" --optimizer sgd
wrong "choose one of fp32|bf16" "${options[@]}" --dtype fp64
wrong "must divide --width" "${options[@]}" --heads 3
wrong "--replicas: must be a number from 0 to 1, not 2" "${options[@]}" --replicas 2
wrong "--steps: must be a number from 1 to" "${options[@]}" --steps 0
if "$build/bin/trainer" "${options[@]}" --save "$work/none/model" 2> "$work/err" > /dev/null; then fail "--save without a folder"; fi
grep -q "none/model.part cannot be written" "$work/err" || fail "--save without a folder: $(cat "$work/err")"

# torchrun's variables, set by hand
port=$((20000 + RANDOM % 20000))
ranks=()
for r in 0 1 2; do
  RANK=$r LOCAL_RANK=$r WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
    "$build/bin/trainer" "${long[@]}" --losses "$work/three" > "$work/out.$r" 2>&1 &
  ranks+=($!)
done
for r in 0 1 2; do wait "${ranks[$r]}" || fail "rank $r: $(cat "$work/out.$r")"; done
losses_agree "$work/three"
grep -q "replicas  of 3 processes agree" "$work/out.0" || fail "rank 0 says $(cat "$work/out.0")"
[ ! -s "$work/out.1" ] || fail "rank 1 speaks: $(cat "$work/out.1")"

# a launcher that is incomplete, and options that need one process
if RANK=0 WORLD_SIZE=1 "$build/bin/trainer" "${options[@]}" 2> "$work/err"; then fail "half a launcher is taken"; fi
grep -q "LOCAL_RANK is not set" "$work/err" || fail "half a launcher: $(cat "$work/err")"
wrong "need --save FILE" "${options[@]}" --save-every 2

# --resume begins without a file, and goes on with one
"$build/bin/trainer" "${options[@]}" --steps 6 --save "$work/model" --save-every 2 --resume > "$work/out" ||
  fail "--resume without a file: $(cat "$work/out")"
"$build/bin/trainer" "${long[@]}" --save "$work/model" --resume --losses "$work/rest" > "$work/out"
[ "$(wc -l < "$work/rest")" = 6 ] || fail "--resume took $(wc -l < "$work/rest") steps"

if command -v mpirun > /dev/null; then
  mpi=(mpirun --oversubscribe)
  [ "$(id -u)" != 0 ] || mpi+=(--allow-run-as-root)
  "${mpi[@]}" -np 4 "$build/bin/trainer" "${long[@]}" --losses "$work/four" > "$work/out" 2>&1 || fail "mpirun: $(cat "$work/out")"
  losses_agree "$work/four"
else
  echo "no mpirun here"
fi
echo "the trainer runs in one process and in many"
