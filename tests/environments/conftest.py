"""Tests in this folder need special environments: .ci/environments and .ci/interpreters run them by name."""

collect_ignore_glob = ["*"]
