"""A simulated disk that can lose power, fill up and fail."""
