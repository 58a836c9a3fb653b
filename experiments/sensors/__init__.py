"""Page of the sensors benchmark."""
