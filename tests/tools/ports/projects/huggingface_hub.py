"""huggingface_hub: a loop of its own around a request, with hints of the server, in a generator."""

from __future__ import annotations

from ports.edits import Edit, Port

HTTP = "src/huggingface_hub/utils/_http.py"

PORT = Port(
    name="huggingface_hub",
    version="2.4.0",
    sha256="13a6158b9e3393d9d3f248ce99074d50c2a0a1449fb9d8e2f710751e2084c188",
    source="src",
    edits=(
        Edit(HTTP, "from contextlib import", "from contextlib import ExitStack, contextmanager"),
        Edit(
            HTTP,
            "import httpx2",
            """
            import httpx2
            from redouble import retrying
            from redouble.backoff import exponential
            """,
        ),
        Edit(
            HTTP,
            "def _http_backoff_base(",
            body=True,
            new="""
            if isinstance(retry_on_status_codes, int):
                retry_on_status_codes = (retry_on_status_codes,)

            data = kwargs.get("data")
            start = data.tell() if isinstance(data, (io.IOBase, SliceFileObj)) else None

            def reset(event):
                if isinstance(event.error, httpx2.ConnectError):
                    close_session()

            with ExitStack() as opened:
                for attempt in retrying(
                    name=f"{method} {url}",
                    on=retry_on_exceptions,
                    idempotent=True,
                    attempts=max_retries + 1,
                    backoff=exponential,
                    base=base_wait_time,
                    cap=max_wait_time,
                    listeners=(reset,),
                    logger=logger,
                ):
                    with attempt:
                        opened.close()
                        client = get_session()
                        if start is not None:
                            data.seek(start)
                        if stream:
                            response = opened.enter_context(client.stream(method=method, url=url, **kwargs))
                        else:
                            response = client.request(method=method, url=url, **kwargs)
                        if response.status_code not in retry_on_status_codes:
                            continue
                        if attempt.is_last:
                            hf_raise_for_status(response)
                        else:
                            limit = parse_ratelimit_headers(response.headers) if response.status_code == 429 else None
                            if limit is not None and limit.remaining == 0:
                                after = limit.reset_in_seconds
                            else:
                                after = _parse_retry_after(response.headers)
                            attempt.again(f"HTTP status {response.status_code}", None if after is None else after + 1)
                yield response
            """,
        ),
    ),
    # Without it the archive's tests cannot import each other.
    extra_files={"tests/__init__.py": ""},
    tests=(
        "tests/test_utils_http.py",  # the loop, and the rest of its module
        # These talk to other machines.
        "-k",
        "not TestUniqueRequestId and not client_get_request and not flag_as_download_call_decorator",
    ),
)
