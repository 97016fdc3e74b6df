"""Getting the bytes of datasets: found, fetched, verified, decoded."""
