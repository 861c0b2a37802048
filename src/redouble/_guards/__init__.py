"""The parts that guards share."""
