"""What the comparison page measures: libraries, probes, features and figures. `../compare.py` writes the page."""
