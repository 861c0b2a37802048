"""Read policies from a configuration file, so that operators can change waits and limits."""

import tomllib

from redouble import Policy

CONFIG = """
[retry.payments]
max_attempts = 6
base_delay = "200ms"
max_delay = "5s"
jitter = "equal"
deadline = "10s"

[retry.payments.rules.rate_limited]
attempts = 2
base = "1s"

[retry.search]
max_atempts = 3
"""

tables = tomllib.loads(CONFIG)["retry"]

payments = Policy.from_mapping(tables["payments"]).replace(name="payments")
print(payments)
print(payments.describe())

# Unknown names raise TypeError: a misspelt limit would silently not apply.
try:
    Policy.from_mapping(tables["search"])
except TypeError as error:
    print("refused:", error)

# Environment variables can override the file for one deployment.
environment = {"PAYMENTS_RETRY_ATTEMPTS": "2", "PAYMENTS_RETRY_DEADLINE": "1500ms"}
print(Policy.from_env("PAYMENTS_RETRY", environment))
