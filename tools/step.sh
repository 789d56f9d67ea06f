#!/usr/bin/env bash
# step.sh LOG WORDS COMMAND...: runs a command with its output in build/logs/LOG.log and prints one line about it; when
# the command fails, also the end of that log.
set -u
log="build/logs/$1.log"
words=$2
shift 2
mkdir -p build/logs
start=$SECONDS
[ -t 1 ] && printf '%-52s ...\r' "$words"
"$@" >"$log" 2>&1 </dev/null
code=$?
if [ $code -eq 0 ]; then
  printf '%-52s ok %4d s\n' "$words" $((SECONDS - start))
else
  printf '%-52s FAILED %4d s (exit %d), the end of %s:\n' "$words" $((SECONDS - start)) $code "$log" >&2
  tail -n 40 "$log" >&2
fi
exit $code
