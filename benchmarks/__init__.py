"""How fast and how small runs are, beside other ways to train the same."""
