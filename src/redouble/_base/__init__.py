"""Helpers that know nothing about retries."""
