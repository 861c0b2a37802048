"""A server goes down and comes back: what plain retries, a budget and a breaker make of it. On loopback."""

import socket
import threading

from redouble import CircuitOpen, Policy
from redouble.breaker import CircuitBreaker
from redouble.budget import TokenBudget


class Server:
    """Answers every connection with one byte; while it is down it hangs up instead."""

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
    """Fifty calls to a server that is down."""
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

# Back up: after a while the circuit lets one probe through, which closes it. Who would rather wait than be
# refused puts the retry around the breaker: it waits as long as the circuit says.
server.up = True
fast.replace(on=CircuitOpen).call(breaker(ask))
print(f"back up: the circuit is {breaker.state}")
