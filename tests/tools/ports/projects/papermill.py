"""papermill: a tenacity decorator made for each call, from settings on the class; and a small decorator of its own."""

from __future__ import annotations

from ports.edits import Edit, Port

IORW, UTILS = "papermill/iorw.py", "papermill/utils.py"

PORT = Port(
    name="papermill",
    version="2.7.0",
    sha256="ec10b37594a060662f57269e1ebd108c209d204450f00fdfeb70a1c7cfb7fbc8",
    edits=(
        Edit(
            IORW,
            "from tenacity import",
            """
            from redouble import retry
            from redouble.backoff import exponential
            """,
        ),
        Edit(
            IORW,
            "def write(",
            inside="GCSHandler",
            body=True,
            new="""
            def rate_limited(error):
                message = getattr(error, 'message', f"Generic exception {type(error)} raised")
                raise PapermillRateLimitException(message)

            # Made for each call, so that tests can change the settings.
            @retry(
                on=gs_is_retriable,
                attempts=self.RATE_LIMIT_RETRIES,
                backoff=exponential,
                base=self.RETRY_MULTIPLIER,
                floor=self.RETRY_DELAY,
                cap=self.RETRY_MAX_DELAY,
                fallback=rate_limited,
            )
            def retry_write():
                with self._get_client().open(path, 'w') as f:
                    return f.write(buf)

            return retry_write()
            """,
        ),
        Edit(
            UTILS,
            "import warnings",
            """
            import warnings

            import redouble
            from redouble.events import Retrying, log_to
            """,
        ),
        Edit(
            UTILS,
            "def retry(",
            """
            def retry(num):
                log = log_to(logger, level={Retrying: logging.DEBUG}, template='Retrying after: %(error)s')
                return redouble.retry(on=Exception, attempts=num, base=0, logger=False, listeners=(log,))
            """,
        ),
    ),
    tests=(
        "papermill/tests/test_gcs.py",  # the retried writes
        "papermill/tests/test_utils.py",  # the decorator
        "papermill/tests/test_s3.py",  # its user
        "papermill/tests/test_iorw.py",  # the module of the retried writes
    ),
)
