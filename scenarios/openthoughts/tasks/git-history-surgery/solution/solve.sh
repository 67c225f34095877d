#!/bin/bash
set -euo pipefail
cd /srv/repo
git stash clear
export FILTER_BRANCH_SQUELCH_WARNING=1
git filter-branch -f --tag-name-filter cat --tree-filter '
  rm -f config/prod.env
  { grep -rlIF hunter2-PROD-9f3c . || true; } | while read -r file; do sed -i s/hunter2-PROD-9f3c/REDACTED/g "$file"; done
' -- --all
git for-each-ref --format='%(refname)' refs/original | while read -r ref; do git update-ref -d "$ref"; done
rm -f .git/ORIG_HEAD .git/FETCH_HEAD
git reflog expire --expire=now --all
git gc -q --prune=now
git status --porcelain
