"""Starts Ray on each host of a service, and on the first one a command that uses it: `python vllm_ray.py --rank=0 ... -- vllm serve ...`.

It runs in the environment of the engine, once on each host. The first host starts Ray's head, waits until all hosts have joined, and runs
the command. The others join, and stay until Ray's head ends.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence

PATIENCE = 600.0  # seconds for all hosts to join
PAUSE = 2.0  # seconds between two attempts

#: Prints the number of hosts of a cluster. It is a process of its own, because ray.init has no time limit.
COUNT = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False); print(sum(node['Alive'] for node in ray.nodes()))"
COUNT_TIMEOUT = 60.0  # seconds


def count(address: str) -> int:
    """Returns the number of hosts of the cluster, or 0 if it does not answer."""
    try:
        done = subprocess.run([sys.executable, "-c", COUNT, address], stdout=subprocess.PIPE, text=True, timeout=COUNT_TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        return 0
    return int(done.stdout.split()[-1]) if done.returncode == 0 and done.stdout.split() else 0


def lead(options: argparse.Namespace, command: Sequence[str]) -> int:
    """Starts Ray's head, waits for the other hosts, and runs the command. Returns its exit code. Ray's head ends with it."""
    address = f"{options.leader}:{options.port}"
    own = [f"--port={options.port}", f"--node-ip-address={options.leader}", "--include-dashboard=false"]
    head = subprocess.Popen(["ray", "start", "--head", "--block", *own])
    try:
        latest = time.monotonic() + PATIENCE
        while (joined := count(address)) < options.hosts:
            if head.poll() is not None or time.monotonic() > latest:
                sys.stderr.write(f"{joined} of {options.hosts} hosts have joined Ray at {address}\n")
                return 1
            time.sleep(PAUSE)
        return subprocess.run(command, check=False).returncode
    finally:
        head.terminate()
        head.wait()


def join(options: argparse.Namespace) -> int:
    """Joins Ray's head as soon as it is there, and stays until it ends. Returns the exit code of `ray start`."""
    latest = time.monotonic() + PATIENCE
    while True:
        began = time.monotonic()
        code = subprocess.run(["ray", "start", f"--address={options.leader}:{options.port}", "--block"], check=False).returncode
        if code == 0 or time.monotonic() > latest or time.monotonic() - began > PATIENCE:
            return code
        time.sleep(PAUSE)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--hosts", type=int, required=True)
    parser.add_argument("--leader", required=True, help="address of the first host")
    parser.add_argument("--port", type=int, required=True, help="port of Ray's head")
    end = arguments.index("--")
    options = parser.parse_args(arguments[:end])
    return lead(options, arguments[end + 1 :]) if options.rank == 0 else join(options)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
