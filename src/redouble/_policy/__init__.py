"""What a policy does besides calling: read configuration, describe itself, lint itself."""
