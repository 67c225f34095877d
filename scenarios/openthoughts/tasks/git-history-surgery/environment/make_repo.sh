#!/bin/bash
# A repository with a password in its history: the same commits every time.
set -euo pipefail
password=hunter2-PROD-9f3c
export GIT_CONFIG_NOSYSTEM=1
git init -q -b main "$1"
cd "$1"
git config user.name "Ada Example"
git config user.email ada@example.org
when=1767258000
commit() { # author, message: commits everything, a while after the last one
  when=$((when + 5400))
  git add -A
  GIT_AUTHOR_NAME=$1 GIT_AUTHOR_EMAIL=${1,,}@example.org GIT_AUTHOR_DATE="$when +0100" GIT_COMMITTER_DATE="$((when + 60)) +0000" \
    git commit -q --allow-empty -m "$2"
}
mkdir -p src config docs
printf 'print("hello")\n' >src/main.py
printf '# Shop\n' >README.md
commit Ada "First steps"
printf '#!/bin/bash\nset -e\nscp -r src shop:/srv\n' >deploy.sh
chmod +x deploy.sh
commit Bob "A script that deploys"
printf 'DATABASE=shop\nPASSWORD=%s\n' "$password" >config/prod.env
commit Bob "Settings of production"
printf 'def price(item):\n    return 5\n' >src/prices.py
commit Ada "Prices"
git tag light
printf '#!/bin/bash\nset -e\nexport PASSWORD=%s\nscp -r src shop:/srv\n' "$password" >deploy.sh
commit Bob "Deploys with the password"
GIT_COMMITTER_NAME=Carol GIT_COMMITTER_EMAIL=carol@example.org GIT_COMMITTER_DATE="$((when + 120)) +0200" git tag -a v1.0 -m $'Version 1.0\n\nThe first one that is sold.'
git checkout -q -b feature/discounts
printf 'def discount(price):\n    return price // 10\n' >src/discounts.py
commit Carol "Discounts"
printf '# how to deploy\nold password: %s, ask Bob for the new one\n' "$password" >docs/deploying.md
commit Carol "How to deploy"
git checkout -q main
printf 'def price(item):\n    return 7\n' >src/prices.py
commit Ada "Higher prices"
printf 'DATABASE=shop2\nPASSWORD=%s\n' "$password" >config/prod.env
commit Bob "Another database"
when=$((when + 5400))
GIT_AUTHOR_DATE="$when +0100" GIT_COMMITTER_DATE="$when +0100" git merge -q --no-ff -m "Discounts are in" feature/discounts
printf '# how to deploy\nask Bob for the password\n' >docs/deploying.md
git rm -q config/prod.env
printf '#!/bin/bash\nset -e\nscp -r src shop:/srv\n' >deploy.sh
commit Ada "No passwords in the repository"
mkdir -p config
printf 'DATABASE=shop2\n' >config/example.env
commit Ada "An example of the settings"
git checkout -q -b hotfix v1.0
printf 'print("hello, world")\n' >src/main.py
commit Bob "Greets everybody"
git checkout -q main
printf 'PASSWORD=%s\n' "$password" >>config/example.env
git stash -q
