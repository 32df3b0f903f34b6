#!/usr/bin/env bash
# The tool `weir`: info's output for a simulated machine, replays of small traces, and invalid arguments.
# Usage: weir_test.sh ROOT BUILD
set -euo pipefail
weir=$2/bin/weir
failed=0
out=""
run() { status=0; out=$("$weir" "$@" 2>&1) || status=$?; }
expect() {  # expect STATUS TEXT: checks the last run
  if [ "$status" != "$1" ] || [[ $out != *"$2"* ]]; then
    printf 'FAILED: status %s, expected %s and "%s":\n%s\n' "$status" "$1" "$2" "$out"
    failed=1
  fi
}
run info --devices sim:3:2
expect 0 'gpu:2'
expect 0 'of 2 GiB'
expect 0 'gpu:0 '
[ "$(grep -c '^gpu:.* free of' <<< "$out")" = 3 ] || { echo "FAILED: three devices: $out"; failed=1; }
# With the race checker a program without a report says what was checked; one that has taken its reports does not.
out=$(WEIR_CHECK_RACES=1 WEIR_DEVICES=sim:1 "$2/bin/hello" 2>&1)
expect 0 'weir-434: the race checker found no error in 12 uses of memory'
out=$(WEIR_CHECK_RACES=1 "$weir" info --devices sim:1 2>&1)
expect 0 'weir-434: the race checker found no error, and saw no use of memory'
out=$(WEIR_CHECK_RACES=1 "$2/bin/seeds" streams 2>&1)
[[ $out == *'race: '* && $out != *weir-434* ]] || { echo "FAILED: a program that took its reports: $out"; failed=1; }
out=$(WEIR_DEVICES=sim:1 "$2/bin/hello" 2>&1)
[[ $out != *weir-434* ]] || { echo "FAILED: the checker is off: $out"; failed=1; }
expect 0 'memory of gpu:0, weir simulated device: 8 MiB in use'
# seeds says in English what it shows, before any figure, and names the articles last.
out=$("$2/bin/seeds" views)
head=${out%%articles*}
[[ $out == on*$'\nwhat they show\n  views '* && $(LC_ALL=C tr -d '\000-\177' <<< "$head") == '' && $out == *$'\narticles\n  views '* ]] || { echo "FAILED: seeds opens with: $head"; failed=1; }
run info --devices sim:1
[[ $out != *links* ]] || { echo "FAILED: one device has no links: $out"; failed=1; }
run info --devices sim:2
expect 0 'gpu:1   NV1     X'
expect 0 'verified by writing and reading back: 2 links'
run doctor --devices sim:2
expect 0 '[warn] machine                2 simulated devices'
expect 0 ', 0 failed'
[[ $out =~ ' ok, '(1' warning'|[02-9][0-9]*' warnings')', 0 failed' ]] || { echo "FAILED: doctor counts warnings otherwise: $out"; failed=1; }
[[ $out != *device_limit* && $out != *$'\033'* ]] || { echo "FAILED: options of their default, or colour in a file: $out"; failed=1; }
expect 0 '[ok]   links                  2 verified by writing and reading back'
run doctor --all --devices sim:2
expect 0 'device_limit           none, from default'
out=$(WEIR_CONF=device_limit:2GiB,launch_blocking:true "$weir" doctor --devices sim:2)
expect 0 'device_limit           2 GiB, from WEIR_CONF'
expect 0 '[warn] launch_blocking '
if python3 -c pass 2> /dev/null; then
  for words in 'doctor --all' info; do
    run $words --json --devices sim:2
    python3 -c '
import json, sys
said = json.load(sys.stdin)
assert said["schema"] == "weir." + sys.argv[1] + "/1" and len(said["checks" if sys.argv[1] == "doctor" else "devices"]) >= 2, said' "${words%% *}" <<< "$out" || { echo "FAILED: $words: $out"; failed=1; }
  done
