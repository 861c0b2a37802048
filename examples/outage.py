"""Compare plain retries, a budget and a breaker while a server on loopback is down."""

import socket
import threading

from redouble import CircuitOpen, Policy
from redouble.breaker import CircuitBreaker
from redouble.budget import TokenBudget


class Server:
    """Answer each connection with one byte, or close it while the server is down."""

    up, connections = True, 0

    def __init__(self):
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.address = self.socket.getsockname()
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            connection, _ = self.socket.accept()
            with connection:
                self.connections += 1
                if self.up:
                    connection.sendall(b"!")


def ask():
    with socket.create_connection(server.address, timeout=1.0) as connection:
        if not connection.recv(1):
            raise ConnectionResetError("the server hung up")


def outage(policy, name):
    """Make fifty calls to the server while it is down."""
    server.up, server.connections, refused = False, 0, 0
    for _ in range(50):
        try:
            policy.call(ask)
        except CircuitOpen:
            refused += 1
        except ConnectionResetError:
            pass
    print(f"{name}: 50 calls, {server.connections} connections, {refused} refused at once")


server = Server()
fast = Policy(base=0.001, cap=0.002)
breaker = CircuitBreaker(failures=10, open_for=0.05, name="server")
outage(fast, "plain retries")
outage(fast.replace(budget=TokenBudget(capacity=50)), "with a budget")
outage(fast.replace(breaker=breaker), "with a breaker")

# The server is up again: after `open_for` the circuit admits one probe, which closes it. To wait for that
# instead of getting CircuitOpen, put the retry around the breaker: it waits as long as the breaker says.
server.up = True
fast.replace(on=CircuitOpen).call(breaker(ask))
print(f"back up: the circuit is {breaker.state}")
