"""A proxy on loopback that drops responses: the server has processed a request, and the client gets no response.

with Proxy(redis_server.port, losing=b"INCR") as proxy:
    client = redis.Redis(port=proxy.port)
    client.incr("key")          # ConnectionError; the key is 1
    client.incr("key")          # 2: one response is dropped, unless `times` says more
"""

from __future__ import annotations

import select
import socket
import threading


class Proxy:
    """Forward connections to a port.

    After the client has sent ``losing``, the server's next response is dropped and the connection closed.
        This happens ``times`` times.
    """

    def __init__(self, target: int, losing: bytes, times: int = 1) -> None:
        self._target, self._losing, self._left = target, losing, times
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.seen = 0
        """How many connections have sent it."""
        self._open: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept)]

    def __enter__(self) -> Proxy:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        for sock in (self._listener, *tuple(self._open)):
            try:
                sock.shutdown(socket.SHUT_RDWR)  # wakes up the thread that waits for it
            except OSError:
                pass
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client = self._listener.accept()[0]
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(client,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._target)) as server:
            self._open |= {client, server}
            try:
                self._forward(client, server)
            except OSError:
                pass  # one side has closed it in a hurry
            finally:
                self._open -= {client, server}

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        sent = b""
        while True:
            for sock in select.select([client, server], [], [])[0]:
                data: bytes = sock.recv(65536)
                if not data:
                    return
                if sock is client:
                    found = self._losing in sent
                    sent += data
                    self.seen += not found and self._losing in sent
                    server.sendall(data)
                elif self._losing in sent and self._left:
                    self._left -= 1
                    return
                else:
                    client.sendall(data)