fi
run --version
expect 0 'weir 0.1.0'
WEIR_CONF=colour:red run doctor
expect 2 'weir-170: WEIR_CONF: there is no option "colour"'
[[ $out != *.cpp* ]] || { echo "FAILED: a line of weir's own: $out"; failed=1; }
for words in info doctor replay snapshot 'bench alloc' 'bench copy' 'bench pipeline' 'bench share' 'bench train'; do
  run $words --help
  expect 0 "usage: weir $words"
  expect 0 'exit status: 0'
  [[ $out != *' arg'* && $out != *'(='* ]] || { echo "FAILED: Boost's words: $out"; failed=1; }
  run $words --bogus
  expect 2 "weir $words: no option is called --bogus"
done
run check --help
expect 0 'usage: weir check [OPTIONS] PROGRAM [ARGS...]'
run check
expect 2 'weir check: missing program'
run check --bogus true
expect 2 'weir check: no option --bogus'
run check --suppress
expect 2 'weir check: --suppress needs a file'
if [ -e "$2/libweir_check.so" ]; then
  run check /no/such/program
  expect 1 'weir check: /no/such/program cannot be started'
  run check sh -c 'echo "$WEIR_CHECK_RACES $CUDA_INJECTION64_PATH"; exit 3'
  expect 3 "fail $(realpath "$2/libweir_check.so")"
fi
run doctor --options
[ "$out" = "$(cat "$1/docs/reference/options.md")" ] || { echo "FAILED: docs/reference/options.md is not what weir doctor --options prints"; failed=1; }
run info --devices sim:0
expect 2 'weir-178: --devices: "sim:0"'
[[ $out != *.cpp* && $out != *WEIR_DEVICES* ]] || { echo "FAILED: a line of weir's own, or another name: $out"; failed=1; }
run info extra
expect 2 "weir info: unexpected argument 'extra'"
run inof
expect 2 "did you mean 'info'"
run info --devices smi:2
expect 2 'sim'
run info --divices sim
expect 2 'did you mean --devices?'
run
expect 0 'usage: weir'

