"""Commands and messages act once although a response is lost: Redis, mail, RabbitMQ, as in the how-to pages.

A proxy drops the server's response and closes the connection: the server has acted, and the client does not know it.
The functions under test are those of the pages themselves.
"""

from __future__ import annotations

import asyncio
import smtplib
import socket
from email.message import EmailMessage
from typing import TYPE_CHECKING, Any

import pytest

from interop.processes import Server, free_port, until
from interop.proxy import Proxy
from interop.support import left_out
from redouble import retry
from redouble.testing import no_waits
from support.pages import DOCS, blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def from_page(name: str, function: str) -> dict[str, Any]:
    """Run the block of a how-to page that defines a function; return the function."""
    page = DOCS / "how-to" / f"{name}.md"
    block = next(block for block in blocks(page) if f"def {function}(" in block.text)
    found: dict[str, Any] = {}
    exec(compile(block.text, str(page), "exec"), found)
    return found


# Redis


@pytest.fixture
def counted(redis_server: Server) -> Iterator[Any]:
    """A client of an empty Redis, without the proxy."""
    left_out("redis")
    import redis

    with redis.Redis(host="127.0.0.1", port=redis_server.port) as client:
        client.flushall()
        yield client


def client_of(proxy: Proxy, **options: Any) -> Any:
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    return redis.Redis(host="127.0.0.1", port=proxy.port, **{"retry": Retry(NoBackoff(), 0), **options})


def async_client_of(proxy: Proxy) -> Any:
    from redis.asyncio import Redis
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    return Redis(host="127.0.0.1", port=proxy.port, retry=Retry(NoBackoff(), 0))


def note_of(call: Callable[[], Any]) -> str:
    """Return the note of the error that a call raises."""
    import redis

    with no_waits(), pytest.raises(redis.ConnectionError) as caught:
        call()
    return caught.value.__notes__[0]


def test_an_increment_whose_answer_is_lost_counts_once(redis_server: Server, counted: Any) -> None:
    page = from_page("databases", "increment")
    with Proxy(redis_server.port, losing=b"INCR") as proxy, page["client"] as client:
        client.get_connection_kwargs()["port"] = proxy.port
        note = note_of(lambda: page["increment"]("visits"))
    assert counted.get("visits") == b"1"
    assert "repeating this Redis INCRBY might act twice" in note


def test_a_command_that_may_be_repeated_is_sent_again(redis_server: Server, counted: Any) -> None:
    page = from_page("databases", "set_name")
    with Proxy(redis_server.port, losing=b"HSET", times=2) as proxy, page["client"] as client, no_waits():
        client.get_connection_kwargs()["port"] = proxy.port
        page["set_name"](1, "Ada")
        assert proxy.seen == 3
    assert counted.hget("person:1", "name") == b"Ada"


def test_a_member_is_added_once_though_the_command_is_sent_twice(redis_server: Server, counted: Any) -> None:
    page = from_page("databases", "increment")
    exec(
        next(block.text for block in blocks(DOCS / "how-to/databases.md") if "def visit(" in block.text), page
    )
    with Proxy(redis_server.port, losing=b"SADD") as proxy, page["client"] as client, no_waits():
        client.get_connection_kwargs()["port"] = proxy.port
        page["visit"]("home", "Ada")
        assert proxy.seen == 2
    assert counted.scard("visitors:home") == 1


def test_redis_py_repeats_an_increment_by_itself_unless_it_is_told_not_to(
    redis_server: Server, counted: Any
) -> None:
    import redis

    with Proxy(redis_server.port, losing=b"INCR") as proxy:
        with redis.Redis(host="127.0.0.1", port=proxy.port) as client:
            client.incr("visits")
    assert counted.get("visits") == b"2"


def test_an_async_increment_whose_answer_is_lost_counts_once(redis_server: Server, counted: Any) -> None:
    async def main(port: Proxy) -> None:
        async with async_client_of(port) as client:
            await retry(client.incr)("visits")

    with Proxy(redis_server.port, losing=b"INCR") as proxy:
        note = note_of(lambda: asyncio.run(main(proxy)))
    assert counted.get("visits") == b"1"
    assert "might act twice" in note


