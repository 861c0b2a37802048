"""Configuration, description and lint checks of a policy."""
