#!/bin/sh
# A worker in shell: JSON comes on standard input, JSON goes to standard output.
#   downbeat worker --type greet -- sh examples/workers/greet.sh
name=$(sed -n 's/.*"name" *: *"\([^"]*\)".*/\1/p')
if [ -z "$name" ]; then
  echo "whom shall I greet?" >&2 # becomes the message of the failure
  exit 3                         # becomes its code: exit_3
fi
printf '{"text": "Hello, %s!"}\n' "$name"
