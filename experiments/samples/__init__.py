"""How honest the law behind few samples is."""
