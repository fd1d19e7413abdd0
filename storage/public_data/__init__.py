"""Public datasets: listed by name, found or fetched by digest."""
