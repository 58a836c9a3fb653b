"""Page of the UCI benchmark, and what it was set up to show."""
