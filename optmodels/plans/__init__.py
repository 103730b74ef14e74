"""The result: plan, certificate, independent checker, files."""
