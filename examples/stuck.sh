#!/usr/bin/env bash
# Makes a real mess, then mends it with the command line as a newcomer would: plans first, then --apply.
# Run it with `make demo-stuck`. The last line is counted from what is really there.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-python3}
export PYTHONPATH="$here/../tests${PYTHONPATH:+:$PYTHONPATH}"
export PYSPARK_PYTHON=$python SPARK_LOCAL_IP=127.0.0.1
# Drivers live for some seconds here: what compiles thoroughly compiles in vain.
export JDK_JAVA_OPTIONS=${JDK_JAVA_OPTIONS:--XX:TieredStopAtLevel=1 -XX:+UseSerialGC}
directory=$(mktemp -d "${TMPDIR:-/tmp}/partfile-stuck-XXXXXX")
server='' stream=''

finish() {
  local process
  for process in $server $stream; do
    kill "$process" 2>/dev/null && wait "$process" 2>/dev/null || true
  done
  rm -rf "$directory"
}
trap finish EXIT

say() { printf '\n== %s\n' "$*"; }

# Prints a command, runs it, and refuses any exit code but the one that is named first.
expect() {
  local wanted=$1 code=0
  shift
  printf '\n$ partfile %s\n' "$*"
  "$python" -m partfile "$@" || code=$?
  [[ "$code" == "$wanted" ]] || { echo "exit code $code instead of $wanted"; exit 1; }
}

# What takes long to start does so beside what comes before it.
mkfifo "$directory/stay" "$directory/again"
"$python" "$here/stuck_uploads.py" serve "$directory" <"$directory/stay" >"$directory/s3.said" 2>&1 &
server=$!
exec 9>"$directory/stay"

say "A mess on local disk, made by real Spark drivers"
"$python" "$here/stuck_mess.py" make "$directory"
landing=$directory/landing
"$python" "$here/stuck_mess.py" restart "$directory" <"$directory/again" >"$directory/stream.said" 2>&1 &
stream=$!
exec 8>"$directory/again"

say "A mess on S3"
while [[ ! -e "$directory/s3.env" ]] && kill -0 "$server" 2>/dev/null; do sleep 0.1; done
cat "$directory/s3.said"
bases=("$landing")
if [[ -e "$directory/s3.env" ]]; then
  # shellcheck disable=SC1091
  source "$directory/s3.env"
  bases+=("$S3_BASE")
fi

say "What is it? Reading is safe, and changes nothing"
expect 1 status "$landing" --scan
# On S3 no command can see whether a sink runs: it counts as stopped 10 minutes after its newest checkpoint, or earlier on demand.
[[ ${#bases[@]} == 1 ]] || expect 1 status "$S3_BASE" --quiet-after 0s
for base in "${bases[@]}"; do
  say "Mend $base: a plan, then the same with --apply"
  expect 1 recover "$base"
  if [[ "$base" == "$landing" ]]; then
    expect 0 recover "$base" --apply
  else
    # No lock of S3 tells that the sink died a moment ago. You know it, so say so.
    expect 1 recover "$base" --apply
    expect 0 recover "$base" --apply --idle-for 0s
  fi
  expect 0 recover "$base"
done

say "A forgotten zombie writes into what was just recovered"
"$python" "$here/stuck_mess.py" wake "$directory"

say "The streams are started again, as if nothing had happened"
echo again >&8
[[ ${#bases[@]} == 1 ]] || "$python" "$here/stuck_uploads.py" restart "$directory"
code=0
wait "$stream" || code=$?
stream=''
cat "$directory/stream.said"
[[ "$code" == 0 ]] || exit "$code"
sleep 1.1 # S3 and its times: whole seconds. What is as old as the newest checkpoint is not cleaned.

say "Clean up what no checkpoint names; a day must pass as a rule, here there is no wait"
expect 1 clean "$landing" --older-than 0s
expect 0 clean "$landing" --older-than 0s --apply
expect 0 clean "$landing" --older-than 0s
rm -r "$landing/_partfile/_quarantine"
if [[ ${#bases[@]} == 2 ]]; then
  expect 1 clean "$S3_BASE" --older-than 0s --delete
  expect 0 clean "$S3_BASE" --older-than 0s --delete --idle-for 0s --apply
fi

say "Is everything as it must be?"
for base in "${bases[@]}"; do
  expect 0 verify "$base"
  expect 0 status "$base"
done

say "Every row is read back and counted"
"$python" "$here/stuck_mess.py" compare "$directory"