@pytest.mark.parametrize("transaction", [True, False])
def test_a_pipeline_whose_answer_is_lost_counts_once(
    redis_server: Server, counted: Any, transaction: bool
) -> None:
    with Proxy(redis_server.port, losing=b"INCR") as proxy, client_of(proxy) as client:

        @retry
        def both() -> None:
            with client.pipeline(transaction=transaction) as pipe:
                pipe.set("seen", "yes").incr("visits").execute()

        note = note_of(both)
    assert (counted.get("visits"), counted.get("seen")) == (b"1", b"yes")
    assert "might act twice" in note


@pytest.mark.parametrize("transaction", [True, False])
def test_an_async_pipeline_whose_answer_is_lost_counts_once(
    redis_server: Server, counted: Any, transaction: bool
) -> None:
    async def main(port: Proxy) -> None:
        async with async_client_of(port) as client:

            @retry
            async def both() -> None:
                async with client.pipeline(transaction=transaction) as pipe:
                    await pipe.set("seen", "yes").incr("visits").execute()

            await both()

    with Proxy(redis_server.port, losing=b"INCR") as proxy:
        note = note_of(lambda: asyncio.run(main(proxy)))
    assert counted.get("visits") == b"1"
    assert "might act twice" in note


@pytest.mark.parametrize("transaction", [True, False])
def test_a_pipeline_of_commands_that_may_be_repeated_is_sent_again(
    redis_server: Server, counted: Any, transaction: bool
) -> None:
    with Proxy(redis_server.port, losing=b"HSET") as proxy, client_of(proxy) as client, no_waits():

        @retry
        def both() -> None:
            with client.pipeline(transaction=transaction) as pipe:
                pipe.set("seen", "yes").hset("person:1", "name", "Ada").execute()

        both()
        assert proxy.seen == 2
    assert counted.hget("person:1", "name") == b"Ada"


@pytest.mark.parametrize(
    ("marker", "command"),
    [
        (b"LPUSH", ("LPUSH", "jobs", "a")),
        (b"XADD", ("XADD", "stream", "*", "a", "1")),
        (b"EVAL", ("EVAL", "return redis.call('INCR', 'visits')", "0")),
        (b"SET", ("SET", "lock", "mine", "NX")),
    ],
    ids=str,
)
def test_a_command_that_acts_is_sent_once(
    redis_server: Server, counted: Any, marker: bytes, command: tuple[str, ...]
) -> None:
    # RESP length included, so that CLIENT SETINFO is not taken for SET.
    losing = b"$%d\r\n%s\r\n" % (len(marker), marker)
    with Proxy(redis_server.port, losing=losing) as proxy, client_of(proxy) as client:
        note_of(lambda: retry(client.execute_command)(*command))
        assert proxy.seen == 1


# Mail


class Mailbox:
    """An SMTP handler that keeps the mails."""

    def __init__(self) -> None:
        self.kept: list[str] = []
        self.data_replies: list[str] = []
        self.reply_to_quit = "221 Bye"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802
        if self.data_replies:
            return self.data_replies.pop()
        self.kept.append(envelope.content.decode())
        return "250 OK"

    async def handle_QUIT(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802
        return self.reply_to_quit


@pytest.fixture
def mailbox(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Mailbox, int]]:
    """An SMTP server and its port."""
    left_out("aiosmtpd")
    from aiosmtpd.controller import Controller

    # Both sides introduce themselves by name, which would ask a name server.
    monkeypatch.setattr(socket, "getfqdn", lambda name="": "shop.example.org")
    sessions: list[Any] = []

    class Remembering(Controller):
        def factory(self) -> Any:
            sessions.append(super().factory())
            return sessions[-1]

    box, port = Mailbox(), free_port()
    controller = Remembering(box, hostname="127.0.0.1", port=port)
    controller.start()
    yield box, port
    # It leaves connections open that have not ended when it stops.
    until(lambda: all(session.transport is None for session in sessions), "end of all connections", 3.0)
    controller.stop()


