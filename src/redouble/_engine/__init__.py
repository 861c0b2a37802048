"""One call, from the first attempt to the error that is raised."""
