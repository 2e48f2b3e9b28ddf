#!/bin/sh
# One backup a night, checked, the newest seven kept. Call it from cron:
#   DOWNBEAT_STORE=redis://redis:6379 nightly.sh /var/backups/downbeat
set -eu

into=${1:?where to}
file=$into/downbeat-$(date -u +%Y%m%dT%H%M%SZ).backup

downbeat backup "$file"
downbeat restore --check "$file"

# Names sort by time.
ls "$into"/downbeat-*.backup | sort -r | tail -n +8 | while read -r old; do
  rm -- "$old"
done