# Replay. Two blocks of 40 MiB and a small one. The second is in use until its c and cannot be reused before.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mib40=$((40 << 20))
printf 'a 0 %s 0\na 1 %s 1\na 7 100 0\nf 0\nf 1\na 3 %s 0\na 4 %s 0\nc 1\nf 3\n' $mib40 $mib40 $mib40 $mib40 > "$work/small"
run replay --json --devices sim "$work/small"
expect 0 '"ops": 9, "peak_requested": 125829220, '
peak=$(sed -n 's/.*"peak_allocated": \([0-9]*\),.*/\1/p' <<< "$out")
# Two streams: the peak may only be too high, and only slightly.
[ "${peak:-0}" -ge 83886192 ] && [ "${peak:-0}" -le $((83886192 + (16 << 20))) ] || { echo "FAILED: peak_allocated is $peak"; failed=1; }
expect 0 '"devices": "1 simulated device of 141 GiB; driver time modelled"'
expect 0 '"ooms": 0, "recovery_attempts": 0, "opened_early": 0, "recovered_by": {}, "began_with": 0}'
wanted="trace devices epsilon ops peak_requested peak_allocated peak_reserved ratio torch_reserved first_ns_per_op warm_ns_per_op first_driver_ns_per_op warm_driver_ns_per_op handles_created handles_moved warm_handles_moved ooms recovery_attempts opened_early recovered_by began_with"
keys=$(grep -o '"[a-z_]*":' <<< "$out" | tr -d '":' | xargs)
[ "$keys" = "$wanted" ] || { echo "FAILED: the keys are $keys"; failed=1; }
gzip -c "$work/small" > "$work/small.gz"
run replay --devices sim "$work/small.gz" "$work/small"
expect 0 'small.gz: 9 operations of 2 streams on 1 simulated device'
expect 0 "requested       120.0 MiB"
expect 0 'in the second replay 0'
run replay --devices sim --rounds 4 "$work/small"
expect 0 'in the median of 3 later replays 0'
run replay --devices sim --rounds 1 "$work/small"
expect 2 'Use at least 2'
run replay --devices sim:1:1 --limit 128MiB "$work/small"
expect 0 "FITS a limit of 128 MiB: $work/small"
run replay --devices sim:1:1 --limit 64MiB "$work/small"
expect 3 "DOES NOT FIT a limit of 64 MiB: $work/small"
expect 3 'needs 80.0 MiB at once: no allocator fits it into that limit.'
[[ $out != *"The memory limit is reached"* ]] || { echo "FAILED: the steps of a search that nothing could help: $out"; failed=1; }
run replay --devices sim:1:1 --limit 7,4GiB "$work/small"
expect 2 'a number and KiB, MiB, GiB or TiB: 7.4GiB'
run replay --devices sim:1:1 --limit 0.0625GiB "$work/small"
expect 3 "DOES NOT FIT a limit of 64 MiB: $work/small"
run replay --json --devices sim --limit 64MiB "$work/small"
expect 1 '"ooms": '
expect 1 'The memory limit is reached'
printf 'a 0 2097153 0\n' > "$work/page"
run replay --devices sim --limit 3MiB "$work/page"
expect 3 'The smallest limit that fits: weir replay --fit'
expect 3 'larger than the memory limit'  # two pages do not fit, though the bytes would
# A block in use on another stream until its c: short of memory, the replay waits for it, as a program would.
printf 'a 0 8388608 0\nf 0\na 1 8388608 1\nc 0\nf 1\n' > "$work/later"
run replay --json --devices sim --limit 12MiB "$work/later"
expect 0 '"ooms": 0, "recovery_attempts": 2, "opened_early": 2, "recovered_by": {"out-of-memory callbacks": 2}, "began_with": 0}'
printf 'a 0 8388608 65535\na 1 8388608 7\nf 0\nf 1\na 2 8388608 65535\nf 2\n' > "$work/numbers"
run replay --devices sim "$work/numbers"
expect 0 'numbers: 6 operations of 2 streams on 1 simulated device'
# Two blocks of 40 MiB and one small: 20 pages each, and one. The search finds that, and says so in both ways.
run replay --fit --devices sim "$work/small" "$work/page"
expect 0 'FITS IN'
expect 0 '4 GB and up'
[ "$(grep -c '^FITS IN' <<< "$out")" = 2 ] || { echo "FAILED: a line for each trace: $out"; failed=1; }
[[ $out != *$'\r'* ]] || { echo "FAILED: progress is told where no terminal is: $(cat -v <<< "$out")"; failed=1; }
run replay --fit --json --devices sim "$work/page"
expect 0 '"fits": true, "ops": 1, "peak_requested": 2097153, "torch_reserved": null, "gpu_gb": 4, "epsilon": 0.0195, "limit": 4194304, '
wanted="trace devices fits ops peak_requested torch_reserved gpu_gb epsilon limit ratio warm_ns_per_op warm_driver_ns_per_op opened_early careful_limit careful_ratio careful_warm_ns_per_op careful_warm_driver_ns_per_op careful_opened_early unlimited_peak_reserved unlimited_warm_ns_per_op unlimited_warm_driver_ns_per_op recorded_refusal needs_more_than began_with"
keys=$(grep -o '"[a-z_]*":' <<< "$out" | tr -d '":' | xargs)
[ "$keys" = "$wanted" ] || { echo "FAILED: the keys are $keys"; failed=1; }
run replay --json --devices sim --limit 4194304 "$work/page"
expect 0 '"ooms": 0'
run replay --json --devices sim --limit 4194303 "$work/page"
expect 1 '"ooms": '
# The program waits for its second stream where the limit asks for that.
run replay --fit --json --devices sim "$work/later"
expect 0 '"limit": 8388608, "ratio": 0.5000, '
printf 'a 0 2147483648 0\n' > "$work/large"
run replay --fit --devices sim:1:1 "$work/large" "$work/small"
expect 3 'DOES NOT FIT   > 2048MiB'
expect 3 'at least 4 GB'
expect 3 'FITS IN'
run replay --fit --json --devices sim:1:1 "$work/large"
expect 1 '"fits": false, "ops": 1, "peak_requested": 2147483648, "torch_reserved": null, "gpu_gb": 4, "epsilon": 0.0195, "limit": null, '
# The first line of a recording has what PyTorch reserved.
{ echo '# PyTorch 2.11.0 on NVIDIA H100, reserved 188743680 bytes'; cat "$work/small"; } > "$work/recorded"
run replay --devices sim "$work/recorded"
expect 0 "PyTorch's         180 MiB   1.5000 times that (PyTorch 2.11.0 on NVIDIA H100)"
run replay --json --devices sim "$work/recorded"
expect 0 '"torch_reserved": 188743680, '
run replay --devices sim "$work/small"
[[ $out != *PyTorch* ]] || { echo "FAILED: a trace by hand knows nothing of PyTorch: $out"; failed=1; }
# A recording that ends out of memory is a part of the program: no limit is known to be enough.
printf '# a comment\na 0 1048576 0\n# refused 104857600\nf 0\n# refused 104857600\n' > "$work/part"
run replay --fit --devices sim "$work/part"
expect 3 'NEEDS MORE     > 101MiB'
expect 3 'at least 4 GB'
expect 3 '100 MiB was refused. It needs more than 101 MiB.'
run replay --fit --json --devices sim "$work/part"
expect 1 '"fits": false, "ops": 2'
expect 1 '"recorded_refusal": 104857600, "needs_more_than": 105906176, "began_with": 0}'
run replay --devices sim --limit 100MiB "$work/part"
expect 3 'DOES NOT FIT a limit of 100 MiB'
[[ $out != *"weir replay --fit"* ]] || { echo "FAILED: a part of a program has no smallest limit: $out"; failed=1; }
run replay --devices sim --limit 3000MiB "$work/part"
expect 3 'MAY NOT FIT a limit of 3000 MiB'
run replay --devices sim "$work/part"
expect 0 'ran out of memory while it was recorded'
# What it needs names the least device, and is larger than what was recorded.
printf 'a 0 1048576 0\n# refused 10485760000\n' > "$work/hungry"
run replay --fit --devices sim "$work/hungry"
expect 3 'at least 12 GB'
run replay --fit --json --devices sim "$work/hungry"
expect 1 '"fits": false, "ops": 1, "peak_requested": 1048576, "torch_reserved": null, "gpu_gb": 12, '
# A recording that began in the middle says so with each answer.
printf '# began with 1 blocks, 8388608 bytes\na 0 8388608 0\nf 0\n' > "$work/middle"
for how in '' --fit '--limit 1GiB'; do
  run replay $how --devices sim "$work/middle"
  expect 0 'began in the middle of the program: 8 MiB were in use then'
  run replay $how --json --devices sim "$work/middle"
  expect 0 '"began_with": 8388608}'
