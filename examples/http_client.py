"""Retry HTTP requests: wait for Retry-After, and do not repeat a POST without an idempotency key.

The server runs on loopback in this process. It fails the first requests to each path.
"""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from redouble import retry
from redouble.context import outgoing_headers

SCRIPT = {"/page": [503, 503, 200], "/order": [500, 201], "/keyed-order": [500, 201]}
seen: dict[str, list[str]] = {}


class Flaky(BaseHTTPRequestHandler):
    def answer(self):
        numbers = seen.setdefault(self.path, [])
        numbers.append(self.headers.get("X-Retry-Attempt", "1"))
        status = SCRIPT[self.path][len(numbers) - 1]
        self.send_response(status)
        if status == 503:
            self.send_header("Retry-After", "0.3")
        self.end_headers()

    do_GET = do_POST = answer  # noqa: N815 - names of http.server

    def log_message(self, *args):
        pass


@retry(base=0.1)
def send(method, url, **headers):
    request = Request(url, method=method, headers={**headers, **outgoing_headers()})
    try:
        with urlopen(request, timeout=2.0) as response:
            return response.status
    except HTTPError as error:
        error.close()
        raise


with HTTPServer(("127.0.0.1", 0), Flaky) as server:
    threading.Thread(target=server.serve_forever, daemon=True).start()
    home = f"http://127.0.0.1:{server.server_port}"

    print("GET:", send("GET", f"{home}/page"), "after attempts", ", ".join(seen["/page"]))
    try:
        send("POST", f"{home}/order")
    except HTTPError as error:
        print("POST:", error.code, "after", len(seen["/order"]), "request, and a note that says why:")
        print(error.__notes__[0])
    status = send("POST", f"{home}/keyed-order", **{"Idempotency-Key": "order-17"})
    print("POST with a key:", status, "after", len(seen["/keyed-order"]), "requests")
    server.shutdown()
