"""Tests of environments need what only those have: they are run by name, by .ci/environments."""

collect_ignore_glob = ["*"]