done
# A refusal after the peak: the program needs more than the peak.
printf 'a 0 8388608 0\nf 0\n# refused 1048576\n' > "$work/after"
run replay --devices sim "$work/after"
expect 0 '1 MiB was refused. It needs more than 8 MiB.'
run replay --fit --json --devices sim "$work/after"
expect 1 '"recorded_refusal": 1048576, "needs_more_than": 8388608, "began_with": 0}'
printf 'a 0 1 0\n# refused\n' > "$work/wrong"
run replay --devices sim "$work/wrong"
expect 1 'line 2 is no "# refused BYTES"'
printf '# began with many\na 0 1 0\n' > "$work/wrong"
run replay --devices sim "$work/wrong"
expect 1 'line 1 is no "# began with BLOCKS blocks, BYTES bytes"'
run replay --fit --limit 1GiB --devices sim "$work/small"
expect 2 "Leave these out"
run replay --fit --devices sim
expect 2 "no trace"
for ((i = 0; i < 300; ++i)); do printf 'a %d 100 %d\nf %d\n' $i $i $i; done > "$work/streams"
run replay --json --devices sim "$work/streams"
expect 0 '"ops": 600, '
run replay --devices sim --limit none "$work/small"
expect 2 'is not a size'
run replay --devices sim --epsilon many "$work/small"
expect 2 'is not a number from 0 to 1'
run replay --json --devices sim --epsilon 0.5 "$work/small"
expect 0 '"epsilon": 0.5, '
run replay --devices sim:0 "$work/small"
expect 2 'weir-178: --devices: "sim:0"'
run replay --devices sim "$work"
expect 1 'is a directory'
run snapshot "$work"
expect 1 'is a directory'
run snapshot "$work/small" "$work/other"
expect 2 "unexpected argument '$work/other'"
run replay --devices sim
expect 2 'no trace'
run replay --devices sim --snapshot "$work/snapshot" "$work/small"
expect 0 ''
if python3 -c pass 2> /dev/null; then
  python3 - "$work/snapshot" <<'PY' || { echo "FAILED: python does not read the snapshot"; failed=1; }
