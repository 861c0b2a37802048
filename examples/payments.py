"""Charge a payment once although the response was lost: the client sends a key, the server stores answers.

The server runs on loopback in this process. It charges, and then does not answer before the client's timeout.
"""

import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.request import Request, urlopen

from redouble import Policy, current_attempt
from redouble.context import outgoing_headers

charges: list[str] = []
requests: list[str] = []
answers: dict[str, tuple[float, bytes]] = {}  # expiry and answer by key; in production, a table


class Payments(BaseHTTPRequestHandler):
    def do_POST(self):
        key = self.headers.get("Idempotency-Key", "")
        requests.append(key)
        until, answer = answers.get(key, (0.0, b""))
        if until < time.time():
            charges.append(self.path)
            answer = f"receipt {len(charges)}".encode()
            if key:
                answers[key] = time.time() + 24 * 3600, answer  # stored before it is sent
            self.connection.recv(1)  # too slow: wait until the client has closed the connection
            return
        self.send_response(201)
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *args):
        pass


def pay(order):
    request = Request(f"{home}/{order}", method="POST", headers=outgoing_headers())
    with urlopen(request, timeout=current_attempt().timeout) as response:
        return response.read().decode()


with HTTPServer(("127.0.0.1", 0), Payments) as server:
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    home = f"http://127.0.0.1:{server.server_port}"
    policy = Policy(idempotent="by_method", timeout=0.2, base=0.1, name="payments")
    print("with a key:", policy.replace(idempotency_key=True).call(pay, "order-17"))
    print(f"{len(charges)} charge, {len(requests)} requests: the second got the stored answer")
    try:
        policy.call(pay, "order-18")
    except TimeoutError as error:
        print("without a key:", error.__notes__[0])
    assert charges == ["/order-17", "/order-18"], "each was charged once"
    server.shutdown()
