"""docker-compose.yml on real container engines: `make containers`."""
