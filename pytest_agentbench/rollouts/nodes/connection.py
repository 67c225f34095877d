import socket
import threading

from pytest_agentbench.lib import wire


def server_context(cert, key):
    return None


class NodeConnection:
    def __init__(self, line):
        self.line = line
        self.lock = threading.Lock()

    @classmethod
    def connect(cls, host, port, *, authority=None):
        line = socket.create_connection((host, port), 5)
        line.settimeout(None)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return cls(line)

    def send(self, m, body=b""):
        with self.lock:
            wire.send(self.line, m, body)

    def send_frame(self, h, body):
        with self.lock:
            self.line.sendall(wire.framed(h, body))

    def receive(self):
        return wire.receive(self.line)

    def close(self):
        try:
            self.line.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