import pickle, sys
all = pickle.load(open(sys.argv[1], "rb"))
assert [e["action"] for e in all["device_traces"][0]].count("alloc") == 10, all["device_traces"]
for s in all["segments"]:
    assert sum(b["size"] for b in s["blocks"]) == s["total_size"], s
PY
fi
# Control characters in names must not reach the terminal.
LC_ALL=C sed 's/replay\.cpp/re\x1b[7m.cpp/g' "$work/snapshot" > "$work/crooked"
printf '\200\2}(X\010\0\0\0segments]X\015\0\0\0device_traces]}(X\006\0\0\0actionX\010\0\0\0\033[31mredu.' > "$work/crooked.action"
for file in crooked crooked.action; do
  run snapshot "$work/$file"
  [[ $out != *$'\e'* ]] || { echo "FAILED: a terminal is told what to do: $(cat -v <<< "$out")"; failed=1; }
done
expect 1 "the action '?[31mred' is unknown"
run replay --devices sim --snapshot "$work/nowhere/snapshot" "$work/small"
expect 1 'nowhere/snapshot'
# The same as a page, from a replay and from the file.
run replay --devices sim --snapshot "$work/snapshot" --html "$work/replay.html" "$work/small"
expect 0 ''
run snapshot "$work/snapshot" --html "$work/snapshot.html"
expect 0 'events'
# The peak comes before the end.
[[ $out == *'  at the peak, '*' were live:'*'  at the end'* ]] || { echo "FAILED: a snapshot without its peak: $out"; failed=1; }
# Frames of a page are counted by hand; what is no page, and no number, is refused.
if python3 -c pass 2> /dev/null; then
  status=0
  "$1/tools/page_frames" many > /dev/null 2>&1 || status=$?
  [ $status = 2 ] || { echo "FAILED: page_frames many: status $status"; failed=1; }
  status=0
  out=$("$1/tools/page_frames" --page "$work/small" 2>&1) || status=$?
  expect 1 'page_frames: '
