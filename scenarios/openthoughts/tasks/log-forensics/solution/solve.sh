#!/bin/bash
set -euo pipefail
cd /var/log/site
# Of those that got in, the one that failed most often: colleagues fail three times in a row at most.
address=$(grep -oP 'Accepted password .* from \K\S+' auth.log | sort -u | while read -r each; do
  echo "$(grep -F 'Failed password' auth.log | grep -cF "from $each port") $each"
done | sort -rn | head -1 | cut -d' ' -f2)
first=$(grep -F "Accepted password" auth.log | grep -F "from $address port" | head -1)
account=$(grep -oP 'Accepted password for \K\S+' <<<"$first")
login=$(date --utc --date="${first%% *}" +%Y-%m-%dT%H:%M:%SZ)
{ zcat access.log.2.gz; cat access.log.1 access.log; } |
  awk -v who="$address" '$1 == who && ($9 == 200 || $9 == 206) {sum[$7] += $10} END {for (path in sum) printf "%d %s\n", sum[path], path}' |
  sort -rn | head -1 | {
  read -r bytes file
  printf '{"address": "%s", "account": "%s", "login": "%s", "file": "%s", "bytes": %d}\n' "$address" "$account" "$login" "$file" "$bytes" >/root/report.json
}