def mail() -> EmailMessage:
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "shop@example.org", "ada@example.org", "Your order"
    message.set_content("It is on its way.")
    return message


def test_a_mail_that_was_accepted_is_sent_once(mailbox: tuple[Mailbox, int]) -> None:
    box, port = mailbox
    deliver = from_page("messaging", "deliver")["deliver"]
    with Proxy(port, losing=b"\r\n.\r\n") as proxy, no_waits():
        with pytest.raises(smtplib.SMTPServerDisconnected) as caught:
            deliver("127.0.0.1", proxy.port, mail())
    assert len(box.kept) == 1
    assert "idempotent=False" in caught.value.__notes__[0]


def test_a_mail_that_was_accepted_is_sent_once_if_the_server_refuses_to_part(
    mailbox: tuple[Mailbox, int],
) -> None:
    box, port = mailbox
    box.reply_to_quit = "421 Shutting down"
    with no_waits():
        from_page("messaging", "deliver")["deliver"]("127.0.0.1", port, mail())
    assert len(box.kept) == 1


def test_a_mail_that_was_refused_for_now_is_sent_again(mailbox: tuple[Mailbox, int]) -> None:
    box, port = mailbox
    box.data_replies = ["451 Try again later", "452 Too full"]
    with no_waits() as waits:
        from_page("messaging", "deliver")["deliver"]("127.0.0.1", port, mail())
    assert (len(box.kept), len(waits)) == (1, 2)


def test_a_mail_server_that_is_not_there_yet_is_waited_for(mailbox: tuple[Mailbox, int]) -> None:
    deliver = from_page("messaging", "deliver")["deliver"]
    with socket.socket() as bound:  # bound, but not listening: a connection is refused
        bound.bind(("127.0.0.1", 0))
        with no_waits() as waits, pytest.raises(ConnectionRefusedError):
            deliver("127.0.0.1", bound.getsockname()[1], mail())
    assert (len(waits), mailbox[0].kept) == (3, [])


# RabbitMQ


@pytest.fixture(scope="module")
def pika() -> Any:
    """The client of RabbitMQ. Ask for it before the server, which takes seconds to start."""
    left_out("pika")
    import pika

    return pika


@pytest.fixture
def jobs(pika: Any, rabbitmq: Server) -> Iterator[Callable[[], list[bytes]]]:
    """Return and remove the messages in the queue ``jobs``."""

    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", rabbitmq.port)) as connection:
        channel = connection.channel()
        channel.queue_declare("jobs")
        channel.queue_purge("jobs")

        def taken() -> list[bytes]:
            found: list[bytes] = []
            while (got := channel.basic_get("jobs", auto_ack=True))[0] is not None:
                found.append(got[2])
            return found

        yield taken


def test_a_message_that_rabbitmq_has_taken_is_sent_once(
    pika: Any, rabbitmq: Server, jobs: Callable[[], list[bytes]]
) -> None:
    enqueue = from_page("messaging", "enqueue")["enqueue"]
    with Proxy(rabbitmq.port, losing=b"job 1") as proxy, no_waits():
        with pytest.raises(pika.exceptions.AMQPError) as caught:
            enqueue(pika.ConnectionParameters("127.0.0.1", proxy.port), b"job 1")
    assert jobs() == [b"job 1"]
    assert "idempotent=False" in caught.value.__notes__[0]


def test_a_rabbitmq_that_is_not_there_yet_is_waited_for(pika: Any) -> None:
    enqueue = from_page("messaging", "enqueue")["enqueue"]
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        with no_waits() as waits, pytest.raises(pika.exceptions.AMQPConnectionError):
            enqueue(pika.ConnectionParameters("127.0.0.1", bound.getsockname()[1]), b"job 1")
    assert len(waits) == 4