fi
# What a program holds more than before, by line: nothing, beside itself.
run snapshot "$work/snapshot" --since "$work/snapshot" --html "$work/since.html"
expect 0 'gpu:0: live memory changed by +0 B in +0 blocks'
run snapshot "$work/snapshot" --since "$work/small"
expect 1 'byte 0: this is not a pickle'
grep -q '"marks":\[\[[0-9]*,"round 1"\],\[[0-9]*,"round 2"\]\]' "$work/replay.html" || { echo 'FAILED: the rounds of a replay are not told apart'; failed=1; }
for page in replay snapshot since; do
  [ "$(grep -c '"data":"' "$work/$page.html")" = 1 ] && [ "$(tail -1 "$work/$page.html")" = '</html>' ] || { echo "FAILED: $page.html is no whole page"; failed=1; }
done
run snapshot "$work/small"
expect 1 'byte 0: this is not a pickle'
run snapshot "$work/nowhere.pickle"
expect 1 'nowhere.pickle'
run snapshot
expect 2 'weir snapshot FILE.pickle'
head -c 40 "$work/small.gz" > "$work/short.gz"
run replay --devices sim "$work/short.gz"
expect 1 'truncated or damaged'
run replay --devices sim "$work/nowhere"
expect 1 'cannot be read'
if [ -r /proc/self/mem ]; then
  run replay --devices sim /proc/self/mem  # opens, but its first byte cannot be read
  expect 1 '/proc/self/mem cannot be read'
fi
refused() {  # refused TEXT LINE...: the last line is the invalid one
  printf '%s\n' "${@:2}" > "$work/bad"
  run replay --devices sim "$work/bad"
  expect 1 "line $(($# - 1)) $1"
}
refused 'begins with "b"' 'a 0 8 0' 'b 1'
refused 'begins with "?[31mred". Begin' 'a 0 8 0' $'\e[31mred 1'
refused 'begins with "zzzzzzzzzzzzzzzzzzzz…". Begin' "$(printf 'z%.0s' {1..5000})"
refused 'has no ID' 'a 0 8 0' 'f'
refused 'has no ID' 'a 0 8 0' 'f -1'
refused 'is no "a ID BYTES STREAM"' 'a 0 8'
refused 'is no "a ID BYTES STREAM"' 'a 0 x8 0'
refused 'names stream 65536' 'a 0 8 65536'
refused 'asks for' 'a 0 99999999999999999 0'
refused 'takes block 0 a second time' 'a 0 8 0' 'f 0' 'a 0 8 0'
refused 'frees block 1, which was not allocated' 'a 0 8 0' 'f 1'
refused 'frees block 0 a second time' 'a 0 8 0' 'f 0' 'f 0'
refused 'completes block 0 before it is freed' 'a 0 8 0' 'c 0'
refused 'completes block 0 a second time' 'a 0 8 0' 'f 0' 'c 0' 'c 0'
refused 'goes on after its last number' 'a 0 8 0 0'
printf 'a 0 8 0\n\0f 0\n' > "$work/bad"
run replay --devices sim "$work/bad"
expect 1 'line 2 begins with "?f". Begin'
printf '\n' > "$work/bad"
run replay --devices sim "$work/bad"
expect 1 'has no operations'

# The allocation benchmark: every key, each pattern beside malloc, and unknown words.
run bench alloc --json --rounds 1 --devices sim:1:4 pair512 churn16-4K threads2 handoff
expect 0 '{"pattern": "pair512", "allocator": "weir", "ns": '
expect 0 '{"pattern": "threads2", "allocator": "arithmetic", "ns": '
expect 0 '{"pattern": "handoff", "allocator": "malloc", "ns": '
[ "$(grep -c '^{.*}$' <<< "$out")" = 9 ] || { echo "FAILED: four patterns, two allocators, and what the machine does for two threads: $out"; failed=1; }
keys=$(head -1 <<< "$out" | grep -o '"[a-z_]*":' | tr -d '":' | xargs)
[ "$keys" = "pattern allocator ns mpairs_per_s host_bytes_per_block reserved_over_requested" ] || { echo "FAILED: the keys are $keys"; failed=1; }
if python3 -c pass 2> /dev/null; then
  run bench alloc --json --rounds 2 --devices sim:1:4 threads16 turns4
  python3 -c '
import json, sys
def no(word): raise ValueError(word)
rows = [json.loads(line, parse_constant=no) for line in sys.stdin]
assert [len(r["threads_ns"]) for r in rows if r["pattern"] == "threads16"] == [16, 16, 16], rows' <<< "$out" || { echo "FAILED: no JSON: $out"; failed=1; }
fi
# A person is told why a simulated device has no figures of the driver.
run bench alloc --devices sim:1 --rounds 1 pair512
expect 0 '; beside malloc, for cudaMallocAsync needs a GPU'
run bench alloc --devices sim:1 pair513
expect 2 'no pattern "pair513"'
run bench alloc --devices sim:1 --rounds 0
expect 2 'at least one'
run bench --help
expect 0 'weir bench copy --help'
run bench
expect 2 'weir bench copy --help'
run bench aloc
expect 2 'there are: alloc, copy, pipeline, share'

# Copies beside the driver's own calls: every row and key. Rows that need a second device are left out.
run bench copy --json --rounds 1 --bytes 1MiB --pinned-bytes 4MiB --peer-bytes 1MiB --devices sim:2:1
expect 0 '{"row": "pinned_h2d", "bytes": 1048576, "unit": "GB/s", "weir": '
rows=$(sed -n 's/^{"row": "\([a-z0-9_]*\)".*"ratio": [0-9.nul]*}$/\1/p' <<< "$out" | xargs)
[ "$rows" = "pinned_h2d pinned_d2h small_h2d small_d2h small_same small_seam small_many pageable_h2d pageable_d2h pageable_d2h_async d2d peer striped_h2d striped_d2h new_pinned new_pinned_first broadcast scatter gather" ] || { echo "FAILED: the rows are $rows"; failed=1; }
run bench copy --rounds 1 --bytes 1MiB --devices sim:1:1 peer d2d
expect 0 'd2d'
expect 0 'no row peer: it needs a second device'
run bench copy --rounds 1 --bytes 1MiB --devices sim:1:1 peer
expect 1 'no row peer'
run bench copy --json --rounds 1 --pinned-bytes 4MiB --devices sim:1:1 'pin_lock*'
expect 0 '"row": "pin_lock4x64", "bytes": 4194304, "unit": "ms", "weir": '
[[ $(grep -c '"said": "map ' <<< "$out") == 3 ]] || { echo "FAILED: a row of its own for each way: $out"; failed=1; }
run bench copy --json --rounds 1 --devices sim:1 sized_h2d_64KiB sized_d2h_async_2MiB
expect 0 '"row": "sized_d2h_async_2MiB", "bytes": 2097152, "unit": "GB/s", "weir": '
run bench copy --json --rounds 1 --bytes 3MiB --devices sim:1:1 'stage_*'
expect 0 '"row": "stage_hand_d2h_past_8", "bytes": 3145728, "unit": "GB/s", "weir": '
[[ $out != *null* && $(grep -c '"row": "stage_h2d_' <<< "$out") -ge 10 ]] || { echo "FAILED: a figure on both sides of each manner of staging: $out"; failed=1; }
run bench copy --devices sim:1 pinned
expect 2 'no row "pinned"'
run bench copy --devices sim:1 --bytes much
expect 2 'is not a size'
run bench copy --devices sim:1 --bytes 1
expect 2 '"1" is not a multiple of 4 KiB. Write whole pages'
run bench copy --devices sim:1 --rounds 0
expect 2 'at least one'

# Training: a line for one device, and one for all; a transformer, bucket sizes, graphs, wrong values.
small=(--steps 3 --warm 1 --width 32 --layers 2 --rows 16)
run bench train --json "${small[@]}" --devices sim:2:1
expect 0 '"ranks": 2, "graph": false, "mlp": [32, 2, 16], "ms_a_step":'
expect 0 '"efficiency":'
run bench train "${small[@]}" --devices sim:1:1
expect 0 '2 x 32, 16 rows, 1 rank:'
run bench train --json "${small[@]}" --devices sim:1:1 --graph
expect 0 '"graph": true, "mlp"'
[[ $out != *exposed_ms* ]] || { echo "FAILED: nothing is timed inside a graph: $out"; failed=1; }
run bench train "${small[@]}" --devices sim:2:1 --graph
expect 2 '--graph with 2 devices in one process. Start a process for each'
few=(--steps 1 --warm 0 --width 32 --layers 2 --rows 2 --heads 4 --context 16)
run bench train --json "${few[@]}" --devices sim:2:1 --bucket 4KiB --bucket 1MiB
expect 0 '"transformer": [32, 2, 4, 16, 2], "type": "bfloat16"'
expect 0 '"buckets": 1,'
[ "$(grep -c '^{.*}$' <<< "$out")" = 4 ] || { echo "FAILED: a line for each size and number of ranks: $out"; failed=1; }
run bench train --width 32 --heads 5 --devices sim:1:1
expect 2 'a width that the heads divide'
run bench train --steps 0 --devices sim:1:1
expect 2 'Use 1 or more'
run bench train huge --devices sim:1:1
expect 2 'Choose among large, small and transformer'
run bench train --bucket none --devices sim:1:1
expect 2 'is not a size'

# A pipeline: correct results, every key.
run bench pipeline --json --rounds 1 --batches 12 --batch 64KiB --equal --devices sim:1:1
expect 0 '"right": true}'
keys=$(grep -o '"[a-z_]*":' <<< "$out" | tr -d '":' | xargs)
[ "$keys" = "devices batch_bytes batches in_ms work_ms out_ms in_alone_ms work_alone_ms out_alone_ms batch_ms ratio by_hand_ms by_hand_ratio reserved_mib pinned_mib right" ] || { echo "FAILED: the keys are $keys"; failed=1; }
run bench pipeline --rounds 1 --batches 12 --batch 64KiB --devices sim:1:1
expect 0 'of its slowest stage'
run bench pipeline --batches 4 --devices sim:1
expect 2 'three times the depth'
for length in 0 1e300 inf nan; do
  run bench pipeline --batches 12 --work $length --devices sim:1
  expect 2 'Use more than 0, and 1000 at most'
done
run bench pipeline --help
expect 0 '(default: 0.9)'
run bench pipeline --batch 3 --devices sim:1
expect 2 '64KiB or more'

# Shared memory with a second process: every row and key, on one device and on two.
run bench share --json --rounds 1 --bytes 2MiB --devices sim:2:1
expect 0 '"row": "make", "bytes": 2097152, "unit": "us", "weir": '
rows=$(sed -n 's/^{"row": "\([a-z0-9_]*\)", "bytes": [0-9]*, "unit": "[a-zGB/]*", "weir": [0-9.]*, "raw": [0-9.nul]*, "ratio": [0-9.nul]*, "reader": 1}$/\1/p' <<< "$out" | xargs)
[ "$rows" = "make send open_first open_again message event read_64k read_1m read_large ring_64k ring_1m ring_large" ] || { echo "FAILED: the rows are $rows"; failed=1; }
run bench share --rounds 1 --bytes 64KiB --devices sim:1:1 event ring_large
expect 0 'the reader on gpu:0'
expect 0 'ring_large'
[[ $out != *read_* ]] || { echo "FAILED: a row that was not named: $out"; failed=1; }
run bench share --devices sim:1 event large
expect 2 'no row "large"'
run bench share --devices sim:1 --bytes 1000
expect 2 'not a multiple of 4 KiB'
run bench share --devices sim:1 --rounds 0
expect 2 'at least one'
for reader in 2 -1; do
  run bench share --devices sim:2 --reader $reader
  expect 2 "--reader $reader: there are 2 devices"
done
run bench share --devices sim:1 --as-reader
expect 1 'is not a Unix socket'

# A failed write to stdout is reported.
if [ -w /dev/full ]; then
  for words in 'info --devices sim:1' "replay --json --devices sim:1:1 $work/small" '--help' 'doctor --options'; do
    status=0
    out=$("$weir" $words 2>&1 > /dev/full) || status=$?
    expect 1 'writing the output failed'
  done
fi
exit $failed
