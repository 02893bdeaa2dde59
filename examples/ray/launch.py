"""Runs `ragtag worker` on each other node of a Ray cluster, and `ragtag serve` here.

    python launch.py /models/model.gguf [more options of `ragtag serve`]

Ray only starts and stops the processes. `ragtag` and the model must be on every node, at the same paths.
"""

import secrets
import subprocess
import sys
import tempfile

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


@ray.remote(num_cpus=0)
class Worker:
    """`ragtag worker` on one node."""

    def start(self, key: str) -> str:
        """Returns the value of `--worker`."""
        with tempfile.NamedTemporaryFile("w", suffix=".key", delete=False) as file:
            file.write(key)
        command = ["ragtag", "worker", "--listen", "0.0.0.0:0", "--key", file.name]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline().strip()
        if not line.startswith("--worker HOST:"):
            raise RuntimeError(f"ragtag worker printed {line!r}")
        return line.removeprefix("--worker ").replace("HOST", ray.util.get_node_ip_address(), 1)

    def stop(self) -> None:
        self.process.terminate()


def main() -> int:
    ray.init(address="auto")
    own, key = ray.get_runtime_context().get_node_id(), secrets.token_hex(16)
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeID"] != own]
    workers = [
        Worker.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote() for node in nodes
    ]
    try:
        addresses = ray.get([worker.start.remote(key) for worker in workers])
        return subprocess.call(["ragtag", "serve", *sys.argv[1:], "--worker", ",".join(addresses)])
    finally:
        ray.get([worker.stop.remote() for worker in workers])


if __name__ == "__main__":
    sys.exit(main())
